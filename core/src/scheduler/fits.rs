//! Fits of the jobs with new reports, and their tickets.

use std::sync::Arc;

use super::{FitOutcome, FitTicket, Scheduler, Superseded, ticket};
use crate::{ids::TicketId, journal::Record, state::Change, time::Time};

impl Scheduler {
    /// Marks the jobs of a lost fit ticket for the next one, except those that have ended.
    pub(super) fn take_fits_back(&mut self) {
        for job in std::mem::take(&mut self.fitting) {
            if self.state.jobs.contains_key(&job) {
                self.state.pending.unfitted.insert(job);
            }
        }
    }

    /// Whether jobs have reports that no fit ticket covers yet.
    pub fn has_news(&self) -> bool {
        !self.state.pending.unfitted.is_empty()
    }

    /// Opens a ticket for the fits of jobs with new reports. `None` if there are none. A ticket covers
    /// [`FitTicket::MOST`] jobs, in turns of managers and their tenants. Further jobs are in the next tickets. O(n log
    /// n) in the jobs with new reports.
    pub fn prepare_fits(&mut self, at: Time) -> Option<FitTicket> {
        if self.state.pending.unfitted.is_empty() && self.fitting.is_empty() {
            return None;
        }
        self.state.now = self.state.now.max(at);
        // An open ticket is superseded by one that also covers its jobs.
        self.take_fits_back();
        let id = TicketId(self.next_ticket);
        self.fitting = ticket::turns(&self.state, id);
        for job in &self.fitting {
            self.state.pending.unfitted.remove(job);
        }
        let state = &self.state;
        let jobs = self
            .fitting
            .iter()
            .filter_map(|id| state.job(*id))
            .map(|job| (job.clone(), state.models.get(&job.model).cloned()))
            .collect();
        self.next_ticket += 1;
        self.open_fit = Some(id);
        self.record(|| Record::FitsPrepared { at, ticket: id });
        Some(FitTicket { id, jobs, types: self.state.type_speeds() })
    }

    /// Commits fits.
    ///
    /// # Errors
    /// A newer fit ticket was prepared, or this one was abandoned.
    pub fn commit_fits(&mut self, at: Time, outcome: FitOutcome) -> Result<(), Superseded> {
        if self.open_fit != Some(outcome.ticket) {
            return Err(Superseded(outcome.ticket));
        }
        self.open_fit = None;
        self.fitting.clear();
        self.state.now = self.state.now.max(at);
        let fitted: Vec<_> = outcome.fits.iter().map(|(id, _)| *id).collect();
        for (id, fits) in outcome.fits {
            if let Some(job) = self.state.job_mut(id) {
                job.learnt.fits = Arc::new(fits);
                self.state.note(Change::Job(id));
            }
        }
        self.state.choose_batches(fitted);
        self.record(|| Record::FitsCommitted { at, ticket: outcome.ticket });
        Ok(())
    }
}
