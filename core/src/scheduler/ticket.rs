//! Tickets: one attempt to decide, or to fit, that runs anywhere and for as long as its host lets it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use imbl::Vector;

use crate::{
    decision::Proposal,
    engines::{AnyEngine, AnyIndex, AnyMemo, Budget, EngineError},
    fit::{Convergence, ConvergenceOptions, OptStop, SpeedModel, SpeedOptions, learning_curve},
    guard::{self, Sums},
    ids::{JobId, TicketId},
    job::{Fits, Job, TrainingMode},
    policy::Demonstration,
    state::{Change, Model, State},
};

/// One attempt to decide: a consistent copy of everything the engine needs.
pub struct Ticket {
    pub(super) id: TicketId,
    pub(super) state: State,
    pub(super) changes: Vector<Change>,
    pub(super) engine: Arc<dyn AnyEngine>,
    pub(super) memo: Box<dyn AnyMemo>,
    pub(super) index: AnyIndex,
}

/// What became of a [`Ticket`].
pub struct Outcome {
    pub(super) ticket: TicketId,
    pub(super) result: Result<(Proposal, Sums, Box<dyn AnyMemo>), EngineError>,
    pub(super) index: AnyIndex,
    pub(super) budget: Budget,
    /// [`State::moved`] of the state that the guard checked it against.
    pub(super) moved: u64,
}

impl Ticket {
    /// Its number.
    pub fn id(&self) -> TicketId {
        self.id
    }

    /// What the engine's heuristic would choose, for a policy to imitate; see
    /// [`Engine::demonstrate`](crate::engines::Engine::demonstrate).
    pub fn demonstrate(&self) -> Vec<Demonstration> {
        self.engine.demonstrate(&self.state, &mut *self.memo.boxed())
    }

    /// Lets the engine decide and the guard check. Any thread; a panic ends up in the outcome.
    pub fn run(mut self, mut budget: Budget) -> Outcome {
        let moved = self.state.moved;
        let given = budget;
        let result = catch_unwind(AssertUnwindSafe(|| {
            let proposal =
                self.engine.decide(&self.state, &self.changes, &mut *self.memo, &mut self.index, &mut budget)?;
            let sums = guard::check(&self.state, &proposal, self.engine.gang(), self.engine.limits())?;
            Ok((proposal, sums))
        }));
        let result = result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(EngineError::Panicked(text.unwrap_or_else(|| "no message".into())))
        });
        if result.is_err() {
            self.index = None;
        }
        let memo = self.memo;
        Outcome {
            ticket: self.id,
            result: result.map(|(proposal, sums)| (proposal, sums, memo)),
            index: self.index,
            budget: given,
            moved,
        }
    }
}

impl Outcome {
    /// What it is the outcome of.
    pub fn ticket(&self) -> TicketId {
        self.ticket
    }

    /// Why there is no proposal.
    pub fn error(&self) -> Option<&EngineError> {
        self.result.as_ref().err()
    }

    /// What the engine proposes, as it stood when the ticket was made.
    pub fn proposal(&self) -> Option<&Proposal> {
        self.result.as_ref().ok().map(|(proposal, ..)| proposal)
    }
}

/// Fits to be made: apart from decisions, because they take longer and no decision has to wait for them.
pub struct FitTicket {
    pub(super) id: TicketId,
    pub(super) jobs: Vec<(Arc<Job>, Option<Arc<Model>>)>,
}

/// What became of a [`FitTicket`].
pub struct FitOutcome {
    pub(super) ticket: TicketId,
    pub(super) fits: Vec<(JobId, Fits)>,
}

impl FitTicket {
    /// Its number.
    pub fn id(&self) -> TicketId {
        self.id
    }

    /// How many jobs it fits.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there is nothing to fit.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Fits; about a millisecond a job. Any thread. A fit that fails leaves that job without one.
    pub fn run(self) -> FitOutcome {
        let safe =
            |job: &Job, model: Option<&Model>| catch_unwind(AssertUnwindSafe(|| fit(job, model))).unwrap_or_default();
        let fits = self.jobs.iter().map(|(job, model)| (job.id, safe(job, model.as_deref()))).collect();
        FitOutcome { ticket: self.id, fits }
    }
}

/// The speed function's form for a job.
pub(crate) fn speed_model(job: &Job) -> SpeedModel {
    let batch = job.spec.batch as f64;
    match job.spec.mode {
        TrainingMode::Sync => SpeedModel::Sync { batch },
        TrainingMode::Async => SpeedModel::Async,
        TrainingMode::AllReduce => SpeedModel::AllReduce { batch },
    }
}

fn fit(job: &Job, model: Option<&Model>) -> Fits {
    let form = speed_model(job);
    let prior = model
        .filter(|model| !model.speeds.is_empty())
        .map(|model| model.speeds.fit(form, &SpeedOptions::default()).prior(1.0));
    let known = prior.is_some() || !job.speeds.is_empty();
    let options = SpeedOptions { prior, ..SpeedOptions::default() };
    let loss = Convergence::fit(&job.losses, &ConvergenceOptions::default()).ok();
    let rule = &job.spec.convergence;
    let convergence = loss
        .as_ref()
        .map(|loss| loss.converges(rule.delta, rule.patience, rule.max_epochs.into(), job.progress.epoch.into()));
    let rule = OptStop::new(rule.max_epochs.into(), job.spec.accuracy);
    let stop =
        job.may_stop_early().then(|| rule.decide(&job.accuracies, &learning_curve::Options::default())).flatten();
    Fits { speed: known.then(|| job.speeds.fit(form, &options)), loss, convergence, stop }
}

impl FitOutcome {
    /// Lets a simulation put predictions with a known error in place of the fits.
    pub(crate) fn revise(&mut self, mut revise: impl FnMut(JobId, &mut Fits)) {
        self.fits.iter_mut().for_each(|(job, fits)| revise(*job, fits));
    }
}
