//! Benchmark of one arrival under `oasis`: prices, search for the best schedule, booking and deployment, on a cluster
//! with a partly booked future. The same problem is solved in the same run by the plain recursion of the paper (if it
//! ends within a minute) and by a one-pass dynamic program. All three must find the same payoff. Times are CPU time of
//! one thread: medians over nine jobs, or three if the plain algorithms take long.
//! `cargo bench -p trainmaster-core --bench arrival` prints the tables.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros)] // a host: it measures time

#[path = "../common/mod.rs"]
mod common;
mod plain;
mod workload;

use std::collections::BTreeMap;

use common::{Clock, median};
pub(crate) use trainmaster_core::engines::oasis::{Problem, Schedule};
use trainmaster_core::{
    Budget, Event, Role, Scheduler, Settings, Time, Verdict,
    engine::{Build, Parameters},
    engines::oasis::{Memo, Oasis, best},
    ids::ResourceId,
    settings::{Parameter, Stability},
};
use workload::{Size, arrival, servers};

const REPEAT: usize = 9;

fn main() {
    let base = Size { slots: 300, servers: 50, chunks: 100, epochs: 200 };
    println!("Against plainer means:\n");
    header();
    for (slots, servers, chunks, epochs) in [(20, 5, 10, 10), (50, 10, 20, 20), (100, 40, 20, 50), (100, 50, 50, 60)] {
        measure(Size { slots, servers, chunks, epochs }, true, true);
    }
    measure(base, true, false);
    println!("\nGrowth:\n");
    header();
    for slots in [100, 300, 1000] {
        measure(Size { slots, ..base }, false, false);
    }
    for (chunks, epochs) in [(50, 100), (100, 200), (200, 400), (400, 1000)] {
        measure(Size { chunks, epochs, ..base }, false, false);
    }
    for servers in [25, 50, 100, 200] {
        measure(Size { servers, ..base }, false, false);
    }
}

fn unlimited() -> Budget {
    Budget::UNLIMITED
}

fn header() {
    println!(
        "| T | H = K | N | E | N·E | jobs | booked % | curves | admitted | arrival ms | prices and curves | search | \
         rest | one-pass ms | recursion ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
}

fn measure(size: Size, one_pass: bool, recursion: bool) {
    let given: BTreeMap<String, Parameter> = [
        ("horizon", Parameter::Number(size.slots.into())),
        ("slot", Parameter::Text("1h".into())),
        ("rejected", Parameter::Text("cancelled".into())),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let engine = Oasis::build(&mut Parameters::new(&given)).expect("allowed values");
    let settings = Settings {
        engine: "oasis".into(),
        parameters: given,
        stability: Stability { enabled: false, ..Stability::default() },
        ..Settings::default()
    };
    let mut scheduler = Scheduler::new(settings).expect("allowed values");
    for server in servers(size) {
        scheduler.apply(Time(0), Event::ServerSet { manager: "bench".into(), server }).expect("a good server");
    }
    // Earlier jobs book about half of the future.
    let mut number = 0;
    while booked(&scheduler, size) < 0.5 && number < 200 * size.servers {
        for _ in 0..size.servers / 5 {
            let id = submit(&mut scheduler, size, number, false);
            drop(scheduler.decide(Time(0)));
            if matches!(scheduler.state().job(id).expect("active").verdict, Verdict::Stop(_)) {
                leave(&mut scheduler, id);
            }
            number += 1;
        }
    }
    let share = booked(&scheduler, size);
    let (jobs, mut curves, mut admitted) = (scheduler.state().jobs.len(), 0, 0);
    let mut possible = 0;
    let (mut whole, mut building, mut searching, mut passing, mut recursing) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for turn in 0..REPEAT {
        let id = submit(&mut scheduler, size, 1_000_000 + turn as u32, true);
        let mut memo = scheduler.memo();
        let memo = memo.own().downcast_ref::<Memo>().expect("oasis's own");
        let job = scheduler.state().job(id).expect("just submitted").clone();
        let clock = Clock::start();
        let problem = engine.problem(scheduler.state(), memo, &job, &mut unlimited());
        building.push(clock.ms());
        let (problem, _) = problem.expect("no budget").expect("it can be counted");
        curves = problem.curves.len();
        let clock = Clock::start();
        let found = best(&problem, &mut unlimited()).expect("no budget");
        searching.push(clock.ms());
        let key = found.as_ref().map(|schedule| (schedule.payoff, schedule.end));
        if one_pass && turn < 3 {
            let clock = Clock::start();
            let plain = plain::one_pass(&problem);
            passing.push(clock.ms());
            assert_eq!(key, plain, "the one-pass program finds another payoff");
        }
        if recursion && turn == 0 {
            let clock = Clock::start();
            let plain = plain::recursion(&problem).map(|schedule| (schedule.payoff, schedule.end));
            recursing.push(clock.ms());
            assert_eq!(key, plain, "the recursion finds another payoff");
        }
        possible += u32::from(found.is_some());
        admitted += u32::from(found.is_some_and(|schedule| schedule.payoff > 0));
        let clock = Clock::start();
        let ticket = scheduler.prepare(Time(0));
        let outcome = ticket.run(Budget::UNLIMITED);
        assert_eq!(outcome.error(), None);
        scheduler.commit(Time(0), outcome).expect("the only ticket");
        whole.push(clock.ms());
        leave(&mut scheduler, id);
        drop(scheduler.decide(Time(0)));
    }
    let (whole, building, searching) = (median(&whole), median(&building), median(&searching));
    let or_none = |times: &[f64]| if times.is_empty() { "".into() } else { format!("{:.1}", median(times)) };
    println!(
        "| {} | {} | {} | {} | {} | {jobs} | {:.0} | {curves} | {admitted} of {possible} | {whole:.2} | {building:.2} \
         | {searching:.2} | {:.2} | {} | {} |",
        size.slots,
        size.servers,
        size.chunks,
        size.epochs,
        size.chunks * size.epochs,
        100.0 * share,
        (whole - building - searching).max(0.0),
        or_none(&passing),
        or_none(&recursing),
    );
}

fn submit(scheduler: &mut Scheduler, size: Size, number: u32, full: bool) -> trainmaster_core::JobId {
    let spec = arrival(size, number, full);
    let name = spec.name.clone();
    let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
    scheduler.apply(Time(0), event).expect("a good job");
    scheduler.state().find_job(&name).expect("just submitted").id
}

fn leave(scheduler: &mut Scheduler, id: trainmaster_core::JobId) {
    scheduler.apply(Time(0), Event::JobEnded { job: id, end: trainmaster_core::End::Cancelled }).expect("active");
}

/// Booked fraction of the scarcest resource over the horizon, on the servers of a role.
fn booked(scheduler: &Scheduler, size: Size) -> f64 {
    let mut memo = scheduler.memo();
    let memo = memo.own().downcast_ref::<Memo>().expect("oasis's own");
    let state = scheduler.state();
    // Keys: whether the server hosts workers, and the resource.
    let mut capacity: BTreeMap<(bool, ResourceId), i64> = BTreeMap::new();
    for server in state.present_servers() {
        for (resource, amount) in server.capacity.iter() {
            *capacity.entry((server.hosts.takes(Role::Worker), resource)).or_default() +=
                amount * i64::from(size.slots);
        }
    }
    let mut taken: BTreeMap<(bool, ResourceId), i64> = BTreeMap::new();
    for (_, id, amounts) in memo.bookings() {
        for (resource, amount) in amounts.iter() {
            *taken.entry((state.server(id).hosts.takes(Role::Worker), resource)).or_default() += amount;
        }
    }
    let shares = taken.iter().map(|(of, taken)| *taken as f64 / capacity.get(of).copied().unwrap_or(0).max(1) as f64);
    shares.fold(0.0, f64::max)
}
