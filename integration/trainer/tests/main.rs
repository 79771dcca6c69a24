//! Tests of whole training jobs: a process for each worker and parameter server.

mod chunks;
mod common;
mod faults;
mod identical;
mod whole;
