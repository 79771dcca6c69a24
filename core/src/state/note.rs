//! News for the engine, and how urgent it is.

use super::{Change, State, changes::Urgency};
use crate::{decision::Verdict, reason::Reason};

impl State {
    pub(crate) fn note(&mut self, change: Change) {
        let urgency = match change {
            Change::Dropped(_) | Change::Settings => Urgency { at_once: true, ..Urgency::default() },
            // Who trained a chunk has a worker less to feed.
            Change::Ended(_) | Change::Trained(_) => Urgency { departure: true, ..Urgency::default() },
            Change::Job(id) => match self.job(id).map(|job| &job.verdict) {
                // What was unknown about a job that couldn't be run may be known now.
                Some(Verdict::Wait(Reason::NotConsidered | Reason::Unsupported { .. })) => {
                    Urgency { arrival: true, ..Urgency::default() }
                }
                // What it had is free.
                Some(Verdict::Wait(Reason::Held)) => Urgency { departure: true, ..Urgency::default() },
                _ => Urgency::default(),
            },
            // Where the plan may no longer fit, `unsettled` says so.
            Change::Server(_) | Change::Measured(_) => Urgency::default(),
        };
        self.changes.push(change, urgency);
        if self.changes.is_long() {
            let jobs = &self.jobs;
            self.changes.compact(|id| jobs.contains_key(&id));
        }
    }
}
