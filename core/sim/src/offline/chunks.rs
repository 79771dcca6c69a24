//! The relaxed optimum of A_online's problem: a lower bound of the jobs' times under any schedule, with all arrivals
//! known.
//!
//! Edge-cloud paper, ILP (4) with ζ = 1 for every job (§V-B, Fig. 12 and 13) and without integrality. y_jst of a job's
//! chunks train on server s in slot t, each worker one at a time, at the rate without communication, and no earlier
//! than the upload there allows. Parameter servers, storage and earlier places of chunks are ignored. The objective is
//! the chunks' average fractional flow time (3): the time from the arrival to each bit of work.
//!
//! The chunks of a job are alike, so y counts them (4e: at most D_j at once). Jobs that share no server are solved
//! separately. The number of slots in the program is bounded: if some server has room for every chunk that could use it
//! (a cloud), no optimum trains later than there.
//!
//! Cost: a variable for each job, allowed server, and slot until the job would have ended in the cloud.

use std::collections::BTreeMap;

use thiserror::Error;

use trainmaster_core::{
    job::{Dataset, JobSpec, Slots},
    resources::is_gpu,
    server::{Place, ServerSpec},
    solver::{Limit, Model, Solver, SolverError, Variable},
    time::{Span, Time},
};

/// Lower bounds for all schedules, as sums over the jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Relaxed {
    /// The objective of ILP (4): average fractional flow times in seconds.
    pub fractional_s: f64,
    /// Completion times less arrivals in seconds. A chunk that trains for p ends at least p/2 after the mean time of
    /// its work, and its job no earlier. So this is `fractional_s` plus half of each job's p.
    pub completion_s: f64,
}

/// Reasons for a missing result.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum RelaxedError {
    /// A job that can't be counted in chunks.
    #[error("job {job}: {problem}")]
    Job {
        /// Name of the job.
        job: String,
        /// The missing value.
        problem: &'static str,
    },
    /// A server with an invalid label.
    #[error("server {server}: {problem}")]
    Server {
        /// Name of the server.
        server: String,
        /// The error.
        problem: String,
    },
    /// The program is too large.
    #[error("{variables} variables are more than {most}; fewer jobs, or longer slots, have fewer")]
    Large {
        /// Number of variables for the jobs that share servers.
        variables: usize,
        /// Maximum number of variables.
        most: usize,
    },
    /// The solver failed.
    #[error(transparent)]
    Solver(#[from] SolverError),
}

/// Maximum number of variables. More take hours.
const MOST_VARIABLES: usize = 100_000;

/// A server: its number of workers, and its upload times.
struct Host {
    workers: f64,
    kinds: Vec<String>,
    place: Place,
}

/// A job in slots.
struct Task {
    arrival: i64,
    chunks: f64,
    /// p: the number of slots that a chunk trains.
    each: f64,
    /// Allowed servers, with the number of slots of an upload.
    hosts: Vec<(usize, i64)>,
}

/// The relaxed optimum for these servers and jobs with their arrivals.
///
/// # Errors
/// A job has no chunks, no mini-batch time, or no server with its kind of GPU; a server has an invalid label; there are
/// too many variables; or the solver failed.
///
/// ```
/// use std::collections::BTreeMap;
/// use trainmaster_core::{Span, Time, job::{Dataset, JobSpec, Slots}, server::ServerSpec, solver};
/// use trainmaster_sim::offline::relaxed;
/// let mut job = JobSpec::minimal("a");
/// job.worker.demand = BTreeMap::from([("gpu".into(), 1000)]);
/// // A chunk trains for 2 · 3 · 600 s, an hour.
/// job.dataset = Some(Dataset {
///     chunks: 2, epochs: 2, batches_per_chunk: 3, batch_time: Some(Span::seconds(600)), ..Dataset::default()
/// });
/// let server = ServerSpec { name: "s".into(), devices: vec!["gpu".into()], ..ServerSpec::default() };
/// let hour = Slots { length: Span::seconds(3600) };
/// let solver = solver::find("microlp").unwrap();
/// // One GPU: one chunk trains from the start, the other from the second hour on; time counts to the hour's beginning.
/// let best = relaxed(&[server], [(Time::default(), &job)], hour, solver).unwrap();
/// assert_eq!((best.fractional_s, best.completion_s), (0.5 * 3600.0, 1.0 * 3600.0));
/// ```
pub fn relaxed<'a>(
    servers: &[ServerSpec],
    jobs: impl IntoIterator<Item = (Time, &'a JobSpec)>,
    slots: Slots,
    solver: &dyn Solver,
) -> Result<Relaxed, RelaxedError> {
    let hosts = servers.iter().map(host).collect::<Result<Vec<_>, _>>()?;
    let tasks = jobs.into_iter().map(|(at, spec)| task(at, spec, &hosts, slots)).collect::<Result<Vec<_>, _>>()?;
    let mut best = Relaxed::default();
    for group in groups(&tasks, hosts.len()) {
        let group: Vec<&Task> = group.into_iter().map(|task| &tasks[task]).collect();
        let fractional = solve(&group, &hosts, solver)? * slots.length.as_seconds();
        best.fractional_s += fractional;
        best.completion_s += fractional;
        best.completion_s += group.iter().map(|task| task.each / 2.0 * slots.length.as_seconds()).sum::<f64>();
    }
    Ok(best)
}

fn host(server: &ServerSpec) -> Result<Host, RelaxedError> {
    let wrong = |problem| RelaxedError::Server { server: server.name.clone(), problem };
    let mut kinds = server.devices.clone();
    kinds.sort_unstable();
    kinds.dedup();
    Ok(Host { workers: server.devices.len() as f64, kinds, place: Place::of(&server.labels).map_err(wrong)? })
}

fn task(arrival: Time, spec: &JobSpec, hosts: &[Host], slots: Slots) -> Result<Task, RelaxedError> {
    let wrong = |problem| RelaxedError::Job { job: spec.name.clone(), problem };
    let Some(Dataset { chunks, epochs, batches_per_chunk, batch_time: Some(each), upload, .. }) = &spec.dataset else {
        return Err(wrong("dataset: it needs chunks, and the batch_time of one mini-batch"));
    };
    let kind = spec.worker.demand.keys().find(|name| is_gpu(name)).ok_or_else(|| wrong("worker: it needs a gpu"))?;
    let has = |host: &&Host| host.kinds.iter().any(|one| one == kind || kind == "gpu");
    // Upload times in whole slots, without the last one, so that the result is a lower bound.
    let away = |host: &Host| host.place.upload(upload).0.div_euclid(slots.length.0);
    let eligible: Vec<_> =
        hosts.iter().enumerate().filter(|(_, host)| has(host)).map(|(at, host)| (at, away(host))).collect();
    if eligible.is_empty() {
        return Err(wrong("worker: no server has such a gpu"));
    }
    let trains = Span(each.0 * i64::from(*epochs) * i64::from(*batches_per_chunk));
    Ok(Task {
        arrival: slots.of(arrival),
        chunks: f64::from(*chunks),
        each: trains.as_seconds() / slots.length.as_seconds(),
        hosts: eligible,
    })
}

/// Groups of jobs that share servers, directly or indirectly.
fn groups(tasks: &[Task], hosts: usize) -> Vec<Vec<usize>> {
    let mut group_of: Vec<usize> = (0..hosts).collect();
    for task in tasks {
        let joined: Vec<usize> = task.hosts.iter().map(|(host, _)| group_of[*host]).collect();
        group_of.iter_mut().filter(|group| joined.contains(group)).for_each(|group| *group = joined[0]);
    }
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (number, task) in tasks.iter().enumerate() {
        groups.entry(group_of[task.hosts[0].0]).or_default().push(number);
    }
    groups.into_values().collect()
}

/// Σ of the average fractional flow times, in slots.
fn solve(tasks: &[&Task], hosts: &[Host], solver: &dyn Solver) -> Result<f64, RelaxedError> {
    let all: f64 = tasks.iter().map(|task| task.chunks).sum();
    let endless = |host: usize| hosts[host].workers >= all;
    // Work after this slot could have been done earlier: in a cloud that is never full, or with one worker after the
    // last upload.
    let last_upload = tasks.iter().flat_map(|task| task.hosts.iter().map(|(_, away)| task.arrival + away)).max();
    let alone: f64 = tasks.iter().map(|task| (task.chunks * task.each).ceil()).sum();
    let end = |task: &Task| {
        let cloud = task.hosts.iter().filter(|(host, _)| endless(*host)).map(|(_, away)| task.arrival + away).min();
        cloud.map_or(last_upload.unwrap_or(0) + alone as i64, |from| from + task.each.ceil() as i64)
    };
    let variables: usize = tasks
        .iter()
        .flat_map(|task| task.hosts.iter().map(|(_, away)| (end(task) - task.arrival - away).max(0) as usize))
        .sum();
    if variables > MOST_VARIABLES {
        return Err(RelaxedError::Large { variables, most: MOST_VARIABLES });
    }
    let mut model = Model::default();
    let mut on_server: BTreeMap<(usize, i64), Vec<Variable>> = BTreeMap::new();
    for task in tasks {
        let mut at: BTreeMap<i64, (Vec<Variable>, f64)> = BTreeMap::new();
        for (host, away) in &task.hosts {
            let most = hosts[*host].workers.min(task.chunks);
            for slot in task.arrival + away..end(task) {
                let flow = (slot - task.arrival) as f64 / (task.chunks * task.each);
                let trained = model.real(0.0, most, -flow);
                let (all, sum) = at.entry(slot).or_default();
                all.push(trained);
                *sum += most;
                if !endless(*host) {
                    on_server.entry((*host, slot)).or_default().push(trained);
                }
            }
        }
        let work = at.values().flat_map(|(all, _)| all).map(|trained| (*trained, 1.0));
        model.at_least(work, task.chunks * task.each);
        // (4e), where it could be violated.
        for (all, _) in at.into_values().filter(|(_, most)| *most > task.chunks) {
            model.at_most(all.into_iter().map(|trained| (trained, 1.0)), task.chunks);
        }
    }
    // (4b). For a single job the variable's own bound is sufficient.
    for ((host, _), trained) in on_server.into_iter().filter(|(_, trained)| trained.len() > 1) {
        model.at_most(trained.into_iter().map(|trained| (trained, 1.0)), hosts[host].workers);
    }
    Ok(-solver.solve(&model, Limit::default(), &[])?.value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainmaster_core::solver;

    const HOUR: Slots = Slots { length: Span::seconds(3600) };

    /// A job whose chunks train for `hours` hours each.
    fn job(kind: &str, chunks: u32, hours: u32) -> JobSpec {
        let mut job = JobSpec::minimal("a");
        job.worker.demand = BTreeMap::from([(kind.to_owned(), 1000)]);
        job.dataset = Some(Dataset {
            chunks,
            epochs: hours,
            batches_per_chunk: 6,
            batch_time: Some(Span::seconds(600)),
            upload: "here".into(),
            ..Dataset::default()
        });
        job
    }

    fn server(kind: &str, gpus: usize, hours_away: u32) -> ServerSpec {
        ServerSpec {
            name: "s".into(),
            devices: vec![kind.into(); gpus],
            labels: BTreeMap::from([("upload.here".into(), format!("{hours_away}h"))]),
            ..ServerSpec::default()
        }
    }

    /// Average fractional flow time and average completion time, in hours.
    fn hours(servers: &[ServerSpec], jobs: &[(i64, JobSpec)]) -> (f64, f64) {
        let jobs = jobs.iter().map(|(at, spec)| (Time(at * 3_600_000), spec));
        let best = relaxed(servers, jobs, HOUR, solver::SOLVERS[0]).unwrap();
        ((best.fractional_s / 36.0).round() / 100.0, (best.completion_s / 36.0).round() / 100.0)
    }

    #[test]
    fn a_job_alone_trains_all_its_chunks_at_once_where_the_upload_is_shortest() {
        // Hours 3 to 6 at the edge, where work counts from the start of its hour: 3 + (0 + 1 + 2 + 3)/4.
        let servers = [server("gpu:a", 2, 3), server("gpu:b", 99, 0), server("gpu:a", 99, 12)];
        assert_eq!(hours(&servers, &[(7, job("gpu:a", 2, 4))]), (4.5, 6.5));
    }

    #[test]
    fn what_the_edge_has_no_room_for_goes_to_the_cloud_or_waits_whichever_is_sooner() {
        let one = |away: u32| [server("gpu", 1, 0), server("gpu", 99, away)];
        // Two chunks of two hours: the second one in hours 2 and 3 at the edge, or from hour 1 on in the cloud.
        assert_eq!(hours(&one(9), &[(0, job("gpu", 2, 2))]).0, (0.0 + 1.0 + 2.0 + 3.0) / 4.0);
        assert_eq!(hours(&one(1), &[(0, job("gpu", 2, 2))]).0, (0.0 + 1.0 + 1.0 + 2.0) / 4.0);
    }

    #[test]
    fn short_jobs_go_first_and_kinds_of_gpu_are_apart() {
        // The short one in hour 0, the long one in 1 to 3. The other order would take 0 + 1 + 2 and 3.
        let both = [(0, job("gpu:a", 1, 3)), (0, job("gpu:a", 1, 1))];
        assert_eq!(hours(&[server("gpu:a", 1, 0)], &both).0, 0.0 + (1.0 + 2.0 + 3.0) / 3.0);
        let apart = [(0, job("gpu:a", 1, 3)), (0, job("gpu:b", 1, 1))];
        assert_eq!(hours(&[server("gpu:a", 1, 0), server("gpu:b", 1, 0)], &apart).0, 0.0 + 1.0);
    }

    #[test]
    fn jobs_that_can_not_be_counted_are_named() {
        let best = |job: JobSpec, servers: &[ServerSpec]| {
            relaxed(servers, [(Time::default(), &job)], HOUR, solver::SOLVERS[0]).unwrap_err().to_string()
        };
        let there = [server("gpu:b", 1, 0)];
        assert!(best(JobSpec::minimal("x"), &there).starts_with("job x: dataset"));
        assert!(best(job("gpu:a", 1, 1), &there).contains("no server has such a gpu"));
        assert!(best(job("cpu", 1, 1), &there).contains("needs a gpu"));
        let large = best(job("gpu", 1_000, 1_000), &there);
        assert!(large.contains("1000000 variables are more than 100000"), "{large}");
    }
}
