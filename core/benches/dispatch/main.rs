//! Benchmark of one arrival under `edge`: its chunks are dispatched to workers that all have pending chunks. The same
//! dispatch is done in the same run by an implementation that scans each queue for each chunk. Both must add the same
//! to the average training times. Times are CPU time of one thread: medians over 31 pairs of arrivals, one with a
//! single chunk and one with D chunks directly after it (for the plain implementation: over one arrival).
//!
//! `cargo bench -p trainmaster-core --bench dispatch` prints the table.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros)] // a host: it measures time

#[path = "../common/mod.rs"]
mod common;
mod plain;

use std::collections::BTreeMap;

use common::{Clock, median};
use trainmaster_core::{
    Budget, End, Event, JobId, JobSpec, Phase, Scheduler, ServerSpec, Settings, Span, Time,
    job::{Dataset, RoleSpec},
    settings::Stability,
};

const REPEAT: usize = 31;
/// Upload time of a chunk of the measured arrivals, to any server. Pending chunks need no upload.
const UPLOAD: Span = Span::seconds(60);
/// Time of the arrivals.
const NOW: Time = Time(1000);

/// One measured size.
#[derive(Clone, Copy)]
struct Size {
    workers: u32,
    pending: u32,
    chunks: u32,
}

fn main() {
    println!(
        "| workers | chunks pending | D | arrival ms | of it the later chunks, ms | each of them, µs | plain ms |"
    );
    println!("|---|---|---|---|---|---|---|");
    let base = Size { workers: 10_000, pending: 100_000, chunks: 115 };
    measure(base, true);
    for chunks in [29, 58, 230, 460] {
        measure(Size { chunks, ..base }, false);
    }
    for workers in [100, 1000] {
        measure(Size { workers, ..base }, true);
    }
    for pending in [10_000, 300_000] {
        measure(Size { pending, ..base }, false);
    }
}

fn measure(size: Size, beside_plain: bool) {
    let mut scheduler = crowded(size);
    let mut plain = beside_plain.then(|| plain::Queues::of(&scheduler, NOW, UPLOAD));
    let (mut whole, mut later) = (Vec::new(), Vec::new());
    for turn in 0..REPEAT {
        let (one, _) = arrive(&mut scheduler, 1, turn);
        let (all, _) = arrive(&mut scheduler, size.chunks, turn);
        whole.push(all);
        later.push(all - one);
    }
    let (all, later) = (median(&whole), median(&later));
    let by_plain = plain.as_mut().map(|plain| {
        let clock = Clock::start();
        let increase = plain.dispatch(size.chunks, each(0));
        let ms = clock.ms();
        let (_, engine) = arrive(&mut scheduler, size.chunks, 0);
        assert!((increase - engine).abs() < 1e-6 * engine, "plainly {increase} s are added, by the engine {engine} s");
        format!("{ms:.0}")
    });
    println!(
        "| {} | {} | {} | {all:.2} | {later:.2} | {:.1} | {} |",
        size.workers,
        size.pending,
        size.chunks,
        later * 1e3 / f64::from(size.chunks - 1),
        by_plain.unwrap_or_default(),
    );
}

/// A cluster with this number of pending chunks.
fn crowded(size: Size) -> Scheduler {
    let settings = Settings {
        engine: "edge".into(),
        stability: Stability { enabled: false, ..Stability::default() },
        ..Settings::default()
    };
    let mut scheduler = Scheduler::new(settings).expect("allowed values");
    for at in 0..size.workers.div_ceil(8) {
        let amounts = [("cpu", 1_000_000), ("memory", 1 << 20), ("bandwidth", 10_000 + i64::from(at))];
        let server = ServerSpec {
            name: format!("s{at}"),
            capacity: amounts.map(|(name, amount)| (name.to_owned(), amount)).into(),
            devices: vec!["gpu".into(); 8],
            labels: BTreeMap::from([("upload.far".to_owned(), format!("{}ms", UPLOAD.0))]),
            draining: false,
        };
        scheduler.apply(Time(0), Event::ServerSet { manager: "bench".into(), server }).expect("a good server");
    }
    for at in 0..size.pending.div_ceil(100) {
        submit(&mut scheduler, Time(0), &format!("j{at}"), 100, each(at), "near");
    }
    drop(scheduler.decide(Time(0)));
    scheduler
}

/// Between one and about thirty hours, in no order.
fn each(at: u32) -> Span {
    Span(3_600_000 + i64::from(at.wrapping_mul(2_654_435_761) % 100_000_000))
}

fn submit(scheduler: &mut Scheduler, at: Time, name: &str, chunks: u32, each: Span, from: &str) {
    let spec = JobSpec {
        worker: RoleSpec::of(&[("gpu", 1000), ("cpu", 1000)], 1..=10_000, 1),
        server: Some(RoleSpec::of(&[("cpu", 1000)], 1..=1, 1)),
        dataset: Some(Dataset {
            chunks,
            batches_per_chunk: 1,
            epochs: 1,
            batch_time: Some(each),
            upload: from.to_owned(),
            ..Dataset::default()
        }),
        ..JobSpec::minimal(name)
    };
    let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
    scheduler.apply(at, event).expect("a good job");
}

/// A job arrives and ends. Returns the milliseconds of its decision, and the seconds that it adds to average training
/// times.
fn arrive(scheduler: &mut Scheduler, chunks: u32, turn: usize) -> (f64, f64) {
    let increase = |scheduler: &Scheduler| scheduler.readings()[0].1;
    let before = increase(scheduler);
    submit(scheduler, NOW, &format!("arrival{turn}"), chunks, each(0), "far");
    let id: JobId = *scheduler.state().jobs.keys().next_back().expect("just submitted");
    let ticket = scheduler.prepare(NOW);
    let clock = Clock::start();
    let outcome = ticket.run(Budget::UNLIMITED);
    let ms = clock.ms();
    assert_eq!(outcome.error(), None);
    scheduler.commit(NOW, outcome).expect("the only ticket");
    let added = increase(scheduler) - before;
    scheduler.apply(NOW, Event::JobEnded { job: id, end: End::Cancelled }).expect("it is there");
    let incarnation = trainmaster_core::Incarnation(1);
    let gone = Event::Observed { job: id, incarnation, slots: vec![], phase: Phase::Stopped };
    // The job may be forgotten already.
    let _ = scheduler.apply(NOW, gone);
    drop(scheduler.decide(NOW));
    (ms, added)
}
