//! The local adapter with a daemon that each test controls, and with shell scripts as training programs.
#![cfg(feature = "local")]

mod failures;
mod measured;
mod plans;
mod support;
mod user;
