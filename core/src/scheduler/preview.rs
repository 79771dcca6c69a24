//! Questions about what would happen, answered on a copy.

use super::{Scheduler, Ticket, build};
use crate::{
    engines::{Budget, EngineError},
    event::{Event, EventError},
    ids::TicketId,
    job::JobSpec,
};

impl Scheduler {
    /// What another engine would propose now. Changes nothing.
    ///
    /// # Errors
    /// There is no such engine, or it fails.
    pub fn dry_run(&self, engine: Option<&str>) -> Result<crate::decision::Proposal, EngineError> {
        self.dry_ticket(engine)?.run(Budget::UNLIMITED).result.map(|(proposal, ..)| proposal)
    }

    /// The same as a ticket, for hosts that run engines elsewhere: its outcome can't be committed.
    ///
    /// # Errors
    /// There is no such engine.
    pub fn dry_ticket(&self, engine: Option<&str>) -> Result<Ticket, EngineError> {
        let mut settings = (*self.state.settings).clone();
        if let Some(name) = engine.filter(|name| *name != settings.engine) {
            settings.engine = name.into();
            settings.parameters.clear();
        }
        let engine = build(&settings).map_err(|error| EngineError::Other(error.to_string()))?;
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
        self.supports(&spec)?;
        let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
        let mut copy = self.state.clone();
        copy.apply(copy.now, &event)
    }
}
