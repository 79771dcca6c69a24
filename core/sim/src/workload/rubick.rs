//! Jobs whose speed is a table: large models under measured execution plans, on 8 servers of 8 GPUs.
//!
//! Zhang et al., *Rubick: Exploiting Job Reconfigurability for Deep Learning Cluster Scheduling*, MLSys'25. Their files
//! have the seconds of an iteration of each model by execution plan and placement, and the jobs of their simulations:
//! arrival, model, number of GPUs and iterations. Plans differ in tensor, pipeline and data parallelism, ZeRO,
//! offloading and checkpointing of activations. So a speed can jump from one number of GPUs to the next, and fall.
//!
//! - **Speed**: that of the fastest plan in the measured placement that is nearest to the job's: in the number of
//!   servers, then in the GPUs on each. The program chooses that plan when it starts.
//! - **Sizes**: the numbers of GPUs for which a plan was measured; no others (`worker.sizes`).
//! - **Length**: the iterations of the job's row. Its other columns (the plan and the time of the authors' run, its
//!   bandwidth and service level) are ignored.
//! - **Restart**: 260 s, as in their simulations; here the first start takes 200 s of them, too.
//!
//! Assumed: 8 CPUs per GPU, as in the rows; epochs of about ten minutes in the requested size, at most a hundred.

use std::{collections::BTreeMap, sync::Arc};

use super::{SimJob, Workload, WorkloadError};
use crate::truth::{Goal, PlacedSpeed, Speed, Truth};
use trainmaster_core::{
    job::{Convergence, JobSpec, RoleSpec, Sizes, TrainingMode},
    server::ServerSpec,
    time::{Span, Time},
};

const SERVERS: u32 = 8;
const GPUS: u32 = 8;

/// A measured iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// GPUs on each server, at least one server and none without GPUs.
    pub placement: Vec<u32>,
    /// Seconds of an iteration, above 0.
    pub seconds: f64,
}

/// A job of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Unique name in the file.
    pub name: String,
    /// Time since the file's start.
    pub time: Span,
    /// The model.
    pub application: String,
    /// Number of GPUs.
    pub gpus: u32,
    /// Number of iterations.
    pub steps: u64,
}

/// The measurements of each model.
pub type Models = BTreeMap<String, Vec<Measured>>;

/// The jobs on `servers` servers, 8 by default.
///
/// # Errors
/// Nothing was measured of a job's model, or not with its number of GPUs. The error names the job.
pub fn workload(rows: &[Row], models: &Models, servers: Option<u32>) -> Result<Workload, WorkloadError> {
    let tables: BTreeMap<&str, Arc<[PlacedSpeed]>> =
        models.iter().map(|(name, measured)| (name.as_str(), table(measured))).collect();
    let jobs = rows.iter().map(|row| {
        let table = tables.get(row.application.as_str()).map(Arc::clone).unwrap_or_default();
        job(row, table)
    });
    Ok(Workload {
        jobs: jobs.collect::<Result<Vec<_>, _>>()?,
        servers: (0..servers.unwrap_or(SERVERS)).map(server).collect(),
        enact_delay: Span::seconds(1),
        report_every: Span::seconds(30),
        ..Workload::default()
    })
}

/// The speed of the fastest plan in each placement.
fn table(measured: &[Measured]) -> Arc<[PlacedSpeed]> {
    let mut fastest: BTreeMap<Vec<u32>, f64> = BTreeMap::new();
    for row in measured {
        let mut placement = row.placement.clone();
        placement.sort_unstable_by(|a, b| b.cmp(a));
        let seconds = fastest.entry(placement).or_insert(f64::INFINITY);
        *seconds = seconds.min(row.seconds);
    }
    fastest.into_iter().map(|(placement, seconds)| PlacedSpeed { placement, speed: 1.0 / seconds }).collect()
}

fn server(number: u32) -> ServerSpec {
    ServerSpec {
        name: format!("s{number}"),
        capacity: [("cpu".to_owned(), i64::from(GPUS) * 8000)].into(),
        devices: vec!["gpu:a800".into(); GPUS as usize],
        ..ServerSpec::default()
    }
}

fn job(row: &Row, table: Arc<[PlacedSpeed]>) -> Result<SimJob, WorkloadError> {
    let fail = |key, problem: String| Err(WorkloadError { key, problem: format!("of job {}: {problem}", row.name) });
    let mut sizes: Vec<u32> = table.iter().map(PlacedSpeed::gpus).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let (Some(&least), Some(&most)) = (sizes.first(), sizes.last()) else {
        return fail("application", format!("nothing was measured of {:?}", row.application));
    };
    let listed: Vec<String> = sizes.iter().map(u32::to_string).collect();
    let listed = listed.join(",");
    if sizes.binary_search(&row.gpus).is_err() {
        return fail("num_gpus", format!("{} must be a number with which it was measured: {listed}", row.gpus));
    }
    let of_size = table.iter().filter(|placed| placed.gpus() == row.gpus);
    let fastest = of_size.map(|placed| placed.speed).fold(0.0, f64::max);
    let seconds = row.steps as f64 / fastest;
    let epochs = (seconds / 600.0).ceil().clamp(1.0, 100.0) as u32;
    let spec = JobSpec {
        model: row.application.clone(),
        mode: TrainingMode::AllReduce,
        // One example for each GPU of the cluster: the files tell no batch.
        batch: u64::from(SERVERS * GPUS),
        examples: u64::from(SERVERS * GPUS) * row.steps.div_ceil(epochs.into()),
        convergence: Convergence::after(epochs),
        worker: RoleSpec::of(&[("gpu", 1000), ("cpu", 8000)], least..=most, row.gpus),
        server: None,
        labels: [(Sizes::LABEL.to_owned(), listed)].into(),
        ..JobSpec::minimal(&row.name)
    };
    if let Err(error) = spec.validate() {
        return fail("application", error.to_string());
    }
    let truth = Truth {
        start: Span::seconds(200),
        checkpoint: Span::seconds(60),
        ..Truth::of(Speed::Placed(table), Goal::Epochs(epochs, None))
    };
    Ok(SimJob::new(Time(row.time.0), spec, truth))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainmaster_core::shape::Shape;

    fn models() -> Models {
        let of = |placement: &[u32], seconds: f64| Measured { placement: placement.to_vec(), seconds };
        let llama = vec![of(&[8], 9.4), of(&[8], 12.0), of(&[4, 4], 10.0), of(&[8, 8], 1.1), of(&[1; 16], 2.0)];
        [("llama7".to_owned(), llama), ("none".to_owned(), Vec::new())].into()
    }

    fn row(application: &str, gpus: u32) -> Row {
        Row { name: "j-1".into(), time: Span::seconds(5), application: application.into(), gpus, steps: 1000 }
    }

    #[test]
    fn a_job_has_the_measured_sizes_and_the_fastest_plans() {
        let workload = workload(&[row("llama7", 8)], &models(), None).unwrap();
        let job = &workload.jobs[0];
        job.spec.validate().unwrap();
        assert_eq!((workload.servers.len(), job.arrival), (8, Time(5000)));
        assert_eq!((job.spec.sizes().to_string(), job.spec.bounds().workers), ("8,16".to_owned(), (8, 16)));
        let Speed::Placed(table) = &job.truth.speed else { panic!("of another kind") };
        let speeds: Vec<_> = table.iter().map(|placed| (placed.placement.len(), placed.speed)).collect();
        assert_eq!(speeds, [(16, 0.5), (2, 0.1), (1, 1.0 / 9.4), (2, 1.0 / 1.1)]);
        assert_eq!(job.truth.speed.alone(&job.spec, Shape { workers: 16, servers: 0 }), 0.5);
        // 1,000 iterations are 16 epochs of ten minutes.
        assert_eq!((job.spec.convergence.fixed(), job.truth.steps_per_epoch(&job.spec)), (Some(16), 63));
    }

    #[test]
    fn a_job_that_was_not_measured_is_named() {
        for (row, text) in [
            (row("llama7", 12), "12 must be a number with which it was measured: 8,16"),
            (row("none", 8), "nothing was measured of \"none\""),
            (row("gpt", 8), "nothing was measured of \"gpt\""),
        ] {
            let error = workload(&[row], &models(), None).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("j-1"), "{error}");
        }
    }
}
