//! Exit codes: what a manager's adapter can tell from how a process ended.

/// The job is done, or this process was told to stop and a checkpoint stands.
pub const DONE: u8 = 0;
/// An unexpected error; the message is on standard error.
pub const ERROR: u8 = 1;
/// A flag or variable is missing or wrong.
pub const USAGE: u8 = 2;
/// Workers were lost (or never came) and nobody replaced them in time; a checkpoint stands.
pub const WORKER_LOST: u8 = 40;
/// A parameter server was lost; restart from the last checkpoint.
pub const SERVER_LOST: u8 = 41;
/// The chief was lost; restart from the last checkpoint.
pub const CHIEF_LOST: u8 = 42;
/// The feed was away longer than the orphan grace; a checkpoint stands.
pub const ORPHANED: u8 = 43;
/// The loss is no longer a number; restarting won't help.
pub const DIVERGED: u8 = 44;
/// The last checkpoint couldn't be written.
pub const CHECKPOINT: u8 = 45;
