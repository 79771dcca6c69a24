//! What-if questions, answered on a copy of the state.

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

/// A job that would be accepted, with the engine's decision still open. Like a [`Ticket`], it runs on any thread.
pub struct Admission {
    job: JobId,
    state: State,
    ticket: Ticket,
}

impl Admission {
    /// Lets the engine decide on a copy. If the engine fails, the job isn't refused.
    ///
    /// # Errors
    /// The engine would refuse the job or end it immediately. The text states why.
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
    /// The proposal that an engine would make now. Changes nothing.
    ///
    /// # Errors
    /// There is no such engine, or it fails.
    pub fn dry_run(&self, engine: Option<&str>) -> Result<crate::decision::Proposal, Failure> {
        self.dry_ticket(engine)?.run(Budget::UNLIMITED).result.map(|(proposal, ..)| proposal)
    }

    /// The same as a ticket, for hosts that run engines elsewhere. Its outcome can't be committed.
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
        state.choose_domains();
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
    /// The errors of a submission.
    pub fn would_accept(&self, spec: JobSpec) -> Result<(), EventError> {
        self.with(spec).map(drop)
    }

    /// A copy of the state with one more job.
    fn with(&self, spec: JobSpec) -> Result<State, EventError> {
        self.supports(&spec)?;
        let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
        let mut copy = self.state.clone();
        copy.apply(copy.now, &event)?;
        Ok(copy)
    }

    /// Whether a job would be accepted now. For engines that decide at arrivals, the result includes the pending
    /// decision. `None`: the job is accepted, and nothing is decided yet. Changes nothing.
    ///
    /// # Errors
    /// The errors of a submission.
    pub fn admission(&self, spec: JobSpec) -> Result<Option<Admission>, EventError> {
        let job = JobId(self.state.directory.next_job);
        let mut state = self.with(spec)?;
        if !self.engine.triggers().arrival || state.mode != Mode::Active || state.is_syncing() {
            return Ok(None);
        }
        state.settle(&[]);
        state.choose_domains();
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
