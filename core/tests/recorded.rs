//! Journals: replayed decisions, detection of changes, and the truth from jobs' reports.

use std::collections::BTreeMap;

use crate::common::journal::{Keeper, verify};
use trainmaster_core::{
    Event, JobId, Scheduler, ServerSpec, Settings, Span, Time, Verdict,
    engines::REGISTRY,
    journal::{self, Record},
    replay::{Replay, Replayed},
    settings::{Parameter, Stability},
};
use trainmaster_sim::{
    Options, Outage, Report, Request, Speed, Workload, play,
    recorded::{GoalBasis, LeftOut, Recorder, Recording, SpeedBasis},
    workload,
};

fn settings(engine: &str, seed: u64) -> Settings {
    let stability = Stability { enabled: false, ..Stability::default() };
    // The shapes of jobs stay for a while, so that there are several reports of most.
    let long = ["interval", "min_interval"].map(|name| (name.to_owned(), Parameter::Text("600s".into())));
    let parameters = if engine == "optimus" { long.into() } else { BTreeMap::new() };
    Settings { engine: engine.into(), seed, stability, parameters, ..Settings::default() }
}

/// Jobs whose speed doesn't depend on their placement, so that a fit can be exact.
fn workload(seed: u64, jobs: u32) -> Workload {
    let entry = workload::find("optimus").unwrap();
    let mut workload = entry.build(&Request { seed, jobs: Some(jobs), servers: None }).unwrap();
    for job in &mut workload.jobs {
        let Speed::Steps(time) = &mut job.truth.speed else { panic!("a step time") };
        time.local = 1.0;
        // Measurements before submission aren't in the journal.
        job.profiling = None;
    }
    workload
}

fn played(workload: &Workload, engine: &str, seed: u64) -> (Report, Vec<Vec<u8>>) {
    let mut keeper = Keeper::default();
    let options = Options { settings: settings(engine, seed), seed, journal: true, ..Options::default() };
    let report = play(workload, &options, &mut keeper).unwrap();
    (report, keeper.0)
}

fn decoded(frames: &[Vec<u8>]) -> Vec<Record> {
    frames.iter().map(|frame| Record::decode(frame).unwrap()).collect()
}

fn recording(records: &[Record]) -> Recording {
    let Record::Snapshot(saved) = &records[0] else { panic!("a journal begins with a snapshot") };
    let mut recorder = Recorder::new((**saved).clone()).unwrap();
    for record in &records[1..] {
        recorder.take(record).unwrap();
    }
    recorder.finish()
}

fn average_jct(report: &Report) -> f64 {
    report.average_jct_s.expect("jobs were completed")
}

/// The same simulation, with truths drawn from the seed.
fn again(recording: &Recording, engine: &str, seed: u64) -> Report {
    let options = Options { settings: settings(engine, seed), seed, ..Options::default() };
    play(&recording.workload(seed), &options, &mut ()).unwrap()
}

#[test]
fn decisions_from_measurements_replay_equally() {
    let entry = workload::find("mlfs").unwrap();
    let workload = entry.build(&Request { seed: 2, jobs: Some(40), servers: Some(3) }).unwrap();
    for engine in ["mlfs", "gandiva"] {
        let (report, frames) = played(&workload, engine, 1);
        let (agree, differ, strange) = verify(&decoded(&frames));
        assert_eq!((agree, differ, strange), (report.decisions, 0, 0), "{engine}");
    }
}

#[test]
fn a_journal_changes_nothing_and_replays_under_every_engine() {
    let workload = workload(1, 8);
    for entry in REGISTRY {
        let engine = entry.name;
        let (report, frames) = played(&workload, engine, 1);
        let options = Options { settings: settings(engine, 1), seed: 1, ..Options::default() };
        assert_eq!(report, play(&workload, &options, &mut ()).unwrap(), "{engine}");
        let (agree, differ, strange) = verify(&decoded(&frames));
        assert_eq!((agree, differ, strange), (report.decisions, 0, 0), "{engine}");
        // The whole journal is also a file.
        let file = frames.concat();
        assert!(journal::frames(&file).eq(frames.iter().map(Vec::as_slice)));
    }
}

#[test]
fn a_changed_event_is_found_in_a_decision_or_at_the_next_snapshot() {
    let (_, frames) = played(&workload(1, 6), "optimus", 1);
    let records = decoded(&frames);
    let whole = verify(&records);
    // Another server: jobs run elsewhere.
    let mut moved = records.clone();
    for record in &mut moved {
        if let Record::Event { event: Event::ServerSet { server, .. }, .. } = record {
            server.devices.clear();
        }
    }
    let (agree, differ, _) = verify(&moved);
    assert!(differ > 0 && agree < whole.0, "{agree} agree, {differ} differ");
    // A loss after the last decision changes no decision. The snapshot at the end shows it.
    let mut scheduler = Scheduler::restore(frames.iter().map(Vec::as_slice)).unwrap();
    scheduler.start_journal();
    let spec = Box::new(trainmaster_core::JobSpec::minimal("late"));
    scheduler.apply(Time(i64::MAX / 2), Event::JobSubmitted { spec, external: None, token_hash: None }).unwrap();
    assert!(scheduler.snapshot());
    let mut records = decoded(&scheduler.drain_journal());
    assert_eq!(verify(&records), (0, 0, 0));
    let Record::Event { event: Event::JobSubmitted { spec, .. }, .. } = &mut records[1] else { panic!("a job") };
    spec.priority = 7;
    assert_eq!(verify(&records), (0, 0, 1));
}

#[test]
fn a_missing_record_and_a_changed_decision_are_found() {
    let (_, frames) = played(&workload(2, 4), "drf", 2);
    let records = decoded(&frames);
    let whole = verify(&records).0;
    let at = records.iter().position(|record| matches!(record, Record::Committed { .. })).unwrap();
    let mut missing = records.clone();
    missing.remove(at - 1);
    assert!(verify(&missing).1 > 0);
    let mut other = records.clone();
    let Record::Committed { delta, .. } = &mut other[at] else { panic!("a decision") };
    delta.push(0);
    assert_eq!(verify(&other), (whole - 1, 1, 0));
    let difference = |records: &[Record]| {
        let Record::Snapshot(saved) = &records[0] else { panic!("a snapshot") };
        let mut replay = Replay::new((**saved).clone()).unwrap();
        records[1..].iter().find_map(|record| match replay.step(record).unwrap() {
            Replayed::Decided(Err(difference)) => Some(*difference),
            _ => None,
        })
    };
    assert!(difference(&missing).unwrap().replayed.is_none());
    let found = difference(&other).unwrap();
    assert_eq!(found.replayed.unwrap().digest, found.recorded.digest);
}

#[test]
fn a_truncated_journal_is_read_to_its_end() {
    let (_, frames) = played(&workload(1, 4), "fifo", 1);
    let file = frames.concat();
    let half = &file[..file.len() / 2];
    let mut records: Vec<_> = journal::frames(half).map(Record::decode).collect();
    assert!(records.pop().unwrap().is_err());
    let records: Vec<Record> = records.into_iter().map(Result::unwrap).collect();
    assert!(records.len() > 10 && verify(&records).1 == 0);
    let recorded = recording(&records);
    assert!(recorded.jobs.iter().any(|job| job.end.is_none()));
}

/// Reports determine speeds, epochs and delays, whatever engine was in charge.
#[test]
fn reports_determine_the_truth() {
    let (mut jobs, mut seen) = (0, 0);
    for (seed, engine) in [(1, "optimus"), (2, "drf"), (3, "optimus")] {
        let workload = workload(seed, 9);
        let (report, frames) = played(&workload, engine, seed);
        let recorded = recording(&decoded(&frames));
        assert_eq!(recorded.enact_delay, workload.enact_delay);
        assert_eq!(recorded.simulated().count(), workload.jobs.len());
        let reality = recorded.reality();
        let off = |real: Option<f64>, simulated: Option<f64>| (real.unwrap() - simulated.unwrap()).abs();
        assert!(off(reality.average_jct_s, report.average_jct_s) < 1e-6, "{reality:?} and {report:?}");
        assert!(off(reality.makespan_s, report.makespan_s) < 1e-6 && reality.rescales == report.rescales);
        assert!(off(reality.waiting_s, report.waiting_s) < 1.0, "{reality:?} and {report:?}");
        assert!((reality.utilisation - report.utilisation).abs() < 0.01);
        for ((job, known), (sim, fared)) in recorded.simulated().zip(workload.jobs.iter().zip(&report.jobs)) {
            assert_eq!((&job.name, job.restarts), (&sim.spec.name, fared.restarts));
            assert_eq!(known.goal.basis, GoalBasis::Completed);
            assert_eq!((known.speed.basis, known.start), (SpeedBasis::Reports, sim.truth.start));
            let draws = trainmaster_sim::Draws::new(seed).of(u64::from(job.id.0 as u32 - 1));
            assert_eq!(known.goal.epochs, sim.truth.goal.epochs(&sim.spec, draws), "{}", job.name);
            // Epochs vary by 3 %. The estimate of that varies because there are few reports.
            assert!((known.noise - 0.03).abs() < 0.02, "{}: {}", job.name, known.noise);
            let fitted = known.speed.best();
            for shape in shapes(&decoded(&frames), job.id) {
                let (found, truth) = (fitted.alone(&sim.spec, shape), sim.truth.speed.alone(&sim.spec, shape));
                seen += 1;
                assert!((found / truth - 1.0).abs() < 0.15, "{} at {shape}: {found} is not {truth}", job.name);
            }
            jobs += 1;
        }
        let checkpoints = recorded.simulated().map(|(_, known)| known.checkpoint).max().unwrap();
        assert!([Span::ZERO, Span::seconds(10)].contains(&checkpoints), "{checkpoints}");
    }
    assert!(jobs == 27 && seen > 40, "{jobs} jobs in {seen} shapes");
}

/// Shapes in which a job reported.
fn shapes(records: &[Record], id: JobId) -> Vec<trainmaster_core::Shape> {
    let mut shapes: Vec<_> = records
        .iter()
        .filter_map(|record| match record {
            Record::Event { event: Event::Reported { job, report, .. }, .. } if *job == id => {
                Some(trainmaster_core::Shape { workers: report.workers, servers: report.servers })
            }
            _ => None,
        })
        .collect();
    shapes.sort_unstable();
    shapes.dedup();
    shapes
}

#[test]
fn the_recorded_engine_is_simulated_accurately() {
    for (seed, engine) in [(1, "optimus"), (2, "drf"), (4, "tetris")] {
        let (report, frames) = played(&workload(seed, 9), engine, seed);
        let recorded = recording(&decoded(&frames));
        let simulated: f64 = (1..=5).map(|draw| average_jct(&again(&recorded, engine, draw))).sum::<f64>() / 5.0;
        let ratio = simulated / average_jct(&report);
        assert!((0.85..1.15).contains(&ratio), "{engine}: {ratio}");
        // All draws come from the seed.
        assert_eq!(recorded.workload(3), recorded.workload(3));
        assert_ne!(recorded.workload(3), recorded.workload(4));
    }
}

#[test]
fn another_engine_is_predicted_from_the_recording() {
    for (engine, other) in [("optimus", "drf"), ("drf", "optimus"), ("fifo", "optimus"), ("drf", "tetris")] {
        let (mut predicted, mut true_ratio) = (0.0, 0.0);
        for seed in 1..=3 {
            let workload = workload(seed, 12);
            let (own, frames) = played(&workload, engine, seed);
            let options = Options { settings: settings(other, seed), seed, ..Options::default() };
            let rival = play(&workload, &options, &mut ()).unwrap();
            let recorded = recording(&decoded(&frames));
            let simulated = |engine, draw| average_jct(&again(&recorded, engine, draw));
            let ratio = |draw| simulated(other, draw) / simulated(engine, draw);
            predicted += (1..=3).map(ratio).sum::<f64>() / 9.0;
            true_ratio += average_jct(&rival) / average_jct(&own) / 3.0;
        }
        let off = (predicted / true_ratio - 1.0).abs();
        assert!(off < 0.25, "{other} over {engine}: predicted {predicted}, in truth {true_ratio}");
    }
}

#[test]
fn servers_come_and_go_as_recorded() {
    let mut workload = workload(1, 9);
    workload.outages = vec![
        Outage { server: 1, at: Time(3_000_000), back: Some(Time(4_000_000)) },
        Outage { server: 3, at: Time(3_500_000), back: None },
    ];
    let (_, frames) = played(&workload, "drf", 1);
    let recorded = recording(&decoded(&frames));
    let mut keeper = Keeper::default();
    let options = Options { settings: settings("drf", 1), seed: 1, journal: true, ..Options::default() };
    play(&recorded.workload(1), &options, &mut keeper).unwrap();
    let servers = |frames: &[Vec<u8>]| -> Vec<(Time, Event)> {
        let events = decoded(frames).into_iter().filter_map(|record| match record {
            Record::Event { at, event: event @ (Event::ServerSet { .. } | Event::ServersLeft { .. }) } => {
                Some((at, event))
            }
            _ => None,
        });
        events.collect()
    };
    assert_eq!(servers(&keeper.0), servers(&frames));
    assert_eq!(servers(&frames).iter().filter(|(_, event)| matches!(event, Event::ServersLeft { .. })).count(), 2);
}

#[test]
fn earlier_jobs_keep_their_training() {
    let (_, frames) = played(&workload(1, 9), "optimus", 1);
    let records = decoded(&frames);
    let middle = records.len() / 2;
    let at = middle + records[middle..].iter().position(|record| matches!(record, Record::Committed { .. })).unwrap();
    let mut scheduler = Scheduler::restore(frames[..=at].iter().map(Vec::as_slice)).unwrap();
    let from = scheduler.state().now;
    let steps: Vec<(JobId, u64)> =
        scheduler.state().jobs.values().map(|job| (job.id, job.learnt.progress.step)).collect();
    assert!(steps.iter().any(|(_, step)| *step > 0));
    scheduler.start_journal();
    let mut rest = decoded(&scheduler.drain_journal());
    rest.extend(records[at + 1..].iter().cloned());
    assert_eq!(verify(&rest).1, 0);
    let recorded = recording(&rest);
    let whole = recording(&records);
    for (id, step) in steps {
        let find = |recording: &Recording| recording.jobs.iter().find(|job| job.id == id).unwrap().clone();
        let (job, before) = (find(&recorded), find(&whole));
        assert!(job.arrival == from && job.was_there == (before.arrival < from) && !before.was_there);
        let (known, known_before) = (job.known.unwrap(), before.known.unwrap());
        assert_eq!((known.goal.done, known_before.goal.done), (step, 0));
        assert_eq!(known.goal.epochs, known_before.goal.epochs);
    }
    let report = again(&recorded, "optimus", 1);
    assert_eq!(report.unfinished, 0);
    // Half of the training was before the recording.
    assert!(report.makespan_s < again(&whole, "optimus", 1).makespan_s);
}

/// A cluster by hand, with all kinds of jobs with little information.
#[test]
fn unknown_values_are_reported_or_the_job_is_left_out() {
    let mut scheduler = Scheduler::new(settings("fifo", 1)).unwrap();
    scheduler.start_journal();
    let server = ServerSpec {
        name: "node1".into(),
        capacity: [("cpu".to_owned(), 100_000)].into(),
        devices: vec!["gpu".into(); 8],
        ..ServerSpec::default()
    };
    scheduler.apply(Time(0), Event::ServerSet { manager: "m".into(), server }).unwrap();
    let submit =
        |scheduler: &mut Scheduler, name: &str, model: &str, change: &dyn Fn(&mut trainmaster_core::JobSpec)| {
            let mut spec =
                trainmaster_core::JobSpec { model: model.into(), ..trainmaster_core::JobSpec::minimal(name) };
            change(&mut spec);
            let at = scheduler.state().now;
            let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
            scheduler.apply(Time(at.0 + 1), event).unwrap();
            scheduler.state().find_job(name).unwrap().id
        };
    let done = submit(&mut scheduler, "done", "resnet", &|_| {});
    let sibling = submit(&mut scheduler, "sibling", "resnet", &|_| {});
    let stranger = submit(&mut scheduler, "stranger", "other", &|spec| spec.examples = 1000);
    let gone = submit(&mut scheduler, "gone", "resnet", &|_| {});
    let profiled = submit(&mut scheduler, "profiled", "own", &|spec| {
        spec.examples = 25_600;
        spec.convergence.max_epochs = 30;
        spec.profile = vec![trainmaster_core::job::ProfiledSpeed { servers: 1, workers: 1, speed: 2.0 }];
    });
    let wordless = submit(&mut scheduler, "wordless", "mute", &|spec| {
        spec.profile = vec![trainmaster_core::job::ProfiledSpeed { servers: 1, workers: 1, speed: 2.0 }];
    });
    let declared = submit(&mut scheduler, "declared", "chunks", &|spec| {
        spec.dataset = Some(trainmaster_core::job::Dataset {
            chunks: 10,
            batches_per_chunk: 5,
            epochs: 4,
            batch_time: Some(Span::seconds(2)),
            ..Default::default()
        });
    });
    let decision = scheduler.decide(Time(10));
    assert!(decision.changes.iter().any(|(job, verdict)| *job == done && matches!(verdict, Verdict::Run(_))));
    let incarnation = scheduler.state().job(done).unwrap().issued.incarnation;
    for epoch in 1..=2_u32 {
        let report = trainmaster_core::Report {
            seq: epoch.into(),
            step: u64::from(epoch) * 50,
            epoch,
            steps_per_epoch: 50,
            steps: 50,
            duration: Span::seconds(25),
            workers: 1,
            servers: 1,
            ..Default::default()
        };
        let slot = (trainmaster_core::Role::Worker, 0);
        let event = Event::Reported { job: done, incarnation, slot, report };
        scheduler.apply(Time(10 + i64::from(epoch) * 25_000), event).unwrap();
    }
    let end = |scheduler: &mut Scheduler, job, end| {
        let at = scheduler.state().now;
        scheduler.apply(at, Event::JobEnded { job, end }).unwrap();
    };
    end(&mut scheduler, done, trainmaster_core::End::Completed);
    end(&mut scheduler, gone, trainmaster_core::End::Cancelled);
    // The same name again, distinguished by its number.
    let second = submit(&mut scheduler, "done", "resnet", &|_| {});
    let recorded = recording(&decoded(&scheduler.drain_journal()));
    let known = |id: JobId| {
        let job = recorded.jobs.iter().find(|job| job.id == id).unwrap();
        job.known.as_ref().map(|known| (known.speed.basis, known.goal.basis, known.goal.epochs)).map_err(|why| *why)
    };
    assert_eq!(known(done), Ok((SpeedBasis::Reports, GoalBasis::Completed, 2)));
    assert_eq!(known(sibling), Ok((SpeedBasis::Model, GoalBasis::Model, 2)));
    assert_eq!(known(second), Ok((SpeedBasis::Model, GoalBasis::Model, 2)));
    assert_eq!(known(profiled), Ok((SpeedBasis::Profile, GoalBasis::Declared, 30)));
    assert_eq!(known(declared), Ok((SpeedBasis::Declared, GoalBasis::Declared, 4)));
    let drawn = |id| recorded.simulated().find(|(job, _)| job.id == id).unwrap().1.is_drawn();
    assert!(drawn(profiled) && drawn(sibling) && !drawn(declared));
    assert_eq!(known(stranger), Err(LeftOut::UnknownSpeed));
    assert_eq!(known(wordless), Err(LeftOut::UnknownWork));
    assert_eq!(known(gone), Err(LeftOut::NeverTrained));
    let workload = recorded.workload(1);
    let names: Vec<&str> = workload.jobs.iter().map(|job| job.spec.name.as_str()).collect();
    assert_eq!(names, ["done-1", "sibling", "profiled", "declared", "done-8"]);
    let report = again(&recorded, "drf", 1);
    assert_eq!((report.unfinished, report.refused), (0, 0));
    // Two steps per second with one worker and one parameter server.
    let speed = recorded.jobs[0].known.as_ref().unwrap().speed.best();
    let alone = speed.alone(&workload.jobs[0].spec, trainmaster_core::Shape { workers: 1, servers: 1 });
    assert!((alone - 2.0).abs() < 0.05, "{alone}");
}
