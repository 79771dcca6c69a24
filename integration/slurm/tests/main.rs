//! Tests of both plugins in a real slurmctld with real jobs.

mod cluster;
mod faults;
mod golden;
mod het;
mod hostile;
mod kinds;
mod lifecycle;
mod site;
mod stragglers;
mod submission;
