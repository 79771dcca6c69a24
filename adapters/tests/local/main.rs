//! The local adapter against a daemon that does as each test says, with shell scripts for training programs.
#![cfg(feature = "local")]

mod failures;
mod measured;
mod plans;
mod support;
mod user;
