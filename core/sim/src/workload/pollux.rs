//! The workloads of Pollux (Qiao et al., OSDI'21): the jobs of its files, on 16 servers of 4 GPUs.
//!
//! A row of a file is a job with its model, number of GPUs and global batch. Here it trains for as long as the authors'
//! runs with that batch, at speeds fitted to their measurements. The generator has the jobs of the four files of
//! `simulator/workloads` in `petuum/adaptdl`, branch `osdi21-artifact`, and their arrivals by hour.
//!
//! **Step times** are the terms of [`StepTime`], fitted by least squares of the relative error to the authors' measured
//! step times by placement and batch per GPU (`simulator/traces/*/placements.csv` and `scalability.csv`). Mean errors
//! are 8 % (CIFAR-10), 9 % (DeepSpeech2), 4 % (ImageNet), 4 % (BERT), 7 % (YOLOv3), 8 % (NCF). `local` is the time of
//! the exchange inside a server, divided by that between servers; it wasn't determined for NCF, which runs on one GPU.
//! A worker computes at most the largest batch per GPU that they measured (YOLOv3: 8, as their simulator has it) at
//! once, and a larger one in several passes.
//! **Length**: the progress of each epoch divided by the batch's gain in it, from the measured gradient statistics
//! (`validation-*.csv`), as in their simulator; interpolated between two batches on logarithmic scales. The iterations
//! that their runs counted are 9 % fewer to 2 % more. NCF's are counted.
//!
//! **Calibration** (`core/tests/calibration.rs`). Under a plain program with the rules of the authors' Tiresias (a
//! round a minute, 30 s a restart), the jobs of their files take 0.96, 0.96, 0.98 and 0.97 of the published average
//! JCT at loads 0.5, 1, 1.5 and 2, four files each. With counted iterations and one pass it would be 0.86 to 0.89.
//!
//! **Batches.** Pollux chooses batches during training. Jobs of `pollux` keep the submitted ones, as its "tuned" jobs
//! do elsewhere. Those of `pollux-adaptive` start with the smallest batch of their model and may have any up to the
//! largest that was measured, but for NCF (fixed by the authors, too). Their progress is counted in steps of the
//! smallest batch. The noise of their gradients is that of the authors' runs at eleven points of the training with
//! three batches (YOLOv3: two), interpolated on logarithmic scales. With it, runs with one batch take 6 % fewer to 1 %
//! more iterations than with the statistics of each epoch. YOLOv3's measured batches are 8 to 64; up to 128 the noise
//! is that with 64.
//!
//! CPU and memory (4 cores and 16 GiB per worker, of 48 and 192 on a server) are our choice, so that GPUs
//! are the scarce resource.

use std::collections::BTreeMap;

use super::{Entry, Request, SimJob, Workload, WorkloadError};
use crate::{draws::Draws, noise::TrueNoise, truth::Goal, truth::Speed, truth::StepTime, truth::Truth};
use trainmaster_core::{
    batch::BatchRange,
    job::{Convergence, JobSpec, RoleSpec, TrainingMode},
    server::ServerSpec,
    settings::Parameter,
    time::{Span, Time},
};

const SOURCE: &str = "Qiao et al., Pollux, OSDI'21; petuum/adaptdl, branch osdi21-artifact";

pub(super) const ENTRY: Entry = Entry {
    name: "pollux",
    summary: "160 jobs of six models within 8 hours on 16 servers of 4 GPUs",
    source: SOURCE,
    build: |request| from_rows(&rows(request), request.servers),
};

pub(super) const ADAPTIVE: Entry = Entry {
    name: "pollux-adaptive",
    summary: "the same jobs, whose owners let the scheduler choose their batches",
    source: SOURCE,
    build: |request| from_rows(&rows(request), request.servers).map(adaptive),
};

const SERVERS: u32 = 16;
const GPUS: u32 = 4;

/// One row of a workload file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Unique name in the file.
    pub name: String,
    /// Time since the file's start.
    pub time: Span,
    /// The model.
    pub application: String,
    /// Number of GPUs.
    pub replicas: u32,
    /// Examples per step, over all GPUs.
    pub batch: u64,
}

/// From the batch that a job starts with to its largest.
type Range = (u64, u64);

struct Application {
    name: &'static str,
    epochs: u32,
    /// (batch, iterations over all epochs with it), by batch.
    iterations: &'static [(f64, f64)],
    /// The batches of a job that may change it, and the noise of its gradients.
    range: Option<(Range, TrueNoise)>,
    time: StepTime,
    /// (GPUs, batch, number of the 640 jobs in the four files with both).
    configurations: &'static [(u32, u64, u32)],
}

const fn time(at_once: u32, compute: [f64; 2], ring: f64, per_worker: f64, local: f64) -> StepTime {
    let [per_step, per_example] = compute;
    StepTime { at_once, per_step, per_example, ring, per_worker, local, ..StepTime::ZERO }
}

/// Where the noise of most models is given: as completed fractions of the training.
const AT: &[f64] = &[0.0, 0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0];
/// In the middle of each of two epochs.
const AT_EPOCHS: &[f64] = &[0.25, 0.75];

static APPLICATIONS: [Application; 6] = [
    Application {
        name: "cifar10",
        epochs: 100,
        iterations: &[
            (128.0, 39_063.0),
            (256.0, 20_383.0),
            (512.0, 10_632.0),
            (1024.0, 5796.0),
            (2048.0, 3343.0),
            (4096.0, 2143.0),
        ],
        range: Some((
            (128, 4096),
            TrueNoise {
                at: AT,
                runs: &[
                    (128.0, &[72.5, 88.3, 217.0, 913.0, 2190.0, 3250.0, 4770.0, 7960.0, 16_600.0, 25_400.0, 34_300.0]),
                    (
                        1024.0,
                        &[96.1, 191.0, 902.0, 2340.0, 4370.0, 7510.0, 14_100.0, 32_700.0, 57_200.0, 78_900.0, 70_100.0],
                    ),
                    (
                        4096.0,
                        &[
                            106.0, 202.0, 817.0, 2760.0, 5760.0, 9380.0, 17_600.0, 51_100.0, 128_000.0, 145_000.0,
                            133_000.0,
                        ],
                    ),
                ],
            },
        )),
        time: time(1024, [0.0302, 0.000_564], 0.0606, 0.001_55, 0.78),
        configurations: &[(6, 2048, 67), (8, 2048, 53), (12, 4096, 73), (16, 4096, 49)],
    },
    Application {
        name: "deepspeech2",
        epochs: 80,
        iterations: &[
            (20.0, 28_536.0),
            (40.0, 14_710.0),
            (80.0, 7685.0),
            (160.0, 4052.0),
            (320.0, 2275.0),
            (640.0, 1391.0),
        ],
        range: Some((
            (20, 640),
            TrueNoise {
                at: AT,
                runs: &[
                    (
                        20.0,
                        &[
                            10.2,
                            9.37,
                            28.7,
                            305.0,
                            1580.0,
                            10_300.0,
                            28_600.0,
                            515_000.0,
                            2_110_000.0,
                            1_160_000.0,
                            577_000.0,
                        ],
                    ),
                    (
                        160.0,
                        &[13.9, 23.9, 177.0, 719.0, 3270.0, 23_700.0, 35_800.0, 39_400.0, 28_000.0, 42_100.0, 56_500.0],
                    ),
                    (
                        640.0,
                        &[
                            12.8, 28.0, 250.0, 779.0, 1960.0, 4670.0, 27_900.0, 230_000.0, 109_000.0, 109_000.0,
                            97_200.0,
                        ],
                    ),
                ],
            },
        )),
        time: time(80, [0.107, 0.0257], 0.376, 0.006_42, 0.77),
        configurations: &[(6, 320, 15), (8, 320, 17), (12, 640, 26)],
    },
    Application {
        name: "imagenet",
        epochs: 90,
        iterations: &[
            (200.0, 576_526.0),
            (400.0, 293_095.0),
            (800.0, 150_648.0),
            (1600.0, 78_669.0),
            (3200.0, 42_850.0),
            (6400.0, 25_094.0),
            (12_800.0, 14_803.0),
        ],
        range: Some((
            (200, 12_800),
            TrueNoise {
                at: AT,
                runs: &[
                    (
                        200.0,
                        &[
                            928.0, 1600.0, 4350.0, 5390.0, 5900.0, 9020.0, 11_400.0, 12_500.0, 14_300.0, 14_300.0,
                            14_400.0,
                        ],
                    ),
                    (
                        1600.0,
                        &[
                            1110.0, 1720.0, 5090.0, 7380.0, 8760.0, 23_200.0, 31_800.0, 47_600.0, 91_400.0, 89_300.0,
                            87_000.0,
                        ],
                    ),
                    (
                        12_800.0,
                        &[
                            1060.0, 1680.0, 7070.0, 10_100.0, 11_900.0, 32_100.0, 42_000.0, 75_900.0, 218_000.0,
                            184_000.0, 174_000.0,
                        ],
                    ),
                ],
            },
        )),
        time: time(200, [0.0633, 0.004_25], 0.0546, 0.003_24, 0.91),
        configurations: &[(24, 3200, 4), (32, 6400, 5), (48, 6400, 2)],
    },
    Application {
        name: "bert",
        epochs: 2,
        iterations: &[(12.0, 14_774.0), (384.0, 476.0)],
        range: Some((
            (12, 384),
            TrueNoise {
                at: AT_EPOCHS,
                runs: &[(12.0, &[423.0, 1120.0]), (96.0, &[2210.0, 6710.0]), (384.0, &[11_200.0, 12_800.0])],
            },
        )),
        time: time(12, [0.238, 0.0556], 0.820, 0.008_09, 0.015),
        configurations: &[(6, 384, 11), (8, 384, 6), (12, 384, 11), (16, 384, 8)],
    },
    Application {
        name: "yolov3",
        epochs: 50,
        iterations: &[(8.0, 103_445.0), (64.0, 15_970.0)],
        range: Some((
            (8, 128),
            TrueNoise {
                at: AT,
                runs: &[
                    (8.0, &[0.649, 0.649, 160.0, 288.0, 359.0, 492.0, 520.0, 735.0, 1450.0, 3650.0, 5640.0]),
                    (64.0, &[0.399, 0.399, 180.0, 306.0, 363.0, 421.0, 500.0, 793.0, 1430.0, 3830.0, 9800.0]),
                ],
            },
        )),
        time: time(8, [0.100, 0.0302], 0.459, 0.0320, 0.0),
        configurations: &[(4, 64, 30)],
    },
    Application {
        name: "ncf",
        epochs: 10,
        iterations: &[(32_768.0, 1548.0)],
        range: None,
        time: time(32_768, [0.007_12, 4.57e-7], 0.0181, 0.000_348, 0.5),
        configurations: &[(1, 32_768, 263)],
    },
];

/// Number of jobs in the four files by hour of arrival.
const HOURS: [u32; 8] = [73, 72, 32, 84, 95, 138, 77, 69];

impl Application {
    /// Number of iterations over all epochs with a batch.
    fn iterations(&self, batch: u64) -> f64 {
        let (batch, known) = (batch as f64, self.iterations);
        let above = known.partition_point(|(at, _)| *at <= batch);
        let (low, high) = match (above.checked_sub(1).map(|at| known[at]), known.get(above)) {
            (Some(low), Some(high)) => (low, *high),
            // Outside the measured range, the number of examples stays constant.
            (Some(last), None) | (None, Some(&last)) => return last.1 * last.0 / batch,
            (None, None) => unreachable!("every application has a batch"),
        };
        let share = libm::log(batch / low.0) / libm::log(high.0 / low.0);
        low.1 * libm::pow(high.1 / low.1, share)
    }
}

/// The jobs of a file on `servers` servers, 16 by default.
///
/// # Errors
/// An unknown application, or a batch smaller than the number of GPUs. The error names the job.
pub fn from_rows(rows: &[Row], servers: Option<u32>) -> Result<Workload, WorkloadError> {
    let jobs = rows.iter().map(job).collect::<Result<Vec<_>, _>>()?;
    Ok(Workload {
        jobs,
        servers: (0..servers.unwrap_or(SERVERS)).map(server).collect(),
        enact_delay: Span::seconds(1),
        report_every: Span::seconds(30),
        // 16 GPU-hours, as Pollux's authors have it: with a lower one nearly all of these jobs leave the first queue.
        parameters: BTreeMap::from([("tiresias.thresholds".to_owned(), Parameter::Text("57600".into()))]),
        ..Workload::default()
    })
}

/// The same jobs with the range of batches that Pollux chooses from: they start with the smallest one. NCF keeps its
/// batch, as in the authors' simulator.
#[must_use]
pub fn adaptive(mut workload: Workload) -> Workload {
    for job in &mut workload.jobs {
        let spec = &mut job.spec;
        let of_model = APPLICATIONS.iter().find(|known| known.name == spec.model).expect("built from it");
        let Some(((least, most), noise)) = of_model.range else { continue };
        let steps = (of_model.iterations(least) / f64::from(of_model.epochs)).round() as u64;
        (spec.batch, spec.examples) = (least, least * steps);
        spec.worker.max = (SERVERS * GPUS).min(u32::try_from(most).unwrap_or(u32::MAX));
        spec.worker.requested = spec.worker.requested.min(spec.worker.max);
        let range = [least, most, u64::from(of_model.time.at_once)];
        spec.labels
            .extend(BatchRange::LABELS.map(str::to_owned).into_iter().zip(range.map(|number| number.to_string())));
        job.truth.noise = Some(noise);
    }
    workload
}

/// The error of a row, if any.
pub fn check(row: &Row) -> Result<(), WorkloadError> {
    let fail = |key, problem| Err(WorkloadError { key, problem });
    if !APPLICATIONS.iter().any(|known| known.name == row.application) {
        let known: Vec<_> = APPLICATIONS.iter().map(|known| known.name).collect();
        return fail("application", format!("{:?} must be one of {}", row.application, known.join(", ")));
    }
    if row.replicas == 0 || u64::from(row.replicas) > row.batch {
        let problem = format!("{} must be from 1 to batch_size, {}", row.replicas, row.batch);
        return fail("num_replicas", problem);
    }
    Ok(())
}

fn server(number: u32) -> ServerSpec {
    ServerSpec {
        name: format!("s{number}"),
        capacity: [("cpu", 48_000), ("memory", 192 << 10)].map(|(name, have)| (name.to_owned(), have)).into(),
        devices: vec!["gpu".into(); GPUS as usize],
        ..ServerSpec::default()
    }
}

fn job(row: &Row) -> Result<SimJob, WorkloadError> {
    check(row)
        .map_err(|error| WorkloadError { problem: format!("of job {}: {}", row.name, error.problem), ..error })?;
    let application = APPLICATIONS.iter().find(|known| known.name == row.application).expect("checked");
    let steps = (application.iterations(row.batch) / f64::from(application.epochs)).round().max(1.0) as u64;
    let most = row.replicas.max((SERVERS * GPUS).min(u32::try_from(row.batch).unwrap_or(u32::MAX)));
    let spec = JobSpec {
        model: application.name.into(),
        mode: TrainingMode::AllReduce,
        batch: row.batch,
        examples: row.batch * steps,
        convergence: Convergence { max_epochs: application.epochs, ..Convergence::default() },
        worker: RoleSpec::of(&[("gpu", 1000), ("cpu", 4000), ("memory", 16 << 10)], 1..=most, row.replicas),
        server: None,
        ..JobSpec::minimal(&row.name)
    };
    let truth = Truth {
        speed_noise: 0.02,
        // Pollux's authors measured 15 to 120 s, by model. Their simulator uses 30 s.
        start: Span::seconds(20),
        checkpoint: Span::seconds(10),
        ..Truth::of(Speed::Steps(application.time), Goal::Epochs(application.epochs, None))
    };
    Ok(SimJob::new(Time(row.time.0), spec, truth))
}

fn rows(request: &Request) -> Vec<Row> {
    let draws = Draws::new(request.seed);
    let all: Vec<(&Application, (u32, u64, u32))> = APPLICATIONS
        .iter()
        .flat_map(|application| application.configurations.iter().map(move |each| (application, *each)))
        .collect();
    let mut rows: Vec<Row> = (0..request.jobs.unwrap_or(160))
        .map(|number| {
            let draws = draws.of(number.into());
            let (application, (replicas, batch, _)) = *drawn(&all, |(_, (_, _, count))| *count, draws, 0);
            let hours: Vec<(u32, u32)> = (0..).zip(HOURS).collect();
            let (hour, _) = *drawn(&hours, |(_, count)| *count, draws, 1);
            Row {
                name: format!("{}-{number}", application.name),
                time: Span::from_seconds(3600.0 * (f64::from(hour) + draws.unit(2))),
                application: application.name.into(),
                replicas,
                batch,
            }
        })
        .collect();
    rows.sort_by_key(|row| row.time);
    rows
}

/// Draws one entry, with a probability proportional to its count.
fn drawn<T>(from: &[T], count: impl Fn(&T) -> u32, draws: Draws, key: u64) -> &T {
    let total: u64 = from.iter().map(|each| u64::from(count(each))).sum();
    let mut left = draws.whole(key, 0, total - 1);
    let found = from.iter().find(|each| {
        let count = u64::from(count(each));
        let here = left < count;
        left = left.saturating_sub(count);
        here
    });
    found.expect("below the total")
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainmaster_core::{batch::gain, shape::Shape};

    #[test]
    fn every_job_is_valid_and_ends_within_the_time_of_its_class() {
        let workload = ENTRY.build(&Request { seed: 2, jobs: Some(640), servers: None }).unwrap();
        for job in &workload.jobs {
            job.spec.validate().unwrap();
            let shape = Shape { workers: job.spec.worker.requested, servers: 0 };
            let Goal::Epochs(epochs, _) = job.truth.goal else { panic!("of another kind") };
            let steps = f64::from(epochs) * job.truth.steps_per_epoch(&job.spec) as f64;
            let hours = steps / job.truth.speed.alone(&job.spec, shape) * f64::from(shape.workers) / 3600.0;
            // GPU-hours: small 0–1, medium 1–10, large 10–100, extra large 100–1000 (Table 1), with a margin for the
            // losses with several GPUs.
            let most = match job.spec.model.as_str() {
                "ncf" => 1.0,
                "cifar10" | "bert" => 10.0,
                "deepspeech2" => 25.0,
                "yolov3" => 100.0,
                _ => 1000.0,
            };
            assert!(hours > 0.002 && hours < most, "{}: {hours} GPU-hours", job.spec.name);
        }
        let share = workload.jobs.iter().filter(|job| job.spec.model == "ncf").count() as f64 / 640.0;
        assert!((share - 263.0 / 640.0).abs() < 0.06, "{share}");
        assert!(workload.jobs.iter().all(|job| job.arrival < Time(8 * 3_600_000)));
    }

    #[test]
    fn lengths_are_measured_or_interpolated() {
        let cifar = &APPLICATIONS[0];
        assert_eq!([128, 4096].map(|batch| cifar.iterations(batch).round()), [39_063.0, 2143.0]);
        let between = cifar.iterations(3000);
        assert!(2143.0 < between && between < 3343.0, "{between}");
        assert_eq!(APPLICATIONS[5].iterations(16_384).round(), 2.0 * 1548.0);
    }

    #[test]
    fn invalid_rows_are_named() {
        let row = Row { name: "a".into(), time: Span::ZERO, application: "gpt".into(), replicas: 4, batch: 64 };
        let problem = from_rows(std::slice::from_ref(&row), None).unwrap_err().to_string();
        assert!(problem.contains("application") && problem.contains("gpt") && problem.contains("bert"), "{problem}");
        let row = Row { application: "bert".into(), replicas: 65, ..row };
        assert!(check(&row).unwrap_err().to_string().contains("from 1 to batch_size"));
    }

    #[test]
    fn the_noise_leads_to_the_lengths_that_were_measured() {
        for application in &APPLICATIONS {
            let Some(((least, _), noise)) = application.range else { continue };
            let total = application.iterations(least);
            for (batch, iterations) in application.iterations {
                // Each part of the training has the gain that its noise gives the batch.
                const PARTS: u32 = 1000;
                let part = |at: u32| {
                    let progress = (f64::from(at) + 0.5) / f64::from(PARTS);
                    total / f64::from(PARTS) / gain(noise.scale(progress, *batch), least as f64, *batch)
                };
                let needed: f64 = (0..PARTS).map(part).sum();
                assert!(
                    (needed / iterations - 1.0).abs() < 0.1,
                    "{} {batch}: {needed} of {iterations}",
                    application.name
                );
            }
        }
    }

    #[test]
    fn adaptive_jobs_are_valid_and_as_long() {
        let request = Request { seed: 2, jobs: Some(160), servers: None };
        let (fixed, free) = (ENTRY.build(&request).unwrap(), ADAPTIVE.build(&request).unwrap());
        for (fixed, free) in fixed.jobs.iter().zip(&free.jobs) {
            free.spec.validate().unwrap();
            assert_eq!((&fixed.spec.name, fixed.arrival), (&free.spec.name, free.arrival));
            let range = BatchRange::of(&free.spec).unwrap();
            assert_eq!(range.is_some(), free.spec.model != "ncf");
            assert!(range.is_none_or(|range| range.is_free() && range.max >= fixed.spec.batch));
        }
    }
}
