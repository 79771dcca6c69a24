//! The targets, by source of their input.

mod files;
mod seeds;
mod slurm;
mod wire;
mod yarn;

use crate::target::Target;

/// All of them.
pub const ALL: &[Target] = &[
    slurm::SUBMISSION,
    slurm::DESCRIPTION,
    slurm::COMMENT,
    slurm::RESOURCES,
    slurm::NODES,
    yarn::JOB_FILE,
    files::JOB,
    files::SETTINGS,
    files::POLICY,
    files::CONFIGURATION,
    files::RECORDS,
    wire::MESSAGES,
];
