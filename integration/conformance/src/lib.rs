//! Golden scenarios: the same scenario through all interfaces must give the same decisions.
//!
//! A scenario is a TOML file in `scenarios/`: servers, and steps with their times (see [`Scenario`]). [`play()`] runs
//! it through the Rust core with one engine, and records all decisions and all issues to managers. `golden/` has the
//! expected result, a reviewable text file per scenario and engine. Other interfaces of the same core (C, gRPC,
//! adapters) read the same scenarios and are compared with the same files. A C program gets them as plain lines
//! ([`stream()`]): `tests/drive.c`. Scenarios named `slurm_…` also run on a real Slurm, and end with the answer of
//! `scontrol show job`: `integration/slurm/tests/golden.rs`. Those named `ray_…` run on a real Ray:
//! `integration/ray/tests/test_golden.py`. All scenarios that a real YARN can run, as
//! `integration/yarn/tests/choice.rs` determines, end with the answer of its REST API.
//!
//! `BLESS=1 cargo test -p trainmaster-conformance` writes the golden files again. Review the difference before you
//! commit it.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU32, Ordering},
};

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

/// A port of this machine for the daemon of a test that plays scenarios on a manager, another one at each call.
///
/// It is none of those that Linux gives to connections by default, because a connection could take it before the daemon
/// listens.
///
/// ```
/// assert_ne!(trainmaster_conformance::free_port(), trainmaster_conformance::free_port());
/// ```
pub fn free_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    // Processes that ask at the same time begin at different ports.
    let first = std::process::id() % 9973;
    let next = || 10_000 + (first + TRIED.fetch_add(1, Ordering::Relaxed) % 10_000) % 10_000;
    let mut ports = std::iter::repeat_with(|| next() as u16);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("the iterator has no end")
}
