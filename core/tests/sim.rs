//! Tests of the simulator with all engines: conservation, determinism, failures, and hidden truths.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // one test reads the engines' sources

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use trainmaster_core::{
    ServerSpec, Settings, Span, Time, TrainingMode,
    engines::{self, REGISTRY},
    job::Dataset,
    settings::{Parameter, Stability},
};
use trainmaster_sim::{
    Errors, Fate, JobReport, Options, Outage, Report, Request, SimJob, Speed, Stragglers, Workload, play,
    workload::{Entry, WORKLOADS},
};

fn options(engine: &str, seed: u64) -> Options {
    let stability = Stability { enabled: false, ..Stability::default() };
    // A short search keeps the rules, too.
    let short = engines::find(engine).unwrap().has("generations");
    let parameters = short.then(|| ("generations".to_owned(), Parameter::Number(2.0))).into_iter().collect();
    Options {
        settings: Settings { engine: engine.into(), seed, stability, parameters, ..Settings::default() },
        seed,
        ..Options::default()
    }
}

fn workload(name: &str, seed: u64, jobs: u32) -> Workload {
    let entry = WORKLOADS.iter().find(|entry| entry.name == name).unwrap();
    entry.build(&Request { seed, jobs: Some(jobs), servers: None }).unwrap()
}

fn run(engine: &str, workload: &Workload, seed: u64) -> Report {
    let mut options = options(engine, seed);
    let own = engines::find(engine).unwrap().parameters_of(&workload.parameters);
    options.settings.parameters.extend(own);
    play(workload, &options, &mut ()).unwrap()
}

/// Each job has ended or has a reason, times add up, and no server exceeds its capacity.
fn check(engine: &str, workload: &Workload, report: &Report) {
    assert_eq!(report.jobs.len(), workload.jobs.len(), "{engine}");
    assert_eq!(report.overfull, 0, "{engine}: more ran on a server than it holds");
    for job in &report.jobs {
        match job.fate {
            Fate::Completed => {
                let jct = job.jct_s.unwrap();
                assert!(jct > 0.0 && job.waited_s >= 0.0, "{engine}: {job:?}");
                assert!(job.waited_s + job.overhead_s <= jct + 0.001, "{engine}: {job:?}");
            }
            Fate::Stopped | Fate::Refused | Fate::Rejected | Fate::Unfinished => {
                assert!(job.reason.is_some() && job.jct_s.is_none(), "{engine}: {job:?}");
                assert!(job.utility == 0.0 && job.late_s.is_none(), "{engine}: {job:?}");
                assert_ne!(job.deadline_met, Some(true), "{engine}: {job:?}");
            }
        }
    }
    // Relative to what can be reserved.
    let most = f64::from(workload.oversubscribe.max(1000)) / 1000.0 + 1e-9;
    assert!(report.utilisation <= most && report.cpu_utilisation <= most);
    assert!(report.edge_utilisation <= most);
    let labels = |server: &ServerSpec| server.labels.keys().any(|label| label == "zone" || label.starts_with("upload"));
    if !workload.servers.iter().any(labels) {
        let partitioned = |job: &SimJob| matches!(job.truth.speed, Speed::Partitioned { .. });
        let exchanged = workload.jobs.iter().zip(&report.jobs).filter(|(job, _)| partitioned(job));
        let exchanged: Vec<u64> = exchanged.map(|(_, job)| (job.traffic_gb * 1e9) as u64).collect();
        // Each value is rounded; jobs without traffic have exactly zero.
        let off = report.bytes_moved.abs_diff(exchanged.iter().sum());
        assert!(off <= exchanged.len() as u64, "{engine}: {} bytes moved, {exchanged:?}", report.bytes_moved);
        assert_eq!(report.communication_s, Some(0.0), "{engine}");
        assert_eq!(report.edge_utilisation, report.utilisation, "{engine}");
    }
}

/// Plays are shared out to two threads, because they take very different times.
#[test]
fn every_engine_plays_every_workload() {
    let build = |entry: &Entry| entry.build(&Request { seed: 3, jobs: Some(6), servers: None }).unwrap();
    let workloads: Vec<_> = WORKLOADS.iter().map(|entry| (entry.name, build(entry))).collect();
    let plays: Vec<_> =
        workloads.iter().flat_map(|workload| REGISTRY.iter().map(move |engine| (workload, engine.name))).collect();
    let next = AtomicUsize::new(0);
    let play_on = || {
        while let Some(((name, workload), engine)) = plays.get(next.fetch_add(1, Ordering::Relaxed)) {
            let report = run(engine, workload, 3);
            check(engine, workload, &report);
            assert_eq!(report.failed, 0, "{engine} on {name}: {:?}", report.failure);
            assert_eq!(report, run(engine, workload, 3), "{engine} on {name}: not the same twice");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(play_on);
        play_on();
    });
}

#[test]
fn a_single_job_takes_its_true_time() {
    // A fixed job with one worker and one parameter server: its time is start + steps / speed.
    let mut workload = workload("optimus", 1, 1);
    let job = &mut workload.jobs[0];
    job.spec.mode = TrainingMode::Sync;
    job.spec.worker.max = 1;
    job.spec.worker.requested = 1;
    let server = job.spec.server.as_mut().unwrap();
    (server.max, server.requested) = (1, 1);
    job.truth.speed_noise = 0.0;
    job.profiling = None;
    let steps = f64::from(job.truth.goal.epochs(&job.spec, trainmaster_sim::Draws::new(1).of(0)))
        * job.spec.examples.div_ceil(job.spec.batch) as f64;
    let report = run("fifo", &workload, 1);
    let jct = report.jobs[0].jct_s.unwrap();
    let Speed::Steps(mut time) = workload.jobs[0].truth.speed.clone() else { panic!("a step time") };
    let speed =
        |time| Speed::Steps(time).alone(&workload.jobs[0].spec, trainmaster_core::Shape { workers: 1, servers: 1 });
    let slowest = steps / speed(time);
    time.exchange *= time.local;
    time.shard *= time.local;
    let fastest = steps / speed(time);
    // 1 s until the manager acts, and 25 s to start. The engine may have placed the slots on one server or on two.
    assert!((fastest + 26.0 - 0.5..slowest + 26.0 + 0.5).contains(&jct), "{jct} is not in {fastest}..{slowest} + 26");
    assert_eq!((report.restarts, report.preemptions, report.rescales), (0, 0, 0));
}

#[test]
fn only_decided_stops_are_preemptions() {
    // Two jobs, room for one, and the second states that it is shorter.
    let mut tight = workload("optimus", 1, 2);
    tight.servers.retain(|server| !server.devices.is_empty());
    tight.servers.truncate(1);
    tight.servers[0].devices.truncate(1);
    let lengths = [(0, 1000), (50_000, 1)];
    for (job, (arrival, epochs)) in tight.jobs.iter_mut().zip(lengths) {
        job.arrival = Time(arrival);
        job.profiling = None;
        let data = Dataset { chunks: 1, batches_per_chunk: 1, epochs, ..Dataset::default() };
        job.spec.dataset = Some(Dataset { batch_time: Some(Span::seconds(60)), ..data });
        for role in [Some(&mut job.spec.worker), job.spec.server.as_mut()].into_iter().flatten() {
            (role.min, role.max, role.requested) = (1, 1, 1);
        }
    }
    let stopped = run("srtf", &tight, 1);
    check("srtf", &tight, &stopped);
    assert!(stopped.jobs.iter().all(|job| job.fate == Fate::Completed));
    let stops: Vec<_> = stopped.jobs.iter().map(|job| (job.preemptions, job.restarts)).collect();
    assert_eq!(stops, [(1, 1), (0, 0)]);
    assert_eq!((stopped.preemptions, run("fifo", &tight, 1).preemptions), (1, 0));
    // A server failure stops the job as well, but not by a decision.
    let mut failing = tight.clone();
    failing.jobs.truncate(1);
    failing.outages = vec![Outage { server: 0, at: Time(50_000), back: Some(Time(60_000)) }];
    let failed = run("srtf", &failing, 1);
    assert_eq!((failed.jobs[0].crashes, failed.preemptions, failed.restarts), (1, 0, 1));
    // Shapes change by restarts.
    let mut options = options("drf", 1);
    options.settings.shape.grow_in_place = false;
    let restarted = play(&workload("optimus", 1, 2), &options, &mut ()).unwrap();
    assert!(restarted.restarts > 0, "nobody was restarted");
    assert_eq!(restarted.preemptions, 0);
}

#[test]
fn data_is_uploaded_before_training_and_after_moves() {
    let nine = workload("edge-testbed", 1, 30);
    let size = |job: &SimJob| {
        let data = job.spec.dataset.as_ref().unwrap();
        u64::from(data.chunks) * data.chunk_size as u64 * 1024 * 1024
    };
    let once: u64 = nine.jobs.iter().map(size).sum();
    let fifo = run("fifo", &nine, 1);
    check("fifo", &nine, &fifo);
    assert!(fifo.jobs.iter().all(|job| job.fate == Fate::Completed));
    // A job that is never stopped sends everything once, and trains after the upload. An hour of the paper is a minute
    // here.
    assert_eq!((fifo.bytes_moved, fifo.restarts, fifo.preemptions), (once, 0, 0));
    assert!(fifo.jobs.iter().all(|job| (59.0..=900.0).contains(&job.overhead_s)), "{:?}", fifo.jobs);
    assert!(fifo.communication_s.unwrap() > 60.0 && fifo.edge_utilisation > fifo.utilisation);
    // An engine that moves jobs sends the data again, unless they return to it.
    let srtf = run("srtf", &nine, 1);
    check("srtf", &nine, &srtf);
    assert!(srtf.preemptions > 0 && srtf.bytes_moved > once, "{} of {once}", srtf.bytes_moved);
    // A stop before the start is a preemption, but not a restart.
    let most = |job: &JobReport| u64::from(job.restarts + job.preemptions + 1);
    for (job, report) in nine.jobs.iter().zip(&srtf.jobs) {
        assert!((size(job)..=most(report) * size(job)).contains(&report.bytes_moved), "{report:?}");
    }
}

#[test]
fn failures_stragglers_and_errors_cost_time() {
    let calm = workload("optimus", 2, 9);
    let base = run("drf", &calm, 2);
    let mut failing = calm.clone();
    failing.outages = (0..6)
        .map(|number| Outage {
            server: 2 * number as usize + 1,
            at: Time(3_000_000 + number * 1_500_000),
            back: Some(Time(4_000_000 + number * 1_500_000)),
        })
        .collect();
    let failed = run("drf", &failing, 2);
    check("drf", &failing, &failed);
    assert!(failed.jobs.iter().map(|job| job.crashes).sum::<u32>() > 0, "nobody was hit");
    assert!(failed.jobs.iter().all(|job| job.fate == Fate::Completed));
    let mut straggling = calm.clone();
    for job in &mut straggling.jobs {
        job.truth.stragglers = Some(Stragglers { per_hour: 2.0, slowdown: 5.0, length: Span::seconds(600) });
    }
    let slow = run("drf", &straggling, 2);
    check("drf", &straggling, &slow);
    assert!(slow.average_jct_s > base.average_jct_s, "{:?} against {:?}", slow.average_jct_s, base.average_jct_s);
    let exact = Options { errors: Some(Errors::default()), ..options("optimus", 2) };
    let wrong = Options { errors: Some(Errors { convergence: 0.5, speed: 0.5 }), ..exact.clone() };
    let (exact, wrong) = (play(&calm, &exact, &mut ()).unwrap(), play(&calm, &wrong, &mut ()).unwrap());
    check("optimus", &calm, &exact);
    assert_ne!(exact.digest, wrong.digest);
}

#[test]
fn a_server_that_never_returns_leaves_jobs_with_a_reason() {
    let mut workload = workload("optimus", 5, 3);
    // Only servers without GPUs are left, so jobs with GPU workers can't continue.
    workload.outages = (0..6).map(|number| Outage { server: 2 * number + 1, at: Time(1), back: None }).collect();
    let report = run("optimus", &workload, 5);
    check("optimus", &workload, &report);
    let gpu = |job: &&SimJob| job.spec.worker.demand.contains_key("gpu");
    let stuck = report.jobs.iter().filter(|job| job.jct_s.is_none()).count();
    assert_eq!(stuck, workload.jobs.iter().filter(gpu).count());
}

#[test]
fn unsupported_jobs_are_refused_with_a_reason() {
    let workload = workload("philly", 1, 5);
    let report = run("oasis", &workload, 1);
    check("oasis", &workload, &report);
    assert_eq!(report.refused, 5);
    assert!(report.jobs.iter().all(|job| job.reason.as_ref().unwrap().contains("dataset")));
}

#[test]
fn only_completed_jobs_have_a_utility_and_a_completion_time() {
    let workload = workload("oasis-small", 1, 12);
    let oasis = |name: &str, value: &str| {
        let mut options = options("oasis", 1);
        options.settings.parameters.insert("slot".into(), workload.parameters["slot"].clone());
        options.settings.parameters.insert(name.into(), Parameter::Text(value.into()));
        play(&workload, &options, &mut ()).unwrap()
    };
    let (held, cancelled) = (oasis("rejected", "held"), oasis("rejected", "cancelled"));
    for report in [&held, &cancelled] {
        check("oasis", &workload, report);
        assert_eq!(report.stopped, 0);
        assert_eq!(report.admitted + report.rejected + report.refused, 12);
    }
    assert!(held.rejected > 0, "nobody was rejected");
    assert_eq!((held.rejected, held.utility), (cancelled.rejected, cancelled.utility));
    assert_eq!(held.average_jct_s, cancelled.average_jct_s);
    // Prices that are too high for all jobs.
    let none = oasis("bounds", "l1 = 1e9, l2 = 1e9, u1 = { gpu = 1e9 }, u2 = {}");
    check("oasis", &workload, &none);
    assert_eq!((none.rejected, none.utility), (12, 0.0));
    assert_eq!((none.average_jct_s, none.p99_jct_s, none.makespan_s, none.waiting_s), (None, None, None, None));
}

#[test]
fn a_run_ends_when_its_workload_says() {
    let mut workload = workload("optimus", 1, 9);
    workload.end = Some(Time(7_200_000));
    let options = Options { trace: true, ..options("drf", 1) };
    let report = play(&workload, &options, &mut ()).unwrap();
    check("drf", &workload, &report);
    assert!(report.unfinished > 0 && report.makespan_s.is_none_or(|span| span <= 7200.0));
    // Jobs that still ran then have a last period until then.
    let trace = report.trace.unwrap();
    assert!(trace.places.iter().any(|place| place.to == 7200.0), "{:?}", trace.places);
    let running = report.jobs.iter().enumerate().filter(|(_, job)| job.jct_s.is_none() && job.overhead_s > 0.0);
    for (number, job) in running {
        let mut mine: Vec<_> = trace.places.iter().filter(|place| place.job == number).collect();
        mine.sort_by(|a, b| a.from.total_cmp(&b.from));
        mine.dedup_by(|b, a| a.from == b.from);
        let held: f64 = mine.iter().map(|place| place.to - place.from).sum();
        assert!((held + job.waited_s - (7200.0 - job.arrival_s)).abs() < 0.01, "{job:?} held slots for {held} s");
    }
}

#[test]
fn no_engine_knows_the_simulator() {
    let mut folders = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/engines")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains("sim::"), "{} names the simulator", path.display());
        }
    }
    assert!(files > 5);
}

/// Jobs, their arrivals and shapes, late enactment and failures at random.
fn scenarios() -> impl Strategy<Value = (Workload, u64, &'static str)> {
    let outage = (0..13_usize, 0..12_000_i64, proptest::option::of(1..5000_i64));
    let engine = proptest::sample::select(REGISTRY.iter().map(|entry| entry.name).collect::<Vec<_>>());
    let delays = (0..120_i64, 0..120_i64, 0..200_i64);
    (0..1000_u64, 1..14_u32, proptest::collection::vec(outage, 0..4), delays, any::<bool>(), engine).prop_map(
        |(seed, jobs, outages, (enact, checkpoint, start), straggling, engine)| {
            let mut workload = workload("optimus-bursty", seed, jobs);
            workload.enact_delay = Span::seconds(enact);
            for job in &mut workload.jobs {
                job.truth.checkpoint = Span::seconds(checkpoint);
                job.truth.start = Span::seconds(start);
                let slow = Stragglers { per_hour: 1.0, slowdown: 3.0, length: Span::seconds(300) };
                job.truth.stragglers = straggling.then_some(slow);
            }
            workload.outages = outages
                .into_iter()
                .map(|(server, at, away)| {
                    let at = Time(at * 1000);
                    Outage { server, at, back: away.map(|away| at + Span::seconds(away)) }
                })
                .collect();
            (workload, seed, engine)
        },
    )
}

proptest! {
    #![proptest_config(crate::common::config(24))]

    #[test]
    fn every_job_ends_or_has_a_reason((workload, seed, engine) in scenarios()) {
        let report = run(engine, &workload, seed);
        check(engine, &workload, &report);
        prop_assert_eq!(&report.digest, &run(engine, &workload, seed).digest);
    }
}
