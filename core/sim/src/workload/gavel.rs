//! Jobs of fixed size on three types of GPU, with the speeds that Gavel's authors measured.
//!
//! Narayanan, Santhanam, Kazhamiaka, Phanishayee and Zaharia, *Heterogeneity-Aware Cluster Scheduling Policies for Deep
//! Learning Workloads*, OSDI'20. Their file has the steps per second of each model and batch on K80, P100 and V100,
//! with 1, 2, 4 and 8 GPUs, on one server and on several. As in their simulations (§7.1):
//!
//! - **Cluster**: 36 GPUs of each type.
//! - **Jobs**: a model and batch, evenly drawn; 1 GPU (70 %), 2 (10 %), 4 (15 %) or 8 (5 %).
//! - **Duration on V100**: 10^x minutes, x evenly from 1.5 to 3 (80 %) or from 3 to 4.
//! - **Arrivals**: Poisson, here three jobs an hour.
//!
//! Assumed: 4 GPUs per server; a job may have any type on which it was measured, on one server and on several; start
//! and checkpoint 30 and 10 s; epochs of about ten minutes on V100, at most a hundred.

use std::sync::Arc;

use super::{Request, SimJob, Workload, WorkloadError};
use crate::{
    Draws,
    truth::{Goal, Speed, Truth},
};
use trainmaster_core::{
    job::{Convergence, JobSpec, Resize, RoleSpec, TrainingMode},
    server::ServerSpec,
    time::{Span, Time},
};

/// The types of GPU.
pub const TYPES: [&str; 3] = ["k80", "p100", "v100"];
/// The type for which durations are drawn.
const V100: usize = 2;
/// Number of servers, as many of each type, and their GPUs.
const SERVERS: u32 = 27;
const GPUS: u32 = 4;
const JOBS: u32 = 200;
const PER_HOUR: f64 = 3.0;
/// Share of jobs with each number of GPUs.
const SIZES: [(f64, u32); 4] = [(0.7, 1), (0.1, 2), (0.15, 4), (0.05, 8)];

/// The measured speeds of a model with a batch and a number of GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Name of the model and the batch: letters, digits and `-`.
    pub model: String,
    /// Examples per step of one GPU.
    pub batch: u64,
    /// Number of GPUs.
    pub gpus: u32,
    /// Steps per second on each of [`TYPES`], on one server and on several. 0: it doesn't run there.
    pub speeds: [(f64, f64); 3],
}

/// Jobs of these models.
///
/// # Errors
/// Nothing was measured on V100 with one of the numbers of GPUs.
pub fn workload(measured: &[Measured], request: &Request) -> Result<Workload, WorkloadError> {
    let servers = request.servers.unwrap_or(SERVERS);
    let fits = |one: &&Measured, gpus: u32| one.gpus == gpus && runs_on(one, V100);
    let by_size = SIZES.map(|(_, gpus)| measured.iter().filter(|one| fits(one, gpus)).collect::<Vec<_>>());
    if let Some(at) = by_size.iter().position(Vec::is_empty) {
        let problem = format!("no model was measured with {} GPUs of type {}", SIZES[at].1, TYPES[V100]);
        return Err(WorkloadError { key: "workload", problem });
    }
    let types: Arc<[u8]> = (0..servers).map(|server| type_of(server) as u8).collect();
    let draws = Draws::new(request.seed);
    let mut arrival = 0.0;
    let jobs = (0..request.jobs.unwrap_or(JOBS)).map(|number| {
        let draws = draws.of(number.into());
        arrival += draws.exponential(0) * 3600.0 / PER_HOUR * f64::from(SERVERS) / f64::from(servers);
        let mut share = draws.unit(1);
        let size = SIZES.iter().position(|(part, _)| {
            share -= part;
            share < 0.0
        });
        let models = &by_size[size.unwrap_or(0)];
        let model = models[draws.whole(2, 0, models.len() as u64 - 1) as usize];
        let (low, high) = if draws.unit(3) < 0.8 { (1.5, 3.0) } else { (3.0, 4.0) };
        let seconds = 60.0 * libm::exp10(draws.between(4, low, high));
        job(number, model, Time(Span::from_seconds(arrival).0), seconds, &types)
    });
    Ok(Workload {
        jobs: jobs.collect(),
        servers: (0..servers).map(server).collect(),
        enact_delay: Span::seconds(1),
        report_every: Span::seconds(60),
        ..Workload::default()
    })
}

/// Speed on one server where the GPUs fit, otherwise on several.
fn speed_on(measured: &Measured, kind: usize) -> f64 {
    let (together, apart) = measured.speeds[kind];
    if measured.gpus <= GPUS { together } else { apart }
}

/// Whether it runs on a type wherever its GPUs are.
fn runs_on(measured: &Measured, kind: usize) -> bool {
    let (together, apart) = measured.speeds[kind];
    (together > 0.0 || measured.gpus > GPUS) && (apart > 0.0 || measured.gpus == 1)
}

/// The type of a server's GPUs, as an index in [`TYPES`].
fn type_of(server: u32) -> usize {
    server as usize % TYPES.len()
}

fn server(number: u32) -> ServerSpec {
    let gpus = i64::from(GPUS);
    ServerSpec {
        name: format!("{}-{number}", TYPES[type_of(number)]),
        capacity: [("cpu", gpus * 6000), ("memory", (gpus * 64) << 10)]
            .map(|(name, have)| (name.to_owned(), have))
            .into(),
        devices: vec![format!("gpu:{}", TYPES[type_of(number)]); GPUS as usize],
        ..ServerSpec::default()
    }
}

fn job(number: u32, measured: &Measured, arrival: Time, seconds: f64, types: &Arc<[u8]>) -> SimJob {
    let steps = (seconds * speed_on(measured, V100)).max(1.0);
    let epochs = (seconds / 600.0).ceil().clamp(1.0, 100.0);
    let per_epoch = (steps / epochs).ceil().max(1.0);
    let allowed: Vec<&str> =
        (0..TYPES.len()).rev().filter(|kind| runs_on(measured, *kind)).map(|at| TYPES[at]).collect();
    // A list of one type is that type.
    let kinds = if allowed.len() == TYPES.len() { "gpu".into() } else { format!("gpu:{}", allowed.join("|")) };
    let gpus = measured.gpus;
    let batch = measured.batch * u64::from(gpus);
    let spec = JobSpec {
        model: format!("{}-x{gpus}", measured.model),
        mode: TrainingMode::AllReduce,
        resize: Resize::Fixed,
        batch,
        examples: batch * per_epoch as u64,
        convergence: Convergence::after(epochs as u32),
        worker: RoleSpec::of(&[(&kinds, 1000), ("cpu", 4000), ("memory", 32 << 10)], gpus..=gpus, gpus),
        server: None,
        ..JobSpec::minimal(&format!("{}-{number}", measured.model))
    };
    let truth = Truth {
        start: Span::seconds(30),
        checkpoint: Span::seconds(10),
        ..Truth::of(
            Speed::OfTypes { servers: types.clone(), speeds: measured.speeds.into() },
            Goal::Epochs(epochs as u32, None),
        )
    };
    SimJob::new(arrival, spec, truth)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Vec<Measured> {
        let of = |gpus: u32, k80: f64| {
            let all = f64::from(gpus);
            let speeds = [(k80, k80 / 2.0), (3.0 * all, 2.0 * all), (4.0 * all, 3.0 * all)];
            Measured { model: format!("net-{gpus}"), batch: 16, gpus, speeds }
        };
        vec![of(1, 1.0), of(2, 2.0), of(4, 0.0), of(8, 8.0)]
    }

    #[test]
    fn jobs_have_the_drawn_time_on_the_fastest_type_and_only_types_that_hold_them() {
        let request = Request { seed: 3, jobs: Some(300), servers: None };
        let workload = workload(&measured(), &request).unwrap();
        assert_eq!((workload.jobs.len(), workload.servers.len()), (300, 27));
        let mut sizes = [0; 9];
        for job in &workload.jobs {
            job.spec.validate().unwrap();
            let gpus = job.spec.worker.requested;
            sizes[gpus as usize] += 1;
            assert_eq!(job.spec.worker.demand.contains_key("gpu:v100|p100"), gpus == 4, "{:?}", job.spec.worker);
            let steps =
                job.truth.steps_per_epoch(&job.spec) * u64::from(job.truth.goal.epochs(&job.spec, Draws::new(1)));
            let seconds = steps as f64 / if gpus > GPUS { 3.0 } else { 4.0 } / f64::from(gpus);
            assert!((60.0 * 31.0..60.0 * 10_200.0).contains(&seconds), "{seconds}");
        }
        assert!((180..240).contains(&sizes[1]) && sizes[2] > 0 && sizes[4] > 0 && sizes[8] > 0, "{sizes:?}");
    }

    #[test]
    fn a_file_without_a_size_is_refused() {
        let request = Request { seed: 3, jobs: Some(3), servers: None };
        let error = workload(&measured()[..3], &request).unwrap_err().to_string();
        assert!(error.contains("8 GPUs"), "{error}");
    }
}
