//! One scenario, every path, equal decisions.
//!
//! A scenario is a TOML file in `scenarios/`: servers, and steps at their times (see [`Scenario`]). [`play()`] takes it
//! through the Rust core with one engine and writes down every decision and everything a manager is told; `golden/` has
//! what that must be, a text file per scenario and engine that a person can review. Other paths to the same core (C,
//! gRPC, adapters) read the same scenarios and are held against the same files. A C program gets them as plain lines
//! ([`stream()`]): `tests/drive.c`. Scenarios named `slurm_…` are also played on a real Slurm, and end at what `scontrol show
//! job` answers: `integration/slurm/tests/golden.rs`; those named `ray_…` on a real Ray: `integration/ray/tests/test_golden.py`.
//! Whatever a real YARN can play, as `integration/yarn/tests/choice.rs` finds out, ends at what its REST API answers.
//!
//! `BLESS=1 cargo test -p trainmaster-conformance` writes the golden files anew: read the difference before committing it.

mod play;
mod scenario;
mod stream;
mod transcript;

pub use self::{
    play::{PlayError, play},
    scenario::{Action, Scenario, ScenarioError, Step},
    stream::stream,
    transcript::Transcript,
};
