//! Builders, random scenarios, a faulty manager, and the invariants that hold after every step.

#![allow(unreachable_pub)]
#![allow(clippy::disallowed_methods)] // the number of cases comes from the environment

pub mod build;
pub mod invariants;
pub mod journal;
pub mod manager;
pub mod play;
pub mod scenario;

use proptest::test_runner::{Config, RngSeed};
use trainmaster_core::engines::REGISTRY;

/// Configuration of deterministic cases. `TRAINMASTER_CASES` multiplies their number, `TRAINMASTER_SEED` draws others.
pub fn config(cases: u32) -> Config {
    let number = |name: &str, default| std::env::var(name).ok().map_or(default, |text| text.parse().expect(name));
    Config {
        cases: cases * number("TRAINMASTER_CASES", 1) as u32,
        rng_seed: RngSeed::Fixed(number("TRAINMASTER_SEED", 0)),
        failure_persistence: None,
        max_shrink_iters: 30_000,
        max_global_rejects: 100_000,
        ..Config::default()
    }
}

/// Whether an engine is tested: all engines, or the one in `TRAINMASTER_ENGINE`. Panics if there is no such engine.
pub fn chosen(engine: &str) -> bool {
    let Ok(name) = std::env::var("TRAINMASTER_ENGINE") else { return true };
    assert!(
        REGISTRY.iter().any(|entry| entry.name == name),
        "TRAINMASTER_ENGINE={name}: it isn't in the list of engines"
    );
    name == engine
}
