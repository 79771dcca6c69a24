//! Changes for the engine, with their urgency.

use super::{Change, State, changes::Urgency};
use crate::{decision::Verdict, ids::ServerId, reason::Reason};

impl State {
    pub(crate) fn note(&mut self, change: Change) {
        let urgency = match change {
            Change::Dropped(_) | Change::Settings => Urgency { at_once: true, ..Urgency::default() },
            // A job that completed a chunk has fewer chunks left for its workers.
            Change::Ended(_) | Change::Trained(_) => Urgency { departure: true, ..Urgency::default() },
            // The decision stops the job, which frees its room.
            Change::Job(id)
                if self.settings.early_stop && self.job(id).is_some_and(|job| self.stops_early(job).is_some()) =>
            {
                Urgency { departure: true, ..Urgency::default() }
            }
            Change::Job(id) => match self.job(id).map(|job| &job.verdict) {
                // Facts that an unsupported job lacked may be known now.
                Some(Verdict::Wait(Reason::NotConsidered | Reason::Unsupported { .. })) => {
                    Urgency { arrival: true, ..Urgency::default() }
                }
                // The job's room is free.
                Some(Verdict::Wait(Reason::Held)) => Urgency { departure: true, ..Urgency::default() },
                _ => Urgency::default(),
            },
            // Changes of the server itself are noted by `note_changed_server`.
            Change::Server(_) | Change::Measured(_) => Urgency::default(),
        };
        self.push(change, urgency);
    }

    /// Notes that a server changed. Another decision is due, also if an engine is at work, because its ticket doesn't
    /// contain the change.
    pub(super) fn note_changed_server(&mut self, server: ServerId) {
        self.push(Change::Server(server), Urgency { at_once: true, ..Urgency::default() });
    }

    fn push(&mut self, change: Change, urgency: Urgency) {
        self.changes.push(change, urgency);
        if self.changes.is_long() {
            let jobs = &self.jobs;
            self.changes.compact(|id| jobs.contains_key(&id));
        }
    }
}
