//! Questions about what would happen, answered on a copy.

use super::{Failure, Scheduler, Ticket, build};
use crate::{
    decision::Verdict,
    engine::Budget,
    event::{Event, EventError},
    ids::{JobId, TicketId},
    job::JobSpec,
    settings::Mode,
    state::State,
};

/// A job that would be accepted, and what the engine is yet to say of it. Like a [`Ticket`] it runs anywhere.
pub struct Admission {
    job: JobId,
    state: State,
    ticket: Ticket,
}

impl Admission {
    /// Lets the engine decide, on a copy. An engine that fails refuses nobody.
    ///
    /// # Errors
    /// It would refuse the job, or end it at once: why, in words.
    pub fn run(self, budget: Budget) -> Result<(), String> {
        let outcome = self.ticket.run(budget);
        let changes = outcome.proposal().map(|proposal| proposal.changes.iter());
        let verdict = changes.into_iter().flatten().find(|(job, _)| *job == self.job).map(|(_, verdict)| verdict);
        match verdict {
            Some(Verdict::Reject(reason) | Verdict::Stop(reason)) => {
                let tenant = self.state.job(self.job).map_or("", |job| &job.spec.tenant);
                Err(reason.describe_to(&self.state, tenant))
            }
            _ => Ok(()),
        }
    }
}

impl Scheduler {
    /// What another engine would propose now. Changes nothing.
    ///
    /// # Errors
    /// There is no such engine, or it fails.
    pub fn dry_run(&self, engine: Option<&str>) -> Result<crate::decision::Proposal, Failure> {
        self.dry_ticket(engine)?.run(Budget::UNLIMITED).result.map(|(proposal, ..)| proposal)
    }

    /// The same as a ticket, for hosts that run engines elsewhere: its outcome can't be committed.
    ///
    /// # Errors
    /// There is no such engine.
    pub fn dry_ticket(&self, engine: Option<&str>) -> Result<Ticket, Failure> {
        let mut settings = (*self.state.settings).clone();
        if let Some(name) = engine.filter(|name| *name != settings.engine) {
            settings.engine = name.into();
            settings.parameters.clear();
        }
        let engine = build(&settings)?;
        let same = settings.engine == self.state.settings.engine;
        let mut state = self.state.clone();
        state.settle(&[]);
        Ok(Ticket {
            id: TicketId(0),
            changes: state.changes.list().clone(),
            state,
            memo: if same { self.memo.boxed() } else { engine.new_memo() },
            engine,
            index: None,
        })
    }

    /// Whether a job would be accepted now. Changes nothing.
    ///
    /// # Errors
    /// As submitting it would.
    pub fn would_accept(&self, spec: JobSpec) -> Result<(), EventError> {
        self.with(spec).map(drop)
    }

    /// The state with one more job.
    fn with(&self, spec: JobSpec) -> Result<State, EventError> {
        self.supports(&spec)?;
        let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
        let mut copy = self.state.clone();
        copy.apply(copy.now, &event)?;
        Ok(copy)
    }

    /// The same, and for engines that decide at arrivals what they would say of it. `None`: the job is accepted, and
    /// nothing is decided yet. Changes nothing.
    ///
    /// # Errors
    /// As submitting it would.
    pub fn admission(&self, spec: JobSpec) -> Result<Option<Admission>, EventError> {
        let job = JobId(self.state.directory.next_job);
        let mut state = self.with(spec)?;
        if !self.engine.triggers().arrival || state.mode != Mode::Active || state.is_syncing() {
            return Ok(None);
        }
        state.settle(&[]);
        let ticket = Ticket {
            id: TicketId(0),
            changes: state.changes.list().clone(),
            state: state.clone(),
            memo: self.memo.boxed(),
            engine: self.engine.clone(),
            index: None,
        };
        Ok(Some(Admission { job, state, ticket }))
    }
}
