//! Model-parallel jobs with deadlines and accuracies, whose tasks can share GPUs (MLFS, §4.1).
//!
//! From the paper: 20 servers with 4 V100, 32 vCPUs and 244 GB (simulated: 550 servers, 2,474 GPUs). 620 jobs in a week
//! (117,325 in 137 days), of five kinds. 1 to 32 GPUs per job; a model has as many partitions as the job has GPUs,
//! except for an SVM. 50 to 100 MB per exchange. Deadline max(1.1·t, U[½, 24] h), with t the job's own time. Urgency 1
//! to 10. OptStop for all jobs, and the required accuracy under load.
//!
//! Our choices, made before any engine ran on it: Arrivals are uniform (weeks of the trace differ a lot). t is
//! log-normal with a median of 40 minutes and a deviation of 1.3, from 5 minutes to a day (most of Philly's jobs take
//! minutes, their mean is hours). The required accuracy is a hundredth below the best accuracy of a job. The job
//! reaches the best near the end of its epochs, and owners request a fifth to a half more epochs. Tasks use a fraction
//! of their demand, by kind, with a deviation of 15 % between windows of ten minutes. The mean use of a GPU is one half
//! (as in Philly), so two tasks often share one without loss, but not always. Traffic entirely between servers makes an
//! iteration a tenth to a half longer.
//!
//! The epochs that owners request and the accuracy that they require are invented, and early stops depend on them.
//! `mlfs-frugal` and `mlfs-strict`, which came later, leave less to gain: owners who request hardly more epochs than
//! they need, and ones who require nearly the best accuracy.
//!
//! `mlfs-equal` came later as well. It has the same jobs, but gives no engine a GPU's second task for free: tasks that
//! share a GPU slow each other down as measured.

use std::collections::BTreeMap;

use super::{Entry, Request, SimJob, Workload, trace};
use crate::{draws::Draws, truth::Curve, truth::Goal, truth::Loss, truth::SlotLoad, truth::Speed, truth::Truth};
use trainmaster_core::{
    job::{Convergence, JobSpec, Partition, Resize, RoleSpec, StopChoice, TrainingMode},
    server::ServerSpec,
    settings::Parameter,
    time::{Span, Time},
};

pub(super) const TESTBED: Entry = Entry {
    name: "mlfs",
    summary: "620 model-parallel jobs with deadlines and accuracies in a week on 20 servers of 4 GPUs",
    source: "MLFS (CoNEXT'20), §4.1: the testbed",
    build: |request| Ok(workload(request, 20, 620, WEEK, |_| 4, &INVENTED)),
};

pub(super) const EQUAL: Entry = Entry {
    name: "mlfs-equal",
    summary: "the jobs of mlfs, where tasks that share a GPU slow each other down as measured",
    source: "MLFS (CoNEXT'20), §4.1: the testbed; Gavel's measured co-locations",
    build: |request| Ok(workload(request, 20, 620, WEEK, |_| 4, &Invented { together: Some(SHARED_GPU), ..INVENTED })),
};

pub(super) const FRUGAL: Entry = Entry {
    name: "mlfs-frugal",
    summary: "the jobs of mlfs, with owners who request hardly more epochs than they need",
    source: "MLFS (CoNEXT'20), §4.1: the testbed; a variation of what the paper doesn't say",
    build: |request| Ok(workload(request, 20, 620, WEEK, |_| 4, &Invented { rate: (2.0, 5.0), ..INVENTED })),
};

pub(super) const STRICT: Entry = Entry {
    name: "mlfs-strict",
    summary: "the jobs of mlfs, with owners who require nearly the best accuracy",
    source: "MLFS (CoNEXT'20), §4.1: the testbed; a variation of what the paper doesn't say",
    build: |request| Ok(workload(request, 20, 620, WEEK, |_| 4, &Invented { margin: 0.001, ..INVENTED })),
};

pub(super) const LARGE: Entry = Entry {
    name: "mlfs-large",
    summary: "20,000 such jobs in a week on the Philly cluster's 550 servers with 2,474 GPUs",
    source: "MLFS (CoNEXT'20), §4.1: the simulation, at the testbed's load",
    build: |request| Ok(workload(request, trace::SERVERS, 20_000, WEEK, trace::philly, &INVENTED)),
};

pub(super) const TRACE: Entry = Entry {
    name: "mlfs-trace",
    summary: "117,325 such jobs in 137 days on the same servers",
    source: "MLFS (CoNEXT'20), §4.1: the simulation",
    build: |request| Ok(workload(request, trace::SERVERS, 117_325, 137.0 * 24.0, trace::philly, &INVENTED)),
};

/// Hours.
const WEEK: f64 = 7.0 * 24.0;
const SIZES: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Total speed of two tasks on a GPU, relative to one that has it alone: the mean over pairs of jobs of one worker that
/// Gavel's authors measured on a V100 (OSDI'20), without the pairs that don't fit into its memory. A test computes it.
/// By pairs it is 0.53 (the 5th percentile) to 1.95 (the 95th); the mean is 1.19 on a P100 and 1.07 on a K80.
const SHARED_GPU: f64 = 1.31;
/// Steps per epoch.
const STEPS: u64 = 100;

/// Numbers that the paper doesn't have.
struct Invented {
    /// Range of b·epochs of the loss curve 1/(b·k + 1). A job reaches the required accuracy after 65 to 90 % of the
    /// epochs with 10 to 40, after 93 to 97 % with 2 to 5.
    rate: (f64, f64),
    /// The difference between the best and the required accuracy.
    margin: f64,
    /// Total speed of two tasks on a GPU, relative to one that has it alone. None: they don't slow each other down.
    together: Option<f64>,
}

const INVENTED: Invented = Invented { rate: (10.0, 40.0), margin: 0.01, together: None };

/// A kind of model.
struct Kind {
    name: &'static str,
    /// MiB of parameters.
    size: i64,
    /// The fractions of a GPU and of its CPUs that a task uses.
    gpu: f64,
    cpu: f64,
    is_cut: bool,
}

const KINDS: [Kind; 5] = [
    Kind { name: "alexnet", size: 233, gpu: 0.55, cpu: 0.6, is_cut: true },
    Kind { name: "resnet", size: 98, gpu: 0.75, cpu: 0.5, is_cut: true },
    Kind { name: "mlp", size: 50, gpu: 0.35, cpu: 0.4, is_cut: true },
    Kind { name: "lstm", size: 80, gpu: 0.45, cpu: 0.5, is_cut: true },
    Kind { name: "svm", size: 10, gpu: 0.25, cpu: 0.7, is_cut: false },
];

fn workload(
    request: &Request,
    servers: u32,
    jobs: u32,
    hours: f64,
    gpus: fn(u32) -> u32,
    invented: &Invented,
) -> Workload {
    let draws = Draws::new(request.seed);
    let (servers, jobs) = (request.servers.unwrap_or(servers), request.jobs.unwrap_or(jobs));
    let most: u32 = (0..servers).map(gpus).sum();
    Workload {
        servers: (0..servers).map(|number| server(number, gpus(number))).collect(),
        jobs: (0..jobs).map(|number| job(number, most, hours, invented, draws.of(number.into()))).collect(),
        enact_delay: Span::seconds(1),
        report_every: Span::seconds(60),
        oversubscribe: 2000,
        // MLFS's authors compare with Tiresias's Gittins index (§4.1).
        parameters: BTreeMap::from([("tiresias.order".to_owned(), Parameter::Text("gittins".into()))]),
        ..Workload::default()
    }
}

fn server(number: u32, gpus: u32) -> ServerSpec {
    let gpus = i64::from(gpus);
    ServerSpec {
        name: format!("s{number}"),
        capacity: [("cpu", gpus * 8000), ("memory", gpus * 61 * 1024)]
            .map(|(name, have)| (name.to_owned(), have))
            .into(),
        devices: vec!["gpu".into(); gpus as usize],
        ..ServerSpec::default()
    }
}

fn job(number: u32, most: u32, span: f64, invented: &Invented, draws: Draws) -> SimJob {
    let kind = &KINDS[draws.whole(0, 0, KINDS.len() as u64 - 1) as usize];
    let gpus = SIZES[draws.whole(1, 0, SIZES.len() as u64 - 1) as usize].min(most);
    let with_servers = draws.unit(2) < 0.5;
    let hours = (40.0 / 60.0 * libm::exp(1.3 * draws.normal(3))).clamp(5.0 / 60.0, 24.0);
    let epochs = draws.whole(4, 20, 100) as u32;
    let deadline = f64::max(1.1 * hours, draws.between(5, 0.5, 24.0));
    let best = draws.between(6, 0.7, 0.97);
    let role = |demand: &[(&str, i64)], count| RoleSpec::of(demand, count..=count, count);
    // Layers have different sizes.
    let part = |at: u32| Partition {
        parameters: draws.whole(100 + u64::from(at), 1, 10),
        after: at.checked_sub(1).into_iter().collect(),
    };
    let cpu = 1000 * draws.whole(7, 2, 6) as i64;
    let spec = JobSpec {
        model: kind.name.into(),
        resize: Resize::Fixed,
        mode: if with_servers { TrainingMode::Sync } else { TrainingMode::AllReduce },
        examples: STEPS,
        batch: 1,
        convergence: Convergence { delta: 0.0, patience: 1000, max_epochs: epochs },
        worker: role(&[("gpu", 1000), ("cpu", cpu), ("memory", 16 << 10)], gpus),
        server: with_servers.then(|| role(&[("cpu", 2000), ("memory", 8 << 10)], gpus.div_ceil(8))),
        model_size: kind.size,
        deadline: Some(Span::from_seconds(deadline * 3600.0)),
        accuracy: Some(best - invented.margin),
        urgency: Some(draws.whole(8, 1, 10) as u32),
        stop: StopChoice::Optimal,
        stop_under_load: StopChoice::Accuracy,
        partitions: if kind.is_cut && gpus > 1 { (0..gpus).map(part).collect() } else { Vec::new() },
        ..JobSpec::minimal(&format!("job-{number}"))
    };
    let step = hours * 3600.0 / (f64::from(epochs) * STEPS as f64);
    let exchange = if gpus > 1 || with_servers { step * draws.between(9, 0.1, 0.5) } else { 0.0 };
    // An iteration's exchanges between neighbours, 50 to 100 MB each.
    let megabits = 8.0 * draws.between(10, 50.0, 100.0) * f64::from(gpus - 1 + u32::from(with_servers));
    let (least, most) = invented.rate;
    let curve = Curve::Inverse([draws.between(11, least, most) / f64::from(epochs), 1.0, 0.05]);
    let speed = Speed::Partitioned { seconds: step, exchange, megabits };
    let truth = Truth {
        speed_noise: 0.02,
        start: Span::seconds(20),
        checkpoint: Span::seconds(5),
        accuracy: Some(best),
        load: Some(SlotLoad { gpu: kind.gpu, cpu: kind.cpu, memory: 0.7, wavers: 0.15, together: invented.together }),
        ..Truth::of(speed, Goal::Epochs(epochs, Some(Loss { curve, noise: 0.01 })))
    };
    SimJob::new(Time((draws.unit(12) * span * 3_600_000.0) as i64), spec, truth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, play};
    use trainmaster_core::Settings;

    #[test]
    fn a_shared_gpu_costs_time_as_measured() {
        let jct = |entry: &Entry, engine: &str| {
            let workload = entry.build(&Request { seed: 3, jobs: Some(60), servers: Some(3) }).unwrap();
            let settings = Settings { engine: engine.into(), ..Settings::default() };
            play(&workload, &Options { settings, seed: 3, ..Options::default() }, &mut ())
                .unwrap()
                .average_jct_s
                .unwrap()
        };
        assert!(jct(&EQUAL, "mlf-h") > 1.05 * jct(&TESTBED, "mlf-h"));
        assert_eq!(jct(&EQUAL, "srtf"), jct(&TESTBED, "srtf"), "it gives no GPU to two tasks");
    }

    /// Part of the epochs after which a job reaches its accuracy.
    fn needed(entry: &Entry) -> (f64, f64) {
        let workload = entry.build(&Request { seed: 3, jobs: Some(200), servers: None }).unwrap();
        let parts = workload.jobs.iter().map(|job| {
            let epochs = job.spec.convergence.max_epochs;
            let reaches = |k: &u32| job.truth.accuracy_at(*k, epochs) >= job.spec.accuracy;
            f64::from((1..=epochs).find(reaches).unwrap()) / f64::from(epochs)
        });
        parts.fold((1.0, 0.0), |(least, most), part| (f64::min(least, part), f64::max(most, part)))
    }

    #[test]
    fn owners_request_more_epochs_than_they_need() {
        let within = |entry: &Entry, least: f64, most: f64| {
            let (low, high) = needed(entry);
            assert!(low >= least && high <= most, "{}: {low} to {high}", entry.name);
        };
        within(&TESTBED, 0.6, 0.95);
        within(&FRUGAL, 0.9, 1.0);
        within(&STRICT, 0.9, 1.0);
    }

    #[test]
    fn jobs_are_valid_and_load_the_cluster() {
        let workload = TESTBED.build(&Request { seed: 3, jobs: None, servers: None }).unwrap();
        assert_eq!((workload.servers.len(), workload.jobs.len()), (20, 620));
        let mut gpu_hours = 0.0;
        for job in &workload.jobs {
            job.spec.validate().unwrap();
            let steps = f64::from(job.spec.convergence.max_epochs) * STEPS as f64;
            let Speed::Partitioned { seconds, .. } = job.truth.speed else { panic!("{:?}", job.truth.speed) };
            gpu_hours += steps * seconds / 3600.0 * f64::from(job.spec.worker.requested);
        }
        // 80 GPUs for a week.
        let load = gpu_hours / (80.0 * WEEK);
        assert!((0.5..1.2).contains(&load), "{load}");
        let gpus: usize = LARGE
            .build(&Request { seed: 1, jobs: Some(1), servers: None })
            .unwrap()
            .servers
            .iter()
            .map(|server| server.devices.len())
            .sum();
        assert_eq!(gpus, 2474);
    }
}
