//! Benchmark of a round of `mlfs` and of `mlf-h`: priorities of all tasks, places for waiting tasks, departures from
//! overloaded servers, and stops. Plain MLF-H runs beside it and must start the same tasks on the same GPUs. Times are
//! CPU time of one thread: medians over rounds. Before each round some jobs end, as many arrive, and each server is
//! measured again.
//!
//! `cargo bench -p trainmaster-core --bench task` prints the table.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros)] // a host: it measures time

#[path = "../common/mod.rs"]
mod common;
mod plain;

use std::collections::BTreeMap;

use common::{Clock, median};
use trainmaster_core::{
    Budget, DeviceShare, End, Event, JobId, JobSpec, ObservedSlot, Phase, Report, Role, Scheduler, Settings, SlotUse,
    Time,
    settings::{ShapeRules, Stability},
};
use trainmaster_sim::workload::{Request, find};

const ROUNDS: usize = 21;
const MINUTE: i64 = 60_000;

fn main() {
    println!(
        "| jobs | GPUs | engine | first round ms | later rounds ms | of it the engine | jobs started | plain ms | \
         engine / plain |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (workload, jobs) in [("mlfs", 155), ("mlfs", 620), ("mlfs", 1860), ("mlfs-large", 20_000)] {
        for engine in ["mlf-h", "mlfs"] {
            measure(workload, jobs, engine);
        }
    }
}

fn measure(workload: &str, jobs: u32, engine: &str) {
    let request = Request { seed: 1, jobs: Some(jobs + jobs / 2), servers: None };
    let workload = find(workload).and_then(|entry| entry.build(&request)).expect("a workload of ours");
    let settings = Settings {
        engine: engine.into(),
        stability: Stability { enabled: false, ..Stability::default() },
        shape: ShapeRules { oversubscribe: workload.oversubscribe, ..ShapeRules::default() },
        ..Settings::default()
    };
    let mut scheduler = Scheduler::new(settings).expect("allowed values");
    let gpus: usize = workload.servers.iter().map(|server| server.devices.len()).sum();
    for server in workload.servers {
        scheduler.apply(Time(0), Event::ServerSet { manager: "bench".into(), server }).expect("a good server");
    }
    let mut more = workload.jobs.into_iter().map(|job| job.spec);
    for spec in more.by_ref().take(jobs as usize) {
        submit(&mut scheduler, Time(0), spec);
    }
    let mut now = Time(1);
    let (cold, ..) = decide(&mut scheduler, now);
    let (mut whole, mut own, mut plainly, mut started) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for round in 1..=ROUNDS {
        now = Time(now.0 + MINUTE);
        run(&mut scheduler, now, round as u32);
        // One in twenty of the running jobs ends, at least one.
        let running: Vec<JobId> =
            scheduler.state().jobs.values().filter(|job| job.seen.allocation.is_some()).map(|job| job.id).collect();
        let ending = running.iter().copied().cycle().skip(round).step_by(20).take(running.len().div_ceil(20));
        for job in ending.collect::<std::collections::BTreeSet<_>>() {
            end(&mut scheduler, now, job);
            submit(&mut scheduler, now, more.next().expect("half as many more"));
        }
        let mut plain = plain::Cluster::of(&scheduler, now);
        let clock = Clock::start();
        let expected = plain.round();
        plainly.push(clock.ms());
        let (all, engine_ms, starts) = decide(&mut scheduler, now);
        if engine == "mlf-h" {
            assert_eq!(starts, expected, "round {round}: the plain round starts others");
        }
        started += starts.len();
        whole.push(all);
        own.push(engine_ms);
    }
    assert!(started > ROUNDS / 2, "hardly anything was compared");
    let (whole, own, plainly) = (median(&whole), median(&own), median(&plainly));
    println!(
        "| {jobs} | {gpus} | {engine} | {cold:.2} | {whole:.2} | {own:.2} | {started} | {plainly:.2} | {:.2} |",
        own / plainly
    );
}

fn submit(scheduler: &mut Scheduler, at: Time, spec: JobSpec) {
    let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
    scheduler.apply(at, event).expect("a good job");
}

/// The starts of a round: jobs, with server and device of each slot.
type Starts = BTreeMap<JobId, Vec<(Role, u32, usize, Option<u16>)>>;

/// One round: milliseconds in total, and of the engine.
fn decide(scheduler: &mut Scheduler, now: Time) -> (f64, f64, Starts) {
    let before: Vec<JobId> =
        scheduler.state().jobs.values().filter(|job| job.verdict.allocation().is_some()).map(|job| job.id).collect();
    let clock = Clock::start();
    let ticket = scheduler.prepare(now);
    let inner = Clock::start();
    let outcome = ticket.run(Budget::UNLIMITED);
    let own = inner.ms();
    assert_eq!(outcome.error(), None);
    drop(scheduler.commit(now, outcome).expect("the only ticket"));
    let all = clock.ms();
    let mut starts = Starts::new();
    for job in scheduler.state().jobs.values().filter(|job| before.binary_search(&job.id).is_err()) {
        let slots = job.verdict.allocation().map(|allocation| allocation.slots()).unwrap_or_default();
        let place = |slot: &trainmaster_core::Slot| {
            (slot.role, slot.index, slot.server.index(), slot.devices.first().map(|share| share.device))
        };
        if !slots.is_empty() {
            starts.insert(job.id, slots.iter().map(place).collect());
        }
    }
    (all, own, starts)
}

/// One minute: issued jobs run, train an epoch, and are measured.
fn run(scheduler: &mut Scheduler, now: Time, epoch: u32) {
    let state = scheduler.state();
    let mut events = Vec::new();
    let mut on: BTreeMap<&str, Vec<SlotUse>> =
        state.present_servers().map(|server| (state.server_name(server.id), Vec::new())).collect();
    for job in state.jobs.values() {
        let Some(issued) = &job.issued.allocation else { continue };
        let seen = |slot: &trainmaster_core::Slot| ObservedSlot {
            role: slot.role,
            index: slot.index,
            server: state.server_name(slot.server).to_owned(),
            devices: slot.devices.to_vec(),
        };
        let slots = issued.slots().iter().map(seen).collect();
        events.push(Event::Observed { job: job.id, incarnation: job.issued.incarnation, slots, phase: Phase::Running });
        let step = job.learnt.progress.step + 100;
        let report = Report {
            seq: epoch.into(),
            step,
            epoch: (step / 100) as u32,
            steps_per_epoch: 100,
            loss: Some(100.0 / step as f64),
            ..Report::default()
        };
        events.push(Event::Reported {
            job: job.id,
            incarnation: job.issued.incarnation,
            slot: (Role::Worker, 0),
            report,
        });
        // Two thirds or one third of a GPU, by model.
        let gpu = if job.spec.model.len().is_multiple_of(2) { 330 } else { 660 };
        for slot in issued.slots() {
            let demand = &job.demand(slot.role).amounts;
            let used = ["cpu", "memory"].map(|name| {
                let id = state.resources.id(name).expect("all have it");
                (name.to_owned(), demand[id] / 3)
            });
            let devices = slot.devices.iter().map(|share| DeviceShare { milli: gpu, ..*share }).collect();
            let part = SlotUse { job: job.id, slot: (slot.role, slot.index), used: used.into(), devices };
            on.get_mut(state.server_name(slot.server)).expect("a present server").push(part);
        }
    }
    for (server, slots) in on {
        let mut used: BTreeMap<String, i64> = BTreeMap::new();
        let mut devices: BTreeMap<u16, u16> = BTreeMap::new();
        for part in &slots {
            part.used.iter().for_each(|(name, amount)| *used.entry(name.clone()).or_default() += amount);
            part.devices.iter().for_each(|share| *devices.entry(share.device).or_default() += share.milli);
        }
        let devices = devices.into_iter().map(|(device, milli)| DeviceShare { device, milli: milli.min(1000) });
        events.push(Event::Utilisation { server: server.to_owned(), used, devices: devices.collect(), slots });
    }
    for event in events {
        scheduler.apply(now, event).expect("as told");
    }
    while let Some(ticket) = scheduler.prepare_fits(now) {
        scheduler.commit_fits(now, ticket.run()).expect("just opened");
    }
}

fn end(scheduler: &mut Scheduler, now: Time, job: JobId) {
    let incarnation = scheduler.state().job(job).expect("it runs").issued.incarnation;
    scheduler.apply(now, Event::JobEnded { job, end: End::Completed }).expect("it is there");
    let gone = Event::Observed { job, incarnation, slots: vec![], phase: Phase::Stopped };
    // The job may be forgotten already.
    let _ = scheduler.apply(now, gone);
}
