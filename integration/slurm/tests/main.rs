//! Tests of both plugins in a real slurmctld with real jobs.

/// The name by which `scripts/test` tells these tests from all others.
#[path = "."]
mod real_slurm {
    mod cluster;
    mod faults;
    mod golden;
    mod het;
    mod hostile;
    mod kinds;
    mod lifecycle;
    mod pytorch;
    mod shrink;
    mod site;
    mod stragglers;
    mod submission;
}
