//! What jobs' programs print, where an adapter keeps it.

use std::{collections::BTreeMap, io};

/// Maximum bytes of a part.
pub const LONGEST_PART: usize = 64 << 10;
/// Maximum number of a job's logs that are read: the last ones.
pub const MOST_LOGS: usize = 64;

/// The wanted logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogsOf {
    /// The job's number.
    pub job: u64,
    /// The job's name.
    pub name: String,
    /// Begin with this many last lines of each log. `None`: with all.
    pub tail: Option<u32>,
    /// Bytes of logs that were read before, by log.
    pub after: BTreeMap<String, u64>,
}

/// A part of one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPart {
    /// The log's name: incarnation, role and index, such as `2-worker-0`.
    pub log: String,
    /// At most [`LONGEST_PART`] bytes. Empty only in the first round with a `tail`, which begins with such a part for
    /// each log.
    pub data: Vec<u8>,
    /// Bytes of the log up to the end of this part.
    pub end: u64,
    /// Number of the job's logs.
    pub logs: usize,
}

/// Reads a job's logs while its programs write them. The parts of a log come in order. Older logs come before newer
/// ones, but no log that grows quickly holds up the others.
pub trait Logs: Send {
    /// The next part. `None` at the end of a round: all that was there when the round began is read. Waits for the
    /// disk.
    ///
    /// # Errors
    /// A log exists and can't be read. The parts that were read before stay read.
    fn next(&mut self) -> io::Result<Option<LogPart>>;

    /// Whether programs of the job may still write. Waits for the disk.
    fn is_written(&self) -> bool;
}
