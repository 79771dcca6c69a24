//! The local adapter with a daemon that each test controls, and with shell scripts as training programs.
#![cfg(feature = "local")]

mod failures;
mod measured;
#[cfg(feature = "nvidia-tests")]
mod nvidia;
mod plans;
mod support;
mod user;
