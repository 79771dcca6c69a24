//! The experiments of OASiS (Bao et al., INFOCOM'18, §V). They were fixed before any engine ran on them.
//!
//! - **Slots**: of an hour; T = 300 (`oasis`), 100 (`oasis-timely`), 10 (`oasis-small`) (Fig. 3, 4, 5).
//! - **Servers**: half for workers (EC2 P2 and G3 at random), half for parameter servers (c4.8xlarge); 20–50 Gbit/s
//!   (§V-A; the paper has it the other way round, but C4 has no GPU).
//! - **Disk**: 500 GiB per server (our choice; never scarce).
//! - **Worker**: 0–4 GPU, 1–10 vCPU, 2–32 GiB, 5–10 GiB disk, 0.1–5 Gbit/s (§V-A).
//! - **Parameter server**: 1–10 vCPU, 2–32 GiB, 5–10 GiB disk, 5–20 Gbit/s (§V-A).
//! - **E, N, M**: 50–200 epochs, 5–100 chunks, 10–100 mini-batches per chunk (§V-A).
//! - **τ, e**: 0.001–0.1 slot per mini-batch; 30–575 MB of gradients (§V-A).
//! - **Utility**: sigmoid with γ1 1–100, γ3 1–15 slots, and γ2 = 0 (10 %), 0.01–1 (55 %), 4–6 (35 %) (§V-A).
//! - **Arrivals**: in spikes over all slots, at their start ("as in the Google cluster trace").
//! - **Requested shape**: 1–30 workers (at most N), and the minimum of parameter servers for their bandwidth (as FIFO
//!   and RRH use it, §V-A).
//! - **Maximum of parameter servers**: as many as N workers need (our choice; more would only use room).
//!
//! All values are drawn uniformly. A job in the middle of these ranges needs hundreds of slots even with N workers at
//! once. So 44 % of the jobs of `oasis` can't finish within 300 slots, and only 2 % can finish within 15: most utility
//! is lost under any engine. The paper's experiments on timeliness and on single jobs can't have had such jobs.
//! Therefore `oasis-timely` draws τ so that E·m ≤ γ3: a job with N workers ends by its target. The three servers for
//! workers in `oasis-small` can't hold N workers, and no such job would end there in ten slots. They hold three or four
//! workers with four GPUs on average. So in `oasis-small` three workers are enough to end by the target: E·N·m ≤ 3·γ3.
//! If no τ from 0.001 on is small enough, the whole job except its class is drawn again. This favours few epochs, few
//! mini-batches, fast networks and, in `oasis-small`, few chunks.
//!
//! Fig. 4: 100 time-sensitive and 100 time-critical jobs. Fig. 5: 10 jobs, γ1 from 50 to 100, 6 servers (3 to 12 in the
//! paper). Training is asynchronous with the durations of the paper's model. Starts and stops cost nothing, as in the
//! paper.

use std::collections::BTreeMap;

use super::{Entry, Request, SimJob, Workload, WorkloadError, spikes};
use crate::{draws::Draws, truth::Goal, truth::Speed, truth::Truth};
use trainmaster_core::{
    job::{Convergence, Dataset, JobSpec, RoleSpec, TrainingMode, Utility, UtilityKind},
    server::ServerSpec,
    settings::Parameter,
    time::{Span, Time},
};

const SOURCE: &str = "Bao et al., OASiS, INFOCOM'18, §V";
const SLOT: Span = Span::seconds(3600);

pub(super) const MIXED: Entry = Entry {
    name: "oasis",
    summary: "200 jobs in 300 slots of an hour on 50 + 50 servers, times as in the paper: few can be in time",
    source: SOURCE,
    build: |request| {
        build(request, Kind { slots: 300, jobs: 200, servers: 100, in_time: None, value: 1.0, class: mixed })
    },
};

pub(super) const TIMELY: Entry = Entry {
    name: "oasis-timely",
    summary: "100 time-sensitive and 100 time-critical jobs in 100 slots; with all workers each would be in time",
    source: SOURCE,
    build: |request| {
        let class = |number: u32, _| if number.is_multiple_of(2) { Class::Sensitive } else { Class::Critical };
        build(request, Kind { slots: 100, jobs: 200, servers: 100, in_time: Some(u32::MAX), value: 1.0, class })
    },
};

pub(super) const SMALL: Entry = Entry {
    name: "oasis-small",
    summary: "10 jobs in 10 slots on 3 + 3 servers, small enough for the offline optimum",
    source: SOURCE,
    build: |request| {
        build(request, Kind { slots: 10, jobs: 10, servers: 6, in_time: Some(3), value: 50.0, class: mixed })
    },
};

/// The differences between the experiments.
struct Kind {
    slots: u32,
    jobs: u32,
    servers: u32,
    /// τ is drawn so that each job ends by its target with this number of workers at once, or with N.
    in_time: Option<u32>,
    /// Minimum of γ1.
    value: f64,
    class: fn(u32, Draws) -> Class,
}

#[derive(Clone, Copy)]
enum Class {
    Insensitive,
    Sensitive,
    Critical,
}

fn mixed(_: u32, draws: Draws) -> Class {
    match draws.unit(0) {
        draw if draw < 0.10 => Class::Insensitive,
        draw if draw < 0.65 => Class::Sensitive,
        _ => Class::Critical,
    }
}

/// GPUs, vCPUs and GiB of p2.xlarge, 8xlarge, 16xlarge and g3.4xlarge, 8xlarge, 16xlarge.
const WORKER_SERVERS: [(i64, i64, i64); 6] =
    [(1, 4, 61), (8, 32, 488), (16, 64, 732), (1, 16, 122), (2, 32, 244), (4, 64, 488)];
/// vCPUs and GiB of c4.8xlarge.
const PARAMETER_SERVER: (i64, i64) = (36, 60);

fn build(request: &Request, kind: Kind) -> Result<Workload, WorkloadError> {
    let draws = Draws::new(request.seed);
    let servers = request.servers.unwrap_or(kind.servers);
    if servers < 2 {
        let problem = format!("{servers} must be at least 2: workers and parameter servers have servers of their own");
        return Err(WorkloadError { key: "servers", problem });
    }
    let jobs = (0..request.jobs.unwrap_or(kind.jobs)).map(|number| {
        let slot = spikes(draws.of(1), number.into(), kind.slots) as i64;
        job(number, Time(slot * SLOT.0), &kind, draws.of(2).of(number.into()))
    });
    let hour = || Parameter::Text("1h".into());
    let round_robin = || Parameter::Text("round_robin".into());
    Ok(Workload {
        jobs: jobs.collect(),
        servers: (0..servers).map(|number| server(number, draws.of(3).of(number.into()))).collect(),
        report_every: Span::seconds(600),
        end: Some(Time(i64::from(kind.slots) * SLOT.0)),
        parameters: BTreeMap::from([
            ("slot".to_owned(), hour()),
            ("oasis.horizon".to_owned(), Parameter::Number(kind.slots.into())),
            ("timespan".to_owned(), Parameter::Text("fixed".into())),
            ("interval".to_owned(), hour()),
            ("on_change".to_owned(), Parameter::Flag(true)),
            ("fifo.placement".to_owned(), round_robin()),
            ("drf.placement".to_owned(), round_robin()),
            ("drf.servers".to_owned(), Parameter::Text("fewest".into())),
        ]),
        ..Workload::default()
    })
}

fn server(number: u32, draws: Draws) -> ServerSpec {
    let workers = number.is_multiple_of(2);
    let (gpus, cpus, gib) = if workers {
        WORKER_SERVERS[draws.whole(0, 0, WORKER_SERVERS.len() as u64 - 1) as usize]
    } else {
        (0, PARAMETER_SERVER.0, PARAMETER_SERVER.1)
    };
    let bandwidth = draws.whole(1, 20_000, 50_000) as i64;
    let capacity = [("cpu", cpus * 1000), ("memory", gib << 10), ("disk", 500 << 10), ("bandwidth", bandwidth)];
    ServerSpec {
        name: format!("{}{}", if workers { "w" } else { "p" }, number / 2),
        capacity: capacity.map(|(name, have)| (name.to_owned(), have)).into(),
        devices: vec!["gpu".into(); gpus as usize],
        labels: BTreeMap::from([("hosts".to_owned(), if workers { "workers" } else { "servers" }.to_owned())]),
        draining: false,
    }
}

/// The training work of a job, and its network.
struct Training {
    epochs: u32,
    chunks: u32,
    batches: u32,
    /// τ.
    batch_time: Span,
    /// e, in MiB.
    size: i64,
    /// b and B in Mbit/s.
    bandwidth: (i64, i64),
    /// γ3 in slots.
    target: f64,
}

impl Training {
    fn drawn(in_time: Option<u32>, draws: Draws) -> Self {
        // About half of the draws have a suitable τ for N workers, and one in eighty for three workers.
        for attempt in 0.. {
            let draws = draws.of(attempt);
            let mut training = Self {
                epochs: draws.whole(0, 50, 200) as u32,
                chunks: draws.whole(1, 5, 100) as u32,
                batches: draws.whole(2, 10, 100) as u32,
                batch_time: Span::ZERO,
                size: (draws.between(3, 30e6, 575e6) / f64::from(1 << 20)).round() as i64,
                bandwidth: (draws.whole(4, 100, 5000) as i64, draws.whole(5, 5000, 20_000) as i64),
                target: draws.between(6, 1.0, 15.0),
            };
            let most = in_time.map_or(0.1, |workers| training.longest_batch_time(workers).min(0.1));
            if most >= 0.001 {
                training.batch_time = Span((draws.between(7, 0.001, most) * SLOT.0 as f64) as i64);
                return training;
            }
        }
        unreachable!("an endless search")
    }

    /// The τ, in slots, with which this number of workers (at most N) ends at the target: γ3·w / (E·N·M) − 2e/b.
    fn longest_batch_time(&self, workers: u32) -> f64 {
        let share = f64::from(workers.min(self.chunks)) / f64::from(self.chunks);
        self.target * share / f64::from(self.epochs * self.batches) - self.exchange() / SLOT.as_seconds()
    }

    /// 2e/b in seconds.
    fn exchange(&self) -> f64 {
        2.0 * 8.0 * (self.size << 20) as f64 / (self.bandwidth.0 as f64 * 1e6)
    }

    /// ⌈w·b/B⌉.
    fn servers_for(&self, workers: u32) -> u32 {
        (u64::from(workers) * self.bandwidth.0 as u64).div_ceil(self.bandwidth.1 as u64) as u32
    }
}

fn job(number: u32, arrival: Time, kind: &Kind, draws: Draws) -> SimJob {
    let training = Training::drawn(kind.in_time, draws.of(1));
    let draws = draws.of(2);
    let role = |key: u64, gpus: i64, bandwidth: i64, max: u32, requested: u32| {
        let whole = |at: u64, from: u64, to: u64| draws.of(key).whole(at, from, to) as i64;
        let mut demand = vec![
            ("gpu", gpus * 1000),
            ("cpu", whole(0, 1, 10) * 1000),
            ("memory", whole(1, 2, 32) << 10),
            ("disk", whole(2, 5, 10) << 10),
            ("bandwidth", bandwidth),
        ];
        demand.retain(|(_, amount)| *amount > 0);
        RoleSpec::of(&demand, 1..=max, requested)
    };
    let requested = draws.whole(0, 1, 30).min(training.chunks.into()) as u32;
    let decay = match (kind.class)(number, draws.of(1)) {
        Class::Insensitive => 0.0,
        Class::Sensitive => draws.between(2, 0.01, 1.0),
        Class::Critical => draws.between(2, 4.0, 6.0),
    };
    let gpus = draws.whole(3, 0, 4) as i64;
    let spec = JobSpec {
        mode: TrainingMode::Async,
        convergence: Convergence { max_epochs: training.epochs, ..Convergence::default() },
        worker: role(4, gpus, training.bandwidth.0, training.chunks, requested),
        server: Some(role(
            5,
            0,
            training.bandwidth.1,
            training.servers_for(training.chunks),
            training.servers_for(requested),
        )),
        model_size: training.size,
        utility: Some(Utility {
            value: draws.between(6, kind.value, 100.0),
            decay,
            target: Span((training.target * SLOT.0 as f64) as i64),
            ..Utility::new(UtilityKind::Sigmoid)
        }),
        dataset: Some(Dataset {
            chunks: training.chunks,
            batches_per_chunk: training.batches,
            epochs: training.epochs,
            batch_time: Some(training.batch_time),
            ..Dataset::default()
        }),
        ..JobSpec::minimal(&format!("job-{number}"))
    };
    let speed = Speed::MiniBatches {
        seconds: training.batch_time.as_seconds() + training.exchange(),
        per_server: training.bandwidth.1 as f64 / training.bandwidth.0 as f64,
        together: None,
    };
    let truth = Truth::of(speed, Goal::Epochs(training.epochs, None));
    SimJob::new(arrival, spec, truth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::Instance;
    use trainmaster_core::job::{Slots, Training as Work};

    fn built(entry: &Entry, jobs: u32) -> Workload {
        entry.build(&Request { seed: 3, jobs: Some(jobs), servers: None }).unwrap()
    }

    #[test]
    fn every_job_is_valid_and_in_the_papers_ranges() {
        for entry in [&MIXED, &TIMELY, &SMALL] {
            let workload = built(entry, 200);
            for job in &workload.jobs {
                job.spec.validate().unwrap();
                let demand = |role: &RoleSpec, name: &str| role.demand.get(name).copied().unwrap_or(0);
                let server = job.spec.server.as_ref().unwrap();
                assert!((0..=4000).contains(&demand(&job.spec.worker, "gpu")));
                assert!((100..=5000).contains(&demand(&job.spec.worker, "bandwidth")));
                assert!((5000..=20_000).contains(&demand(server, "bandwidth")));
                assert!((1..=30).contains(&job.spec.worker.requested));
                let data = job.spec.dataset.as_ref().unwrap();
                let time = data.batch_time.unwrap().0;
                assert!((3_600..=360_000).contains(&time), "{time} ms");
                assert_eq!(job.arrival.0 % SLOT.0, 0);
                assert!(workload.end.is_some_and(|end| job.arrival < end));
                // The engines' model equals the truth.
                let work = Work::new(&job.spec, None).unwrap();
                let Speed::MiniBatches { seconds, .. } = job.truth.speed else { panic!("of another kind") };
                let chunk = seconds * f64::from(data.batches_per_chunk) / 3600.0;
                assert!((work.slots_per_chunk(SLOT) / chunk - 1.0).abs() < 1e-9);
                let target = job.spec.utility.as_ref().unwrap().target.as_seconds() / 3600.0;
                let workers = match entry.name {
                    "oasis-small" => 3,
                    _ => data.chunks,
                };
                if entry.name != MIXED.name {
                    let alone = f64::from(data.epochs * data.chunks) * chunk / f64::from(workers);
                    assert!(alone <= target * (1.0 + 1e-9), "with {workers} workers it would be in time");
                }
            }
        }
    }

    #[test]
    fn few_jobs_with_the_papers_times_can_meet_their_target() {
        let workload = built(&MIXED, 4000);
        let shortest = |job: &SimJob| Work::new(&job.spec, None).unwrap().shortest(SLOT);
        let share = |most: u64| {
            workload.jobs.iter().filter(|job| shortest(job) <= most).count() as f64 / workload.jobs.len() as f64
        };
        assert!((share(300) - 0.56).abs() < 0.04, "{}", share(300));
        assert!((share(15) - 0.02).abs() < 0.015, "{}", share(15));
        let decays: Vec<f64> = workload.jobs.iter().map(|job| job.spec.utility.as_ref().unwrap().decay).collect();
        let part = |of: &dyn Fn(f64) -> bool| decays.iter().filter(|decay| of(**decay)).count() as f64 / 4000.0;
        assert!((part(&|decay| decay == 0.0) - 0.10).abs() < 0.02);
        assert!((part(&|decay| decay >= 4.0) - 0.35).abs() < 0.03);
    }

    #[test]
    fn workers_and_parameter_servers_have_separate_servers() {
        let workload = built(&SMALL, 10);
        let hosts: Vec<&str> = workload.servers.iter().map(|server| server.labels["hosts"].as_str()).collect();
        assert_eq!(hosts, ["workers", "servers", "workers", "servers", "workers", "servers"]);
        let jobs = workload.jobs.iter().map(|job| (job.arrival, &job.spec));
        let instance = Instance::of(&workload.servers, jobs, Slots { length: SLOT }, 10).unwrap();
        assert_eq!((instance.jobs.len(), instance.hosts.len()), (10, 6));
        let one = SMALL.build(&Request { seed: 1, jobs: None, servers: Some(1) }).unwrap_err();
        assert!(one.to_string().contains("at least 2"), "{one}");
    }
}
