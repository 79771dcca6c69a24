//! Builders, random scenarios, a faulty manager, and the invariants that hold after every step.

#![allow(dead_code, unreachable_pub)] // each test program uses another part
#![allow(clippy::disallowed_methods)] // the number of cases comes from the environment

pub mod build;
pub mod invariants;
pub mod journal;
pub mod manager;
pub mod play;
pub mod scenario;

use proptest::test_runner::{Config, RngSeed};

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

/// Whether an engine is tested: all engines, or the one in `TRAINMASTER_ENGINE`.
pub fn chosen(engine: &str) -> bool {
    std::env::var("TRAINMASTER_ENGINE").map_or(true, |name| name == engine)
}
