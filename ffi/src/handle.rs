//! A scheduler's handle, and its state after a panic.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, TryLockError},
};

use trainmaster_core::{Issue, Mode, Scheduler, Verdict};

use crate::{
    borrow,
    error::{Failure, trainmaster_error as Code},
    guard,
    owned::{Log, trainmaster_log_level as Level},
};

/// The state machine of the policy core. One thread at a time may use it. A call during another one, or from within one
/// of its callbacks, only returns TRAINMASTER_ERROR_BUSY. Its tickets may run on other threads at the same time.
pub struct trainmaster_scheduler(Mutex<Inner>);

pub(crate) struct Inner {
    pub(crate) core: Scheduler,
    /// Changes with each restore, which makes earlier tickets void.
    pub(crate) identity: Arc<()>,
    /// Records that the caller hasn't taken yet.
    pub(crate) records: VecDeque<Vec<u8>>,
    pub(crate) keeps_journal: bool,
    pub(crate) log: Option<Log>,
    /// Set by a panic: the release of all jobs.
    pub(crate) released: Option<Vec<Issue>>,
    #[cfg(feature = "fault-injection")]
    pub(crate) fault: Option<crate::fault::Fault>,
}

impl trainmaster_scheduler {
    pub(crate) fn new(core: Scheduler) -> Self {
        Self(Mutex::new(Inner::new(core)))
    }

    /// The scheduler behind a pointer, unless it is in use.
    pub(crate) fn open<'a>(scheduler: *const Self) -> Result<MutexGuard<'a, Inner>, Failure> {
        match borrow::reference(scheduler, "scheduler")?.0.try_lock() {
            Ok(inner) => Ok(inner),
            // No panic leaves a call, so this can't happen, and the state is valid.
            Err(TryLockError::Poisoned(inner)) => Ok(inner.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Failure::new(Code::Busy, "the scheduler is in use, by another thread or a callback's caller"))
            }
        }
    }

    /// The same, unless it is poisoned.
    pub(crate) fn healthy<'a>(scheduler: *const Self) -> Result<MutexGuard<'a, Inner>, Failure> {
        let inner = Self::open(scheduler)?;
        if inner.released.is_some() {
            let text = "the scheduler is poisoned by an earlier panic; restore it from its journal";
            return Err(Failure::new(Code::Poisoned, text));
        }
        Ok(inner)
    }
}

impl Inner {
    fn new(core: Scheduler) -> Self {
        Self {
            core,
            identity: Arc::default(),
            records: VecDeque::new(),
            keeps_journal: false,
            log: None,
            released: None,
            #[cfg(feature = "fault-injection")]
            fault: None,
        }
    }

    pub(crate) fn log(&self, level: Level, text: &str) {
        if let Some(log) = self.log {
            log.write(level as u32, text);
        }
    }

    /// Changes the scheduler. A panic poisons it, because the state within the change is unknown. Then jobs are
    /// released, and only earlier records of its journal are valid.
    pub(crate) fn change<T>(&mut self, body: impl FnOnce(&mut Scheduler) -> Result<T, Failure>) -> Result<T, Failure> {
        let Self { core, .. } = self;
        match guard::catch(|| body(core)) {
            Ok(result) => {
                self.records.extend(self.core.drain_journal());
                result
            }
            Err(words) => {
                self.log(Level::Error, &format!("a bug in trainmaster, every job is released: {words}"));
                self.released = Some(guard::catch(|| release(&self.core)).unwrap_or_default());
                Err(guard::panicked(&words))
            }
        }
    }

    /// The same as [`change`](Self::change), with a fault if a test has injected one.
    pub(crate) fn change_at<T>(
        &mut self,
        place: Place,
        body: impl FnOnce(&mut Scheduler) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        #[cfg(feature = "fault-injection")]
        let fault = self.fault.take_if(|fault| fault.is_at(place));
        #[cfg(not(feature = "fault-injection"))]
        let _ = place;
        self.change(|core| {
            let result = body(core);
            #[cfg(feature = "fault-injection")]
            crate::fault::strike(fault);
            result
        })
    }

    /// Replaces the core by a restored one.
    pub(crate) fn replace(&mut self, core: Scheduler) {
        self.core = core;
        self.identity = Arc::default();
        self.records.clear();
        self.released = None;
        #[cfg(feature = "fault-injection")]
        self.fault.take();
        if self.keeps_journal {
            self.core.start_journal();
            self.records.extend(self.core.drain_journal());
        }
    }

    /// Whether the fallback is in charge, and the mode. A failure can change both.
    pub(crate) fn charge(&self) -> (bool, Mode) {
        (self.core.is_fallback(), self.core.state().mode)
    }

    /// Logs the effects of an engine's failure.
    pub(crate) fn note_failure(&self, was: (bool, Mode), failure: Option<&str>) {
        let Some(failure) = failure else { return };
        let (was_fallback, mode) = was;
        let who = if was_fallback { "fallback: " } else { "" };
        let (level, next) = match () {
            () if mode != self.core.state().mode => (Level::Error, "scheduling is paused, every job is its manager's"),
            () if was_fallback != self.core.is_fallback() => (Level::Warning, "the fallback engine takes over"),
            () => (Level::Warning, "the last plan stands"),
        };
        self.log(level, &format!("{who}{failure}; {next}"));
    }
}

/// Places for faults in tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Apply,
    Commit,
}

/// The issues that hand all jobs back to their managers.
fn release(core: &Scheduler) -> Vec<Issue> {
    let state = core.state();
    let shape = |job: &trainmaster_core::Job| {
        let given =
            job.issued.allocation.as_ref().or(job.seen.allocation.as_ref()).map(|allocation| allocation.shape());
        given.filter(|shape| !shape.is_empty()).unwrap_or_else(|| job.spec.requested())
    };
    let issue = |job: &Arc<trainmaster_core::Job>| Issue {
        job: job.id,
        verdict: Verdict::Release(shape(job)),
        incarnation: job.issued.incarnation,
        revision: job.issued.revision,
    };
    state.jobs.values().map(issue).collect()
}
