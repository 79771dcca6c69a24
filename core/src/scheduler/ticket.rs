//! Tickets: attempts to decide or to fit that run on any thread, within the host's time limit.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use imbl::Vector;
use thiserror::Error;

use crate::{
    decision::Proposal,
    engine::{AnyEngine, AnyIndex, AnyMemo, Budget, EngineError},
    fit::{
        Convergence, ConvergenceOptions, OptStop, Prediction, SpeedFit, SpeedOptions, SpeedSample, TypeSpeeds,
        learning_curve, speed::Goodput,
    },
    guard::{self, Violation},
    ids::{JobId, TicketId},
    job::{Fits, Job},
    policy::Demonstration,
    settings::SettingsError,
    state::{Change, Model, State, Sums, TypesByTenant},
};

/// Why an attempt to decide failed. The last plan stays in force.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// The engine couldn't decide.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine took too long.
    #[error("the engine took longer than its host allows")]
    Late,
    /// The engine panicked.
    #[error("the engine panicked: {0}")]
    Panicked(String),
    /// The proposal breaks a rule.
    #[error("the engine broke a rule: {0}")]
    Violation(#[from] Violation),
    /// There is no such engine, or a parameter isn't allowed.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// One attempt to decide, with a consistent copy of all inputs of the engine.
pub struct Ticket {
    pub(super) id: TicketId,
    pub(super) state: State,
    pub(super) changes: Vector<Change>,
    pub(super) engine: Arc<dyn AnyEngine>,
    pub(super) memo: Box<dyn AnyMemo>,
    pub(super) index: AnyIndex,
}

/// The outcome of a [`Ticket`].
pub struct Outcome {
    pub(super) ticket: TicketId,
    pub(super) result: Result<(Proposal, Sums, Box<dyn AnyMemo>), Failure>,
    pub(super) index: AnyIndex,
    pub(super) budget: Budget,
    /// [`State::moved`] of the state that the guard checked the proposal against.
    pub(super) moved: u64,
}

impl Ticket {
    /// The ticket's number.
    pub fn id(&self) -> TicketId {
        self.id
    }

    /// The choices of the engine's heuristic, for a policy to imitate. See
    /// [`Engine::demonstrate`](crate::engine::Engine::demonstrate).
    pub fn demonstrate(&self) -> Vec<Demonstration> {
        self.engine.demonstrate(&self.state, &mut *self.memo.boxed())
    }

    /// Runs the engine and the guard, on any thread. The outcome reports a panic.
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
            Err(Failure::Panicked(text.unwrap_or_else(|| "no message".into())))
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
    /// The ticket of this outcome.
    pub fn ticket(&self) -> TicketId {
        self.ticket
    }

    /// The failure, if there is no proposal.
    pub fn error(&self) -> Option<&Failure> {
        self.result.as_ref().err()
    }

    /// The engine's proposal, for the state at the ticket's creation.
    pub fn proposal(&self) -> Option<&Proposal> {
        self.result.as_ref().ok().map(|(proposal, ..)| proposal)
    }
}

/// A set of fits to compute. They are separate from decisions because they take longer and no decision has to wait for
/// them.
pub struct FitTicket {
    pub(super) id: TicketId,
    pub(super) jobs: Vec<(Arc<Job>, Option<Arc<Model>>)>,
    pub(super) types: TypesByTenant,
}

/// The outcome of a [`FitTicket`].
pub struct FitOutcome {
    pub(super) ticket: TicketId,
    pub(super) fits: Vec<(JobId, Fits)>,
}

/// The jobs of a new fit ticket, from those with new reports, in turns: one job of each manager, then a second one of
/// each, and so on. Within a manager, one job of each tenant, then a second one, and so on. The order within a turn
/// differs from ticket to ticket, so that no job is always last.
pub(super) fn turns(state: &State, ticket: TicketId) -> Vec<JobId> {
    if state.pending.unfitted.len() <= FitTicket::MOST {
        return state.pending.unfitted.iter().copied().collect();
    }
    // The last step of SplitMix64. It scatters similar numbers.
    let scattered = |job: JobId| {
        let mut x = job.0.wrapping_add(ticket.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    // The turn of each job, and its place within the turn.
    type Turns = Vec<(usize, u64, JobId)>;
    let number = |jobs: &mut Turns| {
        jobs.sort_unstable();
        for (turn, job) in jobs.iter_mut().enumerate() {
            job.0 = turn;
        }
    };
    let mut managers: BTreeMap<&str, BTreeMap<u32, Turns>> = BTreeMap::new();
    for job in state.pending.unfitted.iter().filter_map(|id| state.job(*id)) {
        let manager = job.external.as_ref().map_or("", |external| &external.cluster);
        let tenants = managers.entry(manager).or_default();
        tenants.entry(job.tenant.0).or_default().push((0, scattered(job.id), job.id));
    }
    let mut all = Turns::with_capacity(state.pending.unfitted.len());
    for mut tenants in managers.into_values() {
        tenants.values_mut().for_each(number);
        let mut jobs: Turns = tenants.into_values().flatten().collect();
        number(&mut jobs);
        all.extend(jobs);
    }
    all.sort_unstable();
    all.into_iter().take(FitTicket::MOST).map(|(_, _, job)| job).collect()
}

impl FitTicket {
    /// Maximum number of jobs in a ticket. It bounds the wait for the next ticket, whatever the number of jobs.
    pub const MOST: usize = 250;

    /// The ticket's number.
    pub fn id(&self) -> TicketId {
        self.id
    }

    /// Number of jobs.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether there is nothing to fit.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Computes the fits, on any thread, in about a millisecond per job. A job whose fit fails gets none.
    pub fn run(self) -> FitOutcome {
        let safe = |job: &Job, model: Option<&Model>| {
            catch_unwind(AssertUnwindSafe(|| fit(job, model, self.types.of(job.tenant)))).unwrap_or_default()
        };
        let fits = self.jobs.iter().map(|(job, model)| (job.id, safe(job, model.as_deref()))).collect();
        FitOutcome { ticket: self.id, fits }
    }
}

fn fit(job: &Job, model: Option<&Model>, types: &TypeSpeeds) -> Fits {
    let form = job.speed_model();
    let others =
        model.filter(|model| !model.speeds.is_empty()).map(|model| model.speeds.fit(form, &SpeedOptions::default()));
    let on = job.worker.speed_type();
    let all = job.learnt.speeds.samples();
    let of_type = |kind: u16| all.iter().filter(|sample| sample.server_type == kind).copied().collect::<Vec<_>>();
    // A profile may be of any type. It counts until there is a report.
    let own = Some(of_type(on)).filter(|own| !own.is_empty()).unwrap_or_else(|| of_type(0));
    let mut speed = SpeedFit::on_type(form, &own, others.as_ref(), on, types);
    if job.has_speed_table() {
        let alike = |sample: &SpeedSample| {
            sample.server_type == on && sample.batch.is_none_or(|batch| batch == job.spec.batch as f64)
        };
        let of_model = model.map(|model| model.speeds.known()).unwrap_or_default();
        let of_model: Vec<_> = of_model.into_iter().filter(alike).collect();
        speed = speed.map(|fit| fit.with_table(&own, &of_model));
    }
    if let (Some(fit), Some(batching)) = (&mut speed, job.batching()) {
        let others =
            model.and_then(|model| model.noise.at(job.examples_done(), (batching.range.min, batching.range.max)));
        fit.goodput = batching.noise_by_batch(others).map(|noise| Goodput::new(batching.range, noise));
    }
    let loss = Convergence::fit(&job.learnt.losses, &ConvergenceOptions::default()).ok();
    let rule = &job.spec.convergence;
    let done = job.learnt.progress.epoch.into();
    let convergence = match rule.fixed() {
        Some(epochs) => Some(Prediction::certain(epochs.into(), done)),
        None => loss.as_ref().map(|loss| loss.converges(rule.delta, rule.patience, rule.max_epochs.into(), done)),
    };
    let rule = OptStop::new(rule.max_epochs.into(), job.spec.accuracy);
    let stop = job
        .may_stop_early()
        .then(|| rule.decide(&job.learnt.accuracies, &learning_curve::Options::default()))
        .flatten();
    Fits { speed, loss, convergence, stop }
}

impl FitOutcome {
    /// Lets a simulation replace fits by predictions with a known error.
    pub fn revise(&mut self, mut revise: impl FnMut(JobId, &mut Fits)) {
        self.fits.iter_mut().for_each(|(job, fits)| revise(*job, fits));
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        event::{End, Event},
        job::{ExternalId, JobSpec, ProfiledSpeed},
        scheduler::{Scheduler, Why},
        settings::Settings,
        time::Time,
    };

    use super::*;

    #[test]
    fn nobody_waits_for_the_fits_of_anothers_many_jobs() {
        let mut scheduler = Scheduler::new(Settings { engine: "fifo".into(), ..Settings::default() }).unwrap();
        for at in 0..1003 {
            let tenant = if at < 1000 { "flood" } else { "modest" };
            let profile = vec![ProfiledSpeed { servers: 1, workers: 1, speed: 2.0 }];
            let spec = JobSpec { tenant: tenant.into(), profile, ..JobSpec::minimal(&format!("job{at}")) };
            let event = Event::JobSubmitted { spec: Box::new(spec), external: None, token_hash: None };
            scheduler.apply(Time(0), event).unwrap();
        }
        let is_modest = |job: &(Arc<Job>, Option<Arc<Model>>)| job.0.spec.tenant == "modest";
        let first = scheduler.prepare_fits(Time(1)).unwrap();
        assert_eq!((first.len(), first.jobs.iter().filter(|job| is_modest(job)).count()), (FitTicket::MOST, 3));
        let mut fitted: Vec<_> = first.jobs.iter().map(|(job, _)| job.id).collect();
        scheduler.commit_fits(Time(1), first.run()).unwrap();
        while let Some(ticket) = scheduler.prepare_fits(Time(1)) {
            assert!(scheduler.has_news() || ticket.len() == 3);
            fitted.extend(ticket.jobs.iter().map(|(job, _)| job.id));
            scheduler.commit_fits(Time(1), ticket.run()).unwrap();
        }
        fitted.sort_unstable();
        assert!(fitted.iter().copied().eq(scheduler.state().jobs.keys().copied()), "each once");
    }

    #[test]
    fn who_names_many_tenants_has_one_turn_and_what_has_ended_none() {
        let mut scheduler = Scheduler::new(Settings { engine: "fifo".into(), ..Settings::default() }).unwrap();
        for at in 0..600 {
            let external = (at >= 10).then(|| ExternalId { cluster: "evil".into(), native: format!("{at}") });
            let profile = vec![ProfiledSpeed { servers: 1, workers: 1, speed: 2.0 }];
            let spec = JobSpec { tenant: format!("t{at}"), profile, ..JobSpec::minimal(&format!("job{at}")) };
            let event = Event::JobSubmitted { spec: Box::new(spec), external, token_hash: None };
            scheduler.apply(Time(0), event).unwrap();
        }
        let ticket = scheduler.prepare_fits(Time(1)).unwrap();
        assert_eq!(ticket.jobs.iter().filter(|(job, _)| job.external.is_none()).count(), 10, "all of theirs");
        let of = |ticket: &FitTicket| ticket.jobs.iter().map(|(job, _)| job.id).collect::<Vec<_>>();
        let first = of(&ticket);
        // The ticket is lost. The next ones contain jobs of other tenants.
        let second = of(&scheduler.prepare_fits(Time(1)).unwrap());
        assert!(second.iter().any(|job| !first.contains(job)));
        // All jobs end while a ticket covers them, so no fit is pending.
        for job in scheduler.state().jobs.keys().copied().collect::<Vec<_>>() {
            scheduler.apply(Time(2), Event::JobEnded { job, end: End::Cancelled }).unwrap();
        }
        let open = scheduler.open_fit.unwrap();
        scheduler.abandon(Time(2), open, Why::Lost);
        assert!(!scheduler.has_news() && scheduler.prepare_fits(Time(2)).is_none());
    }
}
