//! The experiments of the edge-cloud scheduler A_online: `edge` is its simulation, `edge-testbed` its testbed of nine
//! machines. They were fixed before any engine ran on them. `edge-bounded` isn't in the paper: the same simulation with
//! a cloud that can be full, and with owners who request as many workers as there are chunks.
//!
//! The values of `edge`, with their sources:
//!
//! - **Slots**: of an hour; jobs arrive at their start (§V-A).
//! - **Servers**: 100 at the edge, with 8 or 2 GPUs in Philly's mix ([`trace`]) and 6 cores per GPU (§V-A: as in the
//!   trace, which has no cores).
//! - **Worker types**: 8 to 10, `gpu:t0` …; all GPUs of a server have one type, drawn evenly (§V-A: "each worker in
//!   each server", here each server).
//! - **Cloud**: one server per type, with a GPU for each chunk of all jobs of that type, so that no chunk ever waits
//!   for a GPU ("unlimited capacities").
//! - **Network**: reserved by the job and never scarce; one parameter server has the bandwidth of all workers (our
//!   choice; the paper only has b).
//! - **Model**: six models in pairs with one dataset: 27, 115 or 60 chunks of 58 mini-batches, drawn evenly (Table II).
//! - **Size of a chunk**: 6, 1 or 2 MiB: CIFAR-10 (163 MB), Caltech101 (131 MB) and ImageNet-12 (101.8 MB), divided by
//!   their chunks (the datasets; §V-B).
//! - **E**: 20–60 epochs (§V-A).
//! - **m, G**: 0.001–0.05 h and 10–100 ms per mini-batch (§V-A).
//! - **q, b**: 30–575 MB of gradients, 100–5120 Mbit/s per worker (§V-A).
//! - **Worker**: 1 GPU of the job's type, drawn from the types at the edge, and 1 core (our choice).
//! - **Parameter server**: one, of 1 core (§III: one per job).
//! - **Workers**: at most one per chunk. Requested are 2, 4, 8, 16 or 32, as often as by Philly's jobs with several
//!   GPUs (1217, 1461, 1136, 106, 30), within the chunks and the GPUs of the type at the edge ("according to the number
//!   of GPUs of the real trace"; one worker isn't distributed training).
//! - **Upload of a chunk**: 1–4 whole hours to a server at the edge, 10–15 to the cloud, by the zone of the job's data,
//!   z0 to z7 (§V-A; the paper draws for each job and server).
//! - **Arrivals**: within 336 slots: 20 % evenly, the others around slots 84 and 252 (normal, 24 slots). Fig. 11 has
//!   two peaks; two weeks and the rest are our choice.
//! - **End**: when all jobs are done ("T is large enough").
//! - **A mini-batch**: m + G + 2q/b, or m + G if the job is on one server or in the cloud alone (Eq. (1)).
//!
//! All other values are drawn uniformly. Starts and stops cost nothing, as in the paper; interruptions cost the
//! transfer of data. A job needs 4,100 worker-hours on average: 300 jobs keep the 450 GPUs of the edge busy for
//! 115 days.
//!
//! `edge-testbed` has 30 jobs, 8 servers with one GPU, a cloud with the ninth, and two alternating worker types (the
//! paper's second one has no GPU). The paper scales its jobs down by an unknown factor. Here a slot is a minute, for
//! uploads and arrivals too, m is 5 to 150 ms, and 1 to 9 MiB go over 1 Gbit/s. This is 31 hours of work for the nine
//! GPUs.
//!
//! `edge-bounded` has the jobs and the edge of `edge`, and 50 GPUs of each type in the cloud, about as many as the edge
//! has; `edge-bounded-25` and `-100` have half and twice as many. Owners request one worker per chunk, as far as the
//! edge has GPUs of the type, so that an engine that gives jobs what they request isn't held to a tenth of the workers.
//! No engine is kept out of the cloud. These sizes were chosen with earlier runs of the engines at hand.

use std::collections::BTreeMap;

use super::{Entry, Request, SimJob, Workload, trace};
use crate::{draws::Draws, truth::Goal, truth::Speed, truth::Truth};
use trainmaster_core::{
    job::{Convergence, Dataset, JobSpec, RoleSpec, TrainingMode},
    server::ServerSpec,
    settings::Parameter,
    time::{Span, Time},
};

const SOURCE: &str = "A_online (edge-cloud scheduling of distributed training), §V";

pub(super) const LARGE: Entry = Entry {
    name: "edge",
    summary: "300 jobs in two weeks on 100 servers of the edge with 8 to 10 kinds of GPU, and a cloud that takes long \
              to reach",
    source: SOURCE,
    build: |request| Ok(build(request, &SIMULATION)),
};

pub(super) const TESTBED: Entry = Entry {
    name: "edge-testbed",
    summary: "30 jobs on 8 servers of the edge with a GPU each, and a ninth in the cloud; an hour is a minute",
    source: SOURCE,
    build: |request| Ok(build(request, &NINE_MACHINES)),
};

pub(super) const BOUNDED: Entry = Entry {
    name: "edge-bounded",
    summary: "the jobs of edge, each requesting a worker per chunk, and 50 GPUs of each kind in the cloud",
    source: SOURCE,
    build: |request| Ok(build(request, &Kind { cloud: Cloud::Each(50), ..WIDE })),
};

pub(super) const HALF: Entry = Entry {
    name: "edge-bounded-25",
    summary: "the same with 25 GPUs of each kind in the cloud",
    build: |request| Ok(build(request, &Kind { cloud: Cloud::Each(25), ..WIDE })),
    ..BOUNDED
};

pub(super) const TWICE: Entry = Entry {
    name: "edge-bounded-100",
    summary: "the same with 100 GPUs of each kind in the cloud",
    build: |request| Ok(build(request, &Kind { cloud: Cloud::Each(100), ..WIDE })),
    ..BOUNDED
};

/// GPUs in the cloud.
enum Cloud {
    /// One for each chunk of all jobs.
    Endless,
    /// That many of each type.
    Each(u32),
    /// One.
    Single,
}

/// The differences between the experiments.
struct Kind {
    slot: Span,
    jobs: u32,
    servers: u32,
    /// Minimum and maximum.
    types: (u64, u64),
    /// Philly's GPUs, or one GPU each.
    large: bool,
    cloud: Cloud,
    /// Whether owners request a worker per chunk, and engines with whole jobs may use the cloud.
    wide: bool,
    /// m in seconds.
    compute: (f64, f64),
    /// q in MiB.
    size: (u64, u64),
    /// b in Mbit/s.
    bandwidth: (u64, u64),
}

const SIMULATION: Kind = Kind {
    slot: Span::seconds(3600),
    jobs: 300,
    servers: 100,
    types: (8, 10),
    large: true,
    cloud: Cloud::Endless,
    wide: false,
    compute: (3.6, 180.0),
    // 30 to 575 MB.
    size: (29, 548),
    bandwidth: (100, 5120),
};

const WIDE: Kind = Kind { wide: true, ..SIMULATION };

const NINE_MACHINES: Kind = Kind {
    slot: Span::seconds(60),
    jobs: 30,
    servers: 8,
    types: (2, 2),
    large: false,
    cloud: Cloud::Single,
    wide: false,
    compute: (0.005, 0.15),
    size: (1, 9),
    bandwidth: (1000, 1000),
};

/// Slots in which jobs arrive, and their peaks.
const ARRIVALS: i64 = 336;
const PEAKS: [f64; 2] = [84.0, 252.0];
const WIDTH: f64 = 24.0;
const EVENLY: f64 = 0.2;
/// Zones of the data.
const ZONES: u64 = 8;
/// Slots of an upload, to the edge and to the cloud.
const UPLOAD: (u64, u64) = (1, 4);
const UPLOAD_TO_CLOUD: (u64, u64) = (10, 15);
/// E.
const EPOCHS: (u64, u64) = (20, 60);
/// Number of chunks, and MiB of one.
const DATASETS: [(u32, i64); 3] = [(27, 6), (115, 1), (60, 2)];
const BATCHES: u32 = 58;
/// Worker counts of Philly's jobs, and the number of jobs with each.
const REQUESTED: [(u32, u64); 5] = [(2, 1217), (4, 1461), (8, 1136), (16, 106), (32, 30)];
/// Mbit/s of a server: more than all jobs need.
const NETWORK: i64 = 1_000_000_000;

fn build(request: &Request, kind: &Kind) -> Workload {
    let draws = Draws::new(request.seed);
    let count = draws.whole(0, kind.types.0, kind.types.1);
    let edge = |number: u32| edge_server(number, count, kind, draws.of(1).of(number.into()));
    let mut servers: Vec<(ServerSpec, u64)> = (0..request.servers.unwrap_or(kind.servers)).map(edge).collect();
    let mut types: BTreeMap<u64, u32> = BTreeMap::new();
    for (server, of) in &servers {
        *types.entry(*of).or_default() += server.devices.len() as u32;
    }
    let types: Vec<(u64, u32)> = types.into_iter().collect();
    let mut arrivals: Vec<i64> =
        (0..request.jobs.unwrap_or(kind.jobs)).map(|number| arrival(draws.of(2).of(number.into()))).collect();
    arrivals.sort_unstable();
    let jobs: Vec<SimJob> = (0..)
        .zip(arrivals)
        .map(|(number, slot)| job(number, Time(slot * kind.slot.0), &types, kind, draws.of(3).of(number.into())))
        .collect();
    servers.extend(cloud(&types, &jobs, kind, draws.of(4)));
    let slot = || Parameter::Text(format!("{}s", kind.slot.0 / 1000));
    let mut parameters = BTreeMap::from([
        ("slot".to_owned(), slot()),
        ("interval".to_owned(), slot()),
        ("on_change".to_owned(), Parameter::Flag(true)),
        // All jobs that arrive within a slot are one batch, at its start.
        ("batch".to_owned(), slot()),
        ("batch.elastic".to_owned(), Parameter::Text("any".into())),
        ("srtf.placement".to_owned(), Parameter::Text("consolidate".into())),
        ("fifo.placement".to_owned(), Parameter::Text("consolidate".into())),
        ("drf.placement".to_owned(), Parameter::Text("consolidate".into())),
        // The paper's Tiresias-L has two queues.
        ("tiresias.thresholds".to_owned(), Parameter::Text("3250".into())),
    ]);
    if !kind.wide {
        // These engines stay at the edge. `batch` can use the cheapest place.
        parameters.extend(["srtf.cloud", "tiresias.cloud"].map(|name| (name.to_owned(), Parameter::Flag(false))));
    }
    Workload {
        jobs,
        servers: servers.into_iter().map(|(server, _)| server).collect(),
        report_every: Span(kind.slot.0 / 6),
        parameters,
        ..Workload::default()
    }
}

/// Slot of an arrival.
fn arrival(draws: Draws) -> i64 {
    if draws.unit(0) < EVENLY {
        return draws.whole(1, 0, ARRIVALS as u64 - 1) as i64;
    }
    let peak = PEAKS[draws.whole(2, 0, 1) as usize];
    let around = (0..).map(|attempt| (peak + WIDTH * draws.of(3).normal(attempt)).floor() as i64);
    around.into_iter().find(|slot| (0..ARRIVALS).contains(slot)).expect("most are")
}

/// An edge server with its type.
fn edge_server(number: u32, types: u64, kind: &Kind, draws: Draws) -> (ServerSpec, u64) {
    let of = if kind.large { draws.whole(0, 0, types - 1) } else { u64::from(number) % types };
    let gpus = if kind.large { trace::philly(number) } else { 1 };
    let labels = uploads(UPLOAD, kind, draws.of(1));
    (server(format!("s{number}"), of, gpus, labels), of)
}

/// The whole cloud: one server per type.
fn cloud(types: &[(u64, u32)], jobs: &[SimJob], kind: &Kind, draws: Draws) -> Vec<(ServerSpec, u64)> {
    // The cloud is one place, with the same upload time for each zone.
    let mut labels = uploads(UPLOAD_TO_CLOUD, kind, draws);
    labels.insert("zone".into(), "cloud".into());
    let of_type = |(of, _): &(u64, u32)| {
        let wants = |job: &&SimJob| job.spec.worker.demand.contains_key(&gpu(*of));
        let gpus = match kind.cloud {
            Cloud::Endless => jobs.iter().filter(wants).map(|job| job.spec.worker.max).sum(),
            Cloud::Each(gpus) => gpus,
            Cloud::Single => 1,
        };
        let name = if matches!(kind.cloud, Cloud::Single) { "cloud".into() } else { format!("cloud-t{of}") };
        // Devices of a server have 16-bit numbers.
        (server(name, *of, gpus.clamp(1, 60_000), labels.clone()), *of)
    };
    match kind.cloud {
        Cloud::Single => types.iter().take(1).map(of_type).collect(),
        _ => types.iter().map(of_type).collect(),
    }
}

fn gpu(of: u64) -> String {
    format!("gpu:t{of}")
}

fn server(name: String, of: u64, gpus: u32, labels: BTreeMap<String, String>) -> ServerSpec {
    ServerSpec {
        name,
        capacity: [("cpu", i64::from(gpus) * 6000), ("bandwidth", NETWORK)]
            .map(|(name, have)| (name.to_owned(), have))
            .into(),
        devices: vec![gpu(of); gpus as usize],
        labels,
        draining: false,
    }
}

fn uploads((least, most): (u64, u64), kind: &Kind, draws: Draws) -> BTreeMap<String, String> {
    let seconds = |zone| draws.whole(zone, least, most) * kind.slot.0 as u64 / 1000;
    (0..ZONES).map(|zone| (format!("upload.z{zone}"), format!("{}s", seconds(zone)))).collect()
}

fn job(number: u32, arrival: Time, types: &[(u64, u32)], kind: &Kind, draws: Draws) -> SimJob {
    let (of, gpus) = types[draws.whole(0, 0, types.len() as u64 - 1) as usize];
    let (chunks, chunk_size) = DATASETS[draws.whole(1, 0, DATASETS.len() as u64 - 1) as usize];
    let epochs = draws.whole(2, EPOCHS.0, EPOCHS.1) as u32;
    let compute = draws.between(3, kind.compute.0, kind.compute.1) + draws.between(4, 0.010, 0.100);
    let batch_time = Span((compute * 1000.0).round() as i64);
    let size = draws.whole(5, kind.size.0, kind.size.1) as i64;
    let bandwidth = draws.whole(6, kind.bandwidth.0, kind.bandwidth.1) as i64;
    // 2q/b in seconds.
    let exchange = 2.0 * 8.0 * (size << 20) as f64 / (bandwidth as f64 * 1e6);
    let wanted = if kind.wide { chunks } else { requested(draws.of(7)) };
    let requested = wanted.min(chunks).min(gpus);
    let spec = JobSpec {
        mode: TrainingMode::Async,
        convergence: Convergence { max_epochs: epochs, ..Convergence::default() },
        worker: RoleSpec::of(&[(&gpu(of), 1000), ("cpu", 1000), ("bandwidth", bandwidth)], 1..=chunks, requested),
        server: Some(RoleSpec::of(&[("cpu", 1000), ("bandwidth", bandwidth * i64::from(chunks))], 1..=1, 1)),
        model_size: size,
        dataset: Some(Dataset {
            chunks,
            batches_per_chunk: BATCHES,
            epochs,
            batch_time: Some(batch_time),
            upload: format!("z{}", draws.whole(8, 0, ZONES - 1)),
            chunk_size,
        }),
        ..JobSpec::minimal(&format!("job-{number}"))
    };
    let speed = Speed::MiniBatches {
        seconds: batch_time.as_seconds() + exchange,
        per_server: f64::INFINITY,
        together: Some(batch_time.as_seconds()),
    };
    let truth = Truth::of(speed, Goal::Epochs(epochs, None));
    SimJob::new(arrival, spec, truth)
}

fn requested(draws: Draws) -> u32 {
    let total: u64 = REQUESTED.iter().map(|(_, count)| count).sum();
    let mut left = draws.whole(0, 0, total - 1);
    for (workers, count) in REQUESTED {
        if left < count {
            return workers;
        }
        left -= count;
    }
    unreachable!("below the total")
}

#[cfg(test)]
mod tests {
    use super::*;
    use trainmaster_core::{job::Training, server::Place};

    fn built(entry: &Entry, seed: u64, jobs: Option<u32>) -> Workload {
        entry.build(&Request { seed, jobs, servers: None }).unwrap()
    }

    #[test]
    fn every_job_is_valid_and_in_the_papers_ranges() {
        for (entry, kind) in [(&LARGE, &SIMULATION), (&TESTBED, &NINE_MACHINES)] {
            let workload = built(entry, 3, None);
            assert_eq!(workload.jobs.len(), kind.jobs as usize);
            for job in &workload.jobs {
                job.spec.validate().unwrap();
                let data = job.spec.dataset.as_ref().unwrap();
                assert!([27, 115, 60].contains(&data.chunks) && data.batches_per_chunk == 58);
                assert!((20..=60).contains(&data.epochs));
                assert_eq!(job.arrival.0 % kind.slot.0, 0);
                assert!(job.arrival.0 < ARRIVALS * kind.slot.0);
                let workers = &job.spec.worker;
                assert!(workers.requested.is_power_of_two() || workers.requested < 32, "{workers:?}");
                assert_eq!(workers.max, data.chunks);
                // The engines' model equals the truth.
                let work = Training::new(&job.spec, None).unwrap();
                assert_eq!(work.shapes().map(|shape| shape.workers).max(), Some(data.chunks));
                let Speed::MiniBatches { seconds, together, .. } = job.truth.speed else { panic!("of another kind") };
                assert!(
                    (work.slots_per_chunk(kind.slot) * kind.slot.as_seconds() / (seconds * 58.0) - 1.0).abs() < 1e-9
                );
                assert_eq!(together, data.batch_time.map(Span::as_seconds));
                if kind.large {
                    assert!((3_610..=180_100).contains(&data.batch_time.unwrap().0));
                    assert!((100..=5120).contains(&workers.demand["bandwidth"]));
                }
            }
        }
    }

    #[test]
    fn a_speed_up_changes_the_truth_and_the_job_files() {
        let plain = built(&LARGE, 3, Some(40));
        let mut fast = plain.clone();
        fast.speed_up(1.5).unwrap();
        for (fast, plain) in fast.jobs.iter().zip(&plain.jobs) {
            let alone = |job: &SimJob| {
                let Speed::MiniBatches { seconds, together, .. } = job.truth.speed else { panic!("of another kind") };
                (seconds, together.unwrap())
            };
            assert!((alone(plain).0 / alone(fast).0 - 1.5).abs() < 1e-9);
            assert!((alone(plain).1 / alone(fast).1 - 1.5).abs() < 1e-9);
            let known = |job: &SimJob| {
                let work = Training::new(&job.spec, None).unwrap();
                work.slots_per_chunk(SIMULATION.slot)
            };
            assert!((known(plain) / known(fast) / 1.5 - 1.0).abs() < 0.01, "{} {}", known(plain), known(fast));
        }
        for wrong in [0.0, 11.0, f64::NAN] {
            assert!(fast.speed_up(wrong).unwrap_err().to_string().contains("from 0.1 to 10"));
        }
        let other = crate::workload::find("optimus").unwrap();
        let error = other.build(&Request { seed: 1, jobs: None, servers: None }).unwrap().speed_up(2.0).unwrap_err();
        assert!(error.to_string().contains("has no batch_time"), "{error}");
    }

    #[test]
    fn the_cluster_has_a_typed_edge_and_a_distant_unlimited_cloud() {
        for seed in 0..5 {
            let workload = built(&LARGE, seed, None);
            let place = |server: &ServerSpec| Place::of(&server.labels).unwrap();
            let (cloud, edge): (Vec<&ServerSpec>, Vec<_>) = workload.servers.iter().partition(|it| place(it).cloud);
            assert_eq!(edge.len(), 100);
            assert!((8..=10).contains(&cloud.len()), "{} types", cloud.len());
            let hours = |server: &ServerSpec, zone: u64| place(server).upload(&format!("z{zone}")).0 as f64 / 3.6e6;
            for zone in 0..ZONES {
                assert!(edge.iter().all(|server| [1.0, 2.0, 3.0, 4.0].contains(&hours(server, zone))));
                assert!(cloud.iter().all(|server| (10.0..=15.0).contains(&hours(server, zone))));
                assert!(cloud.iter().all(|server| hours(server, zone) == hours(cloud[0], zone)));
            }
            let gpus: usize = edge.iter().map(|server| server.devices.len()).sum();
            assert!((440..=460).contains(&gpus), "{gpus} GPUs");
            let there: usize = cloud.iter().map(|server| server.devices.len()).sum();
            assert_eq!(there, workload.jobs.iter().map(|job| job.spec.worker.max as usize).sum::<usize>());
        }
        let nine = built(&TESTBED, 1, None);
        assert_eq!(nine.servers.iter().map(|server| server.devices.len()).collect::<Vec<_>>(), [1; 9]);
    }

    #[test]
    fn a_bounded_cloud_has_the_same_jobs_that_request_more() {
        for (entry, gpus) in [(&HALF, 25), (&BOUNDED, 50), (&TWICE, 100)] {
            let (endless, bounded) = (built(&LARGE, 2, None), built(entry, 2, None));
            let cloud = |server: &&ServerSpec| Place::of(&server.labels).unwrap().cloud;
            assert!(bounded.servers.iter().filter(cloud).all(|server| server.devices.len() == gpus));
            assert_eq!(bounded.servers[..100], endless.servers[..100]);
            let at_the_edge = |kind: &String| {
                let edge = bounded.servers.iter().filter(|server| !cloud(server));
                edge.flat_map(|server| &server.devices).filter(|device| *device == kind).count() as u32
            };
            for (mine, theirs) in bounded.jobs.iter().zip(&endless.jobs) {
                let workers = &mine.spec.worker;
                let kind = workers.demand.keys().find(|name| name.starts_with("gpu:")).unwrap();
                assert_eq!(workers.requested, workers.max.min(at_the_edge(kind)));
                let mut same = mine.clone();
                same.spec.worker.requested = theirs.spec.worker.requested;
                assert_eq!(same, *theirs);
            }
        }
    }

    #[test]
    fn jobs_arrive_in_two_peaks_with_the_documented_work() {
        let workload = built(&LARGE, 7, Some(4000));
        let slots: Vec<i64> = workload.jobs.iter().map(|job| job.arrival.0 / 3_600_000).collect();
        let share = |from: i64, to: i64| slots.iter().filter(|slot| (from..to).contains(slot)).count() as f64 / 4000.0;
        // 68 % of a peak's 40 %, and a seventh of the 20 %.
        assert!((share(60, 108) - 0.30).abs() < 0.03 && (share(228, 276) - 0.30).abs() < 0.03);
        assert!(share(144, 192) < 0.06);
        let hours = |job: &SimJob| {
            let work = Training::new(&job.spec, None).unwrap();
            work.time_of(work.work()).as_seconds() / 3600.0
        };
        let mean = workload.jobs.iter().map(hours).sum::<f64>() / 4000.0;
        assert!((3_700.0..4_300.0).contains(&mean), "{mean} worker-hours");
        let two = workload.jobs.iter().filter(|job| job.spec.worker.requested == 2).count() as f64 / 4000.0;
        assert!((two - 1217.0 / 3950.0).abs() < 0.03, "{two}");
    }
}
