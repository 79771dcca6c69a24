//! Actions on processes, and their rules.

use std::{path::PathBuf, time::Duration};

use trainmaster_manager::SlotId;

/// The signals that this adapter sends to a whole process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Signal {
    Term,
    Kill,
}

/// Characters of a program's last line that a message repeats.
const LONGEST_LINE: usize = 80;

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
    /// Unknown, because an earlier run of the adapter started it, and only a parent can wait for it.
    Unknown,
    /// The process was never started.
    NotStarted,
}

/// The rules for restarting and stopping processes.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) grace: Duration,
    pub(crate) first_delay: Duration,
    pub(crate) longest_delay: Duration,
    pub(crate) steady: Duration,
    pub(crate) failures: u32,
    /// Time after the last slot's own exit in which a plan can explain it.
    pub(crate) settle: Duration,
    /// Time after the first plan before adopted jobs that no plan names are stopped.
    pub(crate) claim: Duration,
}

impl Policy {
    /// The wait before the start that follows the `count`-th failure in a row.
    pub(super) fn delay(&self, count: u32) -> Duration {
        let doublings = count.saturating_sub(1).min(30);
        self.first_delay.saturating_mul(1 << doublings).min(self.longest_delay)
    }
}

/// How a process ended.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// The log's last line, or the reason why it didn't start.
    pub(crate) said: Option<String>,
    pub(crate) log: Option<PathBuf>,
}

impl Failure {
    pub(super) fn describe(&self) -> String {
        let how = match self.exit {
            Exit::Code(code) => format!("ended with exit code {code}"),
            Exit::Signal(signal) => format!("was ended by signal {signal}"),
            Exit::Unknown => "ended".to_owned(),
            Exit::NotStarted => "could not be started".to_owned(),
        };
        match &self.said {
            Some(cause) if self.exit == Exit::NotStarted => format!("{how}: {cause}"),
            // What follows it says more than the end of a long line.
            Some(line) if line.chars().count() > LONGEST_LINE => {
                let start: String = line.chars().take(LONGEST_LINE).collect();
                format!("{how}: {:?}", start + "…")
            }
            Some(line) => format!("{how}: {line:?}"),
            None => how,
        }
    }

    /// Where there is more, for the end of a message.
    pub(super) fn place(&self) -> String {
        let empty = if self.said.is_none() { ", empty" } else { "" };
        self.log.as_ref().map(|log| format!(" (log {}{empty})", log.display())).unwrap_or_default()
    }
}

/// An action that is due now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Start { job: u64, incarnation: u32, slot: SlotId },
    Signal { job: u64, incarnation: u32, slot: SlotId, signal: Signal },
}

/// The actions of one step, and the time of the next one.
#[derive(Debug)]
pub(crate) struct Actions {
    pub(super) now: Duration,
    pub(crate) actions: Vec<Action>,
    pub(crate) wake: Option<Duration>,
}

impl Actions {
    /// Times that aren't in the future were handled in this step.
    pub(super) fn wake_at(&mut self, at: Duration) {
        if at > self.now {
            self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
        }
    }
}
