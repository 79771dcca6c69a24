//! Tests of the program `trainmaster`, run as a user or a cluster manager runs it.

mod bad_inputs;
mod cli_client;
mod cli_demo;
mod cli_logs;
mod cli_offline;
mod cli_policy;
mod cli_refusals;
mod cli_replay;
mod cli_serve;
mod cli_simulate;
mod cli_watch;
mod daemon_kill;
mod reference;
#[allow(dead_code)] // shared with the daemon's tests, which use all of it
#[path = "../daemon/tests/service/support.rs"]
mod support;
#[cfg(feature = "otel")]
mod traces;
