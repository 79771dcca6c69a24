//! What of decisions and fits is open, and what is wanted next.

use std::time::{Duration, Instant};

use trainmaster_core::{
    TicketId,
    scheduler::{FitOutcome, Outcome},
};

/// First and longest wait after an engine that failed or was late.
const FIRST_WAIT: Duration = Duration::from_millis(100);
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Given-up engines and fits that may still be running; until one ends no more are started.
pub(super) const STRAYS: usize = 4;

/// A ticket's run came back.
pub(super) enum Returned {
    Decided(Outcome),
    Fitted(FitOutcome, TicketId),
}

pub(super) struct Open {
    pub(super) id: TicketId,
    pub(super) begun: Instant,
    pub(super) limit: Instant,
}

/// What is open, and what is wanted next.
pub(super) struct Deciding {
    pub(super) engine: Option<Open>,
    pub(super) fits: Option<Open>,
    /// Given up, but still running.
    pub(super) strays: usize,
    pub(super) not_before: Option<Instant>,
    pub(super) failures: u32,
    /// There may be something that no fit knows.
    pub(super) news: bool,
    /// The open round of fits covers only some of those that have news.
    pub(super) leaves_news: bool,
    pub(super) next_fits: Instant,
    /// Since when a decision is due and waits for fits.
    pub(super) due_since: Option<Instant>,
}

impl Deciding {
    pub(super) fn new() -> Self {
        Self {
            engine: None,
            fits: None,
            strays: 0,
            not_before: None,
            failures: 0,
            news: true,
            leaves_news: false,
            next_fits: Instant::now(),
            due_since: None,
        }
    }

    pub(super) fn back_off(&mut self) {
        let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(16)).min(LONGEST_WAIT);
        self.failures += 1;
        self.not_before = Some(Instant::now() + wait);
    }

    pub(super) fn may_begin(&self, now: Instant) -> bool {
        self.engine.is_none() && self.strays < STRAYS && self.not_before.is_none_or(|at| at <= now)
    }
}
