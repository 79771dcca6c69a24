//! Exit codes, which tell a manager's adapter how a process ended.

/// The job is done, or this process was stopped and there is a checkpoint.
pub const DONE: u8 = 0;
/// An unexpected error; the message is on standard error.
pub const ERROR: u8 = 1;
/// A flag or variable is missing or invalid.
pub const USAGE: u8 = 2;
/// Workers were lost (or never joined) and not replaced in time. There is a checkpoint.
pub const WORKER_LOST: u8 = 40;
/// A parameter server was lost. Restart from the last checkpoint.
pub const SERVER_LOST: u8 = 41;
/// The chief was lost. Restart from the last checkpoint.
pub const CHIEF_LOST: u8 = 42;
/// The feed was away longer than the orphan grace. There is a checkpoint.
pub const ORPHANED: u8 = 43;
/// The loss isn't finite any more. A restart won't help.
pub const DIVERGED: u8 = 44;
/// The last checkpoint couldn't be written.
pub const CHECKPOINT: u8 = 45;
