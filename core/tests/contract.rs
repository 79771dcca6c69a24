//! The contract of all registered engines and of the loop around them, under random histories.
//!
//! `TRAINMASTER_CASES=50 cargo test -p trainmaster-core contract::` runs fifty times as many histories,
//! `TRAINMASTER_SEED` others, `TRAINMASTER_ENGINE` those of one engine.

use crate::common::{
    config,
    play::{Options, check_journal, play},
    scenario::{Scenario, scenario},
};
use proptest::test_runner::{TestCaseError, TestRunner};
use trainmaster_core::{Event, JobSpec, Scheduler, ServerSpec, Time, engines::REGISTRY};

/// Random histories for each engine.
fn every_engine(cases: u32, shape_rules: bool, check: impl Fn(&Scenario)) {
    for entry in REGISTRY.iter().filter(|entry| crate::common::chosen(entry.name)) {
        let mut runner = TestRunner::new(config(cases));
        let result = runner.run(&scenario(entry, shape_rules, 80), |scenario| {
            check(&scenario);
            Ok::<(), TestCaseError>(())
        });
        if let Err(error) = result {
            panic!("{}: {error}", entry.name);
        }
    }
}

#[test]
fn the_rules_hold_under_random_histories() {
    every_engine(600, false, |scenario| {
        play(scenario, Options::default());
    });
}

#[test]
fn the_rules_hold_under_shape_rules() {
    every_engine(250, true, |scenario| {
        play(scenario, Options::default());
    });
}

#[test]
fn same_events_same_bytes_with_or_without_the_index() {
    every_engine(75, false, |scenario| {
        let first = play(scenario, Options::default());
        let again = play(scenario, Options::default());
        assert_eq!(first.decisions, again.decisions);
        assert_eq!(first.digest, again.digest);
        let rebuilt = play(scenario, Options { forget_index: true, ..Options::default() });
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        for (kept, rebuilt) in first.decisions.iter().zip(&rebuilt.decisions) {
            assert_eq!(text(kept), text(rebuilt), "with the index kept, and rebuilt");
        }
        assert_eq!(first.digest, rebuilt.digest);
    });
}

#[test]
fn a_journal_replays_from_any_snapshot() {
    every_engine(40, false, |scenario| {
        let trace = play(scenario, Options { journal: true, ..Options::default() });
        check_journal(&trace);
        let restored = play(scenario, Options { restore: true, ..Options::default() });
        assert_eq!(trace.digest, restored.digest, "a restart from the journal changed what came after");
    });
}

/// The same servers and jobs in another order of events. Ids are assigned first, by empty servers and held jobs.
#[test]
fn the_order_of_the_list_does_not_matter() {
    use proptest::{collection::vec, prelude::*, sample::Index};
    for entry in REGISTRY.iter().filter(|entry| crate::common::chosen(entry.name)) {
        let instance = (
            crate::common::scenario::settings(entry, false),
            crate::common::scenario::servers(),
            vec(crate::common::scenario::job(), 1..8),
            vec(any::<Index>(), 14),
        );
        let mut runner = TestRunner::new(config(60));
        let result = runner.run(&instance, |(settings, servers, jobs, order)| {
            let decide = |servers: &[ServerSpec], jobs: &[JobSpec], order: &[Index]| {
                let mut scheduler = Scheduler::new(settings.clone()).expect("settings are allowed");
                let mut apply = |event| drop(scheduler.apply(Time(0), event));
                for server in servers {
                    // The server as it will be, but without free room.
                    apply(Event::ServerSet {
                        manager: "m0".into(),
                        server: ServerSpec { draining: true, ..server.clone() },
                    });
                }
                let mut names = Vec::new();
                for (at, job) in jobs.iter().enumerate() {
                    names.push(format!("j{at}"));
                    let spec = Box::new(JobSpec { name: format!("j{at}"), ..job.clone() });
                    apply(Event::JobSubmitted { spec, external: None, token_hash: None });
                }
                let shuffled = |count: usize| {
                    let mut left: Vec<usize> = (0..count).collect();
                    let mut list = Vec::new();
                    for index in order.iter().take(count) {
                        list.push(left.remove(index.index(left.len())));
                    }
                    list.extend(left);
                    list
                };
                let ids: Vec<_> =
                    names.iter().filter_map(|name| scheduler.state().find_job(name)).map(|job| job.id).collect();
                let mut apply = |event| drop(scheduler.apply(Time(0), event));
                for held in [true, false] {
                    for at in shuffled(ids.len()) {
                        apply(Event::JobHeld { job: ids[at], held });
                    }
                }
                for at in shuffled(servers.len()) {
                    apply(Event::ServerSet { manager: "m0".into(), server: servers[at].clone() });
                }
                scheduler.decide(Time(0))
            };
            let expected = decide(&servers, &jobs, &[]);
            prop_assert_eq!(decide(&servers, &jobs, &order), expected);
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{}: {error}", entry.name));
    }
}
