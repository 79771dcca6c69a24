//! What every engine in the registry keeps to, and the loop around it, whatever happens.
//!
//! `TRAINMASTER_CASES=50 cargo test --test contract` tries fifty times as many histories, `TRAINMASTER_SEED` others.

mod common;

use common::{
    config,
    play::{Options, check_journal, play},
    scenario::{Scenario, scenario},
};
use proptest::test_runner::{TestCaseError, TestRunner};
use trainmaster_core::engines::REGISTRY;

/// Random histories for each engine.
fn every_engine(cases: u32, shape_rules: bool, check: impl Fn(&Scenario)) {
    for entry in REGISTRY {
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
fn the_rules_hold_whatever_happens() {
    every_engine(400, false, |scenario| {
        play(scenario, Options::default());
    });
}

#[test]
fn the_rules_hold_under_what_managers_can_carry_out() {
    every_engine(150, true, |scenario| {
        play(scenario, Options::default());
    });
}

#[test]
fn same_events_same_bytes_with_or_without_the_index() {
    every_engine(80, false, |scenario| {
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
fn a_journal_gives_everything_back_from_wherever_it_starts() {
    every_engine(60, false, |scenario| {
        let trace = play(scenario, Options { journal: true, ..Options::default() });
        check_journal(&trace);
        let restored = play(scenario, Options { restore: true, ..Options::default() });
        assert_eq!(trace.digest, restored.digest, "a restart from the journal changed what came after");
    });
}
