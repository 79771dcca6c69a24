//! What there is to do about processes, and by which rules.

use std::time::Duration;

use trainmaster_manager::SlotId;

/// The two signals this adapter sends, to a whole process group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Signal {
    Term,
    Kill,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
    /// It was started by an earlier run of the adapter, so nobody here can wait for it.
    Unknown,
    /// There never was a process.
    NotStarted,
}

/// The rules of restarting and leaving.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) grace: Duration,
    pub(crate) first_delay: Duration,
    pub(crate) longest_delay: Duration,
    pub(crate) steady: Duration,
    pub(crate) failures: u32,
    /// After the last slot ended by itself, how long a plan that explains it may take to arrive.
    pub(crate) settle: Duration,
    /// After the first plan, how long adopted jobs may stay unnamed.
    pub(crate) claim: Duration,
}

impl Policy {
    /// The wait before the start that follows the `count`-th failure in a row.
    pub(super) fn delay(&self, count: u32) -> Duration {
        let doublings = count.saturating_sub(1).min(30);
        self.first_delay.saturating_mul(1 << doublings).min(self.longest_delay)
    }
}

/// How a process ended, with what helps to find out why.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// Log file and last line, or the reason why it didn't start.
    pub(crate) detail: String,
}

impl Failure {
    pub(super) fn describe(&self) -> String {
        let how = match self.exit {
            Exit::Code(code) => format!("ended with exit code {code}"),
            Exit::Signal(signal) => format!("was ended by signal {signal}"),
            Exit::Unknown => "ended".to_owned(),
            Exit::NotStarted => "could not be started".to_owned(),
        };
        format!("{how} ({})", self.detail)
    }
}

/// Something to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Start { job: u64, incarnation: u32, slot: SlotId },
    Signal { job: u64, incarnation: u32, slot: SlotId, signal: Signal },
}

/// What there is to do, and when to look again.
#[derive(Debug)]
pub(crate) struct Actions {
    pub(super) now: Duration,
    pub(crate) actions: Vec<Action>,
    pub(crate) wake: Option<Duration>,
}

impl Actions {
    /// What lies in the past was dealt with in this step.
    pub(super) fn wake_at(&mut self, at: Duration) {
        if at > self.now {
            self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
        }
    }
}
