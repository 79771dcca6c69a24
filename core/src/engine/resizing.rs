//! Places for jobs whose shapes change: what runs stays, jobs without room shrink, and slow workers are replaced.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    board::{Board, Largest},
    forecast::Forecast,
    ledger::Ledger,
    placing::Placing,
    round::{Round, leaving},
};
use crate::budget::{Budget, EngineError};
use crate::{
    decision::Allocation,
    ids::{JobId, ServerId},
    job::{Elastic, Job, TrainingMode},
    place::Count,
    reason::Reason,
    resources::{Amounts, GPU},
    shape::{Role, Shape},
    state::State,
    time::Span,
};

/// A worker is tried while the job has more than this many restarts' time left: at best it halves that time, and every
/// second one may gain nothing.
const TRY_PAYS: f64 = 4.0;

/// A restart must pay within this part of the job's age per start: the more often it was started, the sooner.
const PAYS_WITHIN: f64 = 0.25;

/// A job counts as so much older, so that the first change may come soon.
const YOUNG: Span = Span::seconds(300);

/// Jobs that got a shape and found no room for it.
pub(crate) type Homeless<'a> = Vec<(&'a Arc<Job>, Reason)>;

/// How shapes become places.
#[derive(Clone, Debug)]
pub(crate) struct Resizing {
    /// Where slots go that can't stay.
    pub(crate) placing: Placing,
    /// Where only workers change, what runs stays where it is, so nothing restarts.
    pub(crate) in_place: bool,
    /// A job that fits nowhere keeps its old place, or tries a smaller shape, before it is paused.
    pub(crate) shrink_to_fit: bool,
    /// Slots without GPUs leave the CPU and memory of the smallest worker with a GPU beside each free one, if they can.
    pub(crate) spare_gpus: bool,
}

impl Resizing {
    /// Whether the manager allows worker changes without a restart, and the setting uses that.
    pub(crate) fn in_place(&self, state: &State) -> bool {
        let rules = &state.settings.shape;
        self.in_place && rules.grow_in_place && !rules.equal_per_server
    }

    /// Whether all-reduce jobs are kept on one server where that is faster.
    fn gathers(&self) -> bool {
        self.shrink_to_fit && matches!(self.placing, Placing::Even | Placing::Tight | Placing::Consolidate)
    }

    /// Smaller jobs first, each evenly on the minimum number of servers (Optimus, §4.2). Jobs with an unchanged shape
    /// stay, unless one of their servers is draining and there is room elsewhere. Returns the jobs without a place.
    pub(crate) fn place<'a, I>(
        &self,
        round: &mut Round<'_, I>,
        planned: &[(&Forecast<'a>, Shape)],
    ) -> Result<Homeless<'a>, EngineError> {
        let Round { state, board, budget, last, proposal, .. } = round;
        let leaving = leaving(state);
        type Moving<'m, 'a> = (f64, &'m Forecast<'a>, Shape);
        let old_shape = |job: &Job| job.verdict.allocation().map(|old| old.shape());
        let mut moving: Vec<Moving<'_, '_>> = { planned.iter() }
            .filter(|(of, shape)| old_shape(of.job) != Some(*shape) || leaving(of.job))
            .map(|(of, shape)| (of.job.total(*shape).dominant_share(&state.usable), *of, *shape))
            .collect();
        let smaller = |(mine, a, _): &Moving<'_, '_>, (theirs, b, _): &Moving<'_, '_>| {
            mine.total_cmp(theirs).then(a.job.id.cmp(&b.job.id))
        };
        moving.sort_by(smaller);
        let in_place = self.in_place(state);
        let may_stay = |of: &Forecast<'_>, shape: Shape| {
            let old = of.job.verdict.allocation().filter(|_| in_place && !leaving(of.job));
            old.is_some_and(|old| {
                old.shape().servers == shape.servers && of.job.issued.allocation.as_ref() == Some(old)
            })
        };
        let (staying, mut moving): (Vec<_>, Vec<_>) =
            moving.into_iter().partition(|(_, of, shape)| may_stay(of, *shape));
        let (growing, shrinking): (Vec<_>, Vec<_>) = staying
            .into_iter()
            .partition(|(_, of, shape)| old_shape(of.job).is_some_and(|old| old.workers < shape.workers));
        for (_, of, _) in moving.iter().chain(&shrinking) {
            board.release(state, of.job);
        }
        // These jobs come first, so that others can't take their current room. Growing jobs keep theirs until it is
        // their turn, and after it if they can't grow where they are.
        let mut elsewhere = Vec::new();
        for (demand, of, shape) in shrinking.into_iter().chain(growing) {
            let old = of.job.verdict.allocation();
            if old.is_some_and(|old| old.shape().workers < shape.workers) {
                board.release(state, of.job);
            }
            match self.stay(state, of, shape, board, budget)? {
                Some(allocation) => proposal.run(of.job, allocation),
                None => {
                    let holds = old.is_some_and(|old| board.restore(state, of.job, old));
                    elsewhere.push((holds, (demand, of, shape)));
                }
            }
        }
        if !elsewhere.is_empty() {
            for (holds, (_, of, _)) in &elsewhere {
                if *holds {
                    board.release(state, of.job);
                }
            }
            moving.extend(elsewhere.into_iter().map(|(_, moved)| moved));
            moving.sort_by(smaller);
        }
        let spared = if self.spare_gpus { smallest_gpu_worker(state) } else { None };
        let mut homeless: Vec<(&'a Arc<Job>, Shape)> = Vec::new();
        for (_, of, shape) in &moving {
            match self.find_place(state, (of, *shape), spared.as_ref(), board, last, budget)? {
                Some(allocation) => proposal.run(of.job, allocation),
                None => homeless.push((of.job, *shape)),
            }
        }
        if self.gathers() {
            self.tidy(round, planned)?;
        }
        let Round { state, board, proposal, .. } = round;
        let mut largest = Largest::default();
        let mut reasons = Vec::with_capacity(homeless.len());
        for (job, shape) in homeless {
            let reason = largest.reason(state, &board.room, job, shape);
            proposal.wait(job, reason.clone());
            reasons.push((job, reason));
        }
        Ok(reasons)
    }

    /// Gives jobs that keep their places other workers instead of slow ones, if that earns a restart back (Optimus,
    /// §5.2). The others stay if the manager can add workers to a running job. Otherwise the job restarts without the
    /// slow ones' servers. Each time that slow workers left a job, the next time has to earn twice as much, because
    /// some slowness follows the job. O(jobs), plus [`Board::replace`] or a placement for each job with slow workers.
    pub(crate) fn replace_slow_workers<'f, 'a: 'f, I>(
        &self,
        round: &mut Round<'_, I>,
        forecasts: impl IntoIterator<Item = &'f Forecast<'a>>,
    ) -> Result<(), EngineError> {
        let state = round.state;
        let changed: BTreeSet<JobId> = round.proposal.changes.iter().map(|(id, _)| *id).collect();
        for of in forecasts {
            let (job, stragglers) = (of.job, &of.job.learnt.stragglers);
            let old = job.verdict.allocation().filter(|old| job.issued.allocation.as_ref() == Some(*old));
            // Work items are placed one by one, by engines of their own.
            let Some(old) = old.filter(|old| old.work().is_empty() && !changed.contains(&job.id)) else { continue };
            let slow = || stragglers.found.iter().filter_map(|slow| old.slot(Role::Worker, slow.worker));
            let lost = stragglers.found.iter().map(|slow| 1.0 - slow.relative_speed);
            let lost = match job.spec.mode {
                // Each worker has a speed of its own.
                TrainingMode::Async => lost.sum::<f64>() / f64::from(old.shape().workers.max(1)),
                // All wait for the slowest one in each step.
                TrainingMode::Sync | TrainingMode::AllReduce => lost.fold(0.0, f64::max),
            };
            let gain = of.time_with(old) * lost;
            let price = job.learnt.restart_cost.as_seconds() * f64::from(1_u32 << stragglers.replaced.min(30));
            if slow().next().is_none() || !of.is_timed || gain <= price {
                continue;
            }
            if self.in_place(state) {
                let workers: Vec<u32> = slow().map(|slot| slot.index).collect();
                if let Some(next) = round.board.replace(state, job, old, &workers, round.budget)? {
                    if state.in_place(job, &next) {
                        round.proposal.run(job, next);
                        continue;
                    }
                    round.board.give_back(state, job, &next);
                    round.board.restore(state, job, old);
                }
            }
            round.board.release(state, job);
            slow().for_each(|slot| round.board.room.close(slot.server));
            let found = self.placing.place(state, round.board, job, old.shape(), round.last, round.budget);
            slow().for_each(|slot| round.board.room.reopen(state, slot.server));
            match found? {
                Some(next) => round.proposal.run(job, next),
                None => {
                    round.board.restore(state, job, old);
                }
            }
        }
        Ok(())
    }

    /// The shape that a running job should get in place of `new`: that one only if it makes up for its restart [soon
    /// enough](pays_within). The alternatives are the new workers with the old parameter servers, if that needs no
    /// restart, and the old shape; the one that gets further is used. More workers up to `tries` are tried if the job
    /// takes long enough. The ledger gets the difference.
    pub(crate) fn earned(
        &self,
        state: &State,
        of: &Forecast<'_>,
        new: Shape,
        tries: u32,
        ledger: &mut Ledger,
    ) -> Shape {
        let job = of.job;
        let Some(has) = job.verdict.allocation() else { return new };
        let old = has.shape();
        if old == new || !of.bounds.hold(old) {
            return new;
        }
        let restart = job.learnt.restart_cost.as_seconds();
        let is_tried = old.workers < new.workers && old.workers < tries;
        if is_tried && of.is_timed && of.time(old.workers, old.servers) > TRY_PAYS * restart {
            return new;
        }
        let goes_on = self.in_place(state) && job.elastic == Elastic::InPlace;
        let without = |shape: Shape| goes_on && shape.servers == old.servers;
        let now = of.time_with(has);
        let within = now.min(pays_within(job, state));
        // The remaining time, as if the job trained all the while until a restart has to be made up for.
        let end = |shape: Shape| {
            let time = if shape == old { now } else { of.time(shape.workers, shape.servers) };
            let cost = if shape == old || without(shape) { 0.0 } else { restart };
            if cost < within { time * within / (within - cost) } else { f64::INFINITY }
        };
        let mut best = new;
        ledger.take(job, &job.total(best), -1);
        for other in [Shape { servers: old.servers, ..new }, old] {
            // The cost of a restart can't be compared with times in an unknown unit, so the job isn't restarted.
            let is_sooner = if of.is_timed { end(other) <= end(best) } else { !without(best) };
            if (other == old || without(other)) && is_sooner && ledger.has(job, &job.total(other)) {
                best = other;
            }
        }
        ledger.take(job, &job.total(best), 1);
        best
    }

    /// A place for a running job that keeps its number of parameter servers, with all running slots in place. A job
    /// that grows gets as many workers as there is room for, unless it has to be near something and may have more
    /// elsewhere.
    fn stay(
        &self,
        state: &State,
        of: &Forecast<'_>,
        shape: Shape,
        board: &mut Board,
        budget: &mut Budget,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        let job = of.job;
        let Some(old) = job.verdict.allocation() else { return Ok(None) };
        if let Some(gathered) = self.gather(state, of, shape, board) {
            return Ok(Some(gathered));
        }
        let least = if job.domain.is_some() { shape.workers } else { old.shape().workers };
        let mut resized = board.resize(state, job, old, (least, shape.workers), budget)?;
        // Fewer new workers than wanted are too few for some jobs, or slower than none.
        let mut workers = resized.as_ref().map_or(0, |resized| resized.shape().workers);
        if old.shape().workers < workers && workers < shape.workers {
            let time = |workers: u32| of.time(workers, shape.servers);
            let fewer = of.bounds.workers_at_most(workers);
            workers = if time(fewer) < time(old.shape().workers) { fewer } else { old.shape().workers };
            if let Some(other) = resized.as_ref().filter(|resized| resized.shape().workers != workers) {
                board.give_back(state, job, other);
                resized = board.resize(state, job, old, (workers, workers), budget)?;
            }
        }
        let Some(resized) = resized else { return Ok(None) };
        let stays = resized == *old || state.in_place(job, &resized);
        if stays && !of.is_apart(&resized) {
            return Ok(Some(resized));
        }
        board.give_back(state, job, &resized);
        if !stays {
            return Ok(None);
        }
        // On one server it would be faster, with a restart, or with the workers that it has.
        let (here, now) = (of.time_with(&resized), of.time_with(old));
        if self.after_restart(state, of, of.time(shape.workers, shape.servers)) < here.min(now)
            && let Some(whole) = board.place_whole(state, job, shape, budget)?
        {
            return Ok(Some(whole));
        }
        let keeps = now <= here && old.shape().workers < resized.shape().workers;
        let place = if keeps { old.clone() } else { resized };
        Ok(Some(place).filter(|place| board.restore(state, job, place)))
    }

    /// All workers of a running all-reduce job on the server of its first one, if that is no restart. Takes the room.
    fn gather(&self, state: &State, of: &Forecast<'_>, shape: Shape, board: &mut Board) -> Option<Arc<Allocation>> {
        let job = of.job;
        let server = job.verdict.allocation()?.of(Role::Worker).first()?.server;
        let need = job.total(shape);
        // Workers that left a server for their slowness don't come back.
        let holds = of.may_share(shape.workers)
            && job.learnt.stragglers.replaced == 0
            && board.room.accepts(state, server, job)
            && board.room.holds(server, job, &need, shape.workers, shape.servers);
        if !holds {
            return None;
        }
        let found = board.take(state, job, &[Count { server, shape }])?;
        let stays = state.in_place(job, &found);
        if !stays {
            board.give_back(state, job, &found);
        }
        Some(found).filter(|_| stays)
    }

    /// A remaining time after a restart, as if the job trained all the while until the restart has to be made up for.
    /// A job that doesn't run has no restart to make up for. Infinite if the restart is never made up for.
    fn after_restart(&self, state: &State, of: &Forecast<'_>, time: f64) -> f64 {
        let Some(old) = of.job.verdict.allocation() else { return time };
        let cost = of.job.learnt.restart_cost.as_seconds();
        let within = of.time_with(old).min(pays_within(of.job, state));
        // The cost of a restart can't be compared with times in an unknown unit.
        if of.is_timed && cost < within { time * within / (within - cost) } else { f64::INFINITY }
    }

    /// A better place than a found one on several servers, of a job that one server could hold: fewer workers on one,
    /// or the old place. The place that is returned is taken, the found one is given back.
    fn nearer(
        &self,
        state: &State,
        (of, wanted): (&Forecast<'_>, Shape),
        found: Arc<Allocation>,
        board: &mut Board,
        budget: &mut Budget,
    ) -> Result<Arc<Allocation>, EngineError> {
        if !of.is_apart(&found) || !self.gathers() {
            return Ok(found);
        }
        let job = of.job;
        board.give_back(state, job, &found);
        let mut best = self.after_restart(state, of, of.time_with(&found));
        let mut place = found;
        // Not a larger one, whose room others may have got, and not one on a server that drains.
        let may_stay = |old: &Allocation| {
            let (has, accepts) = (old.shape(), |id: ServerId| board.room.accepts(state, id, job));
            has.workers <= wanted.workers
                && has.servers <= wanted.servers
                && of.bounds.hold(has)
                && old.slots().iter().all(|slot| accepts(slot.server))
        };
        let old = job.verdict.allocation().filter(|old| may_stay(old) && of.time_with(old) <= best);
        if let Some(old) = old.filter(|old| board.restore(state, job, old)) {
            best = of.time_with(old);
            place = old.clone();
            board.give_back(state, job, old);
        }
        let mut shape = wanted;
        loop {
            budget.spend(of.speeds())?;
            let time = self.after_restart(state, of, of.time(shape.workers, shape.servers));
            if time >= best {
                break;
            }
            if let Some(whole) = board.place_whole(state, job, shape, budget)? {
                return Ok(whole);
            }
            if shape.workers <= of.bounds.workers.0 {
                break;
            }
            shape.workers = of.bounds.fewer_workers(shape.workers);
        }
        let again = board.restore(state, job, &place);
        debug_assert!(again, "its room was just given back");
        Ok(place)
    }

    /// Brings all-reduce jobs that keep their shape, but are on several servers, to one if they are faster there:
    /// without a restart to that of their first worker, or to another one if that pays. O(jobs), and for each job that
    /// is apart a placement for each number of workers with which one server is faster.
    fn tidy<I>(&self, round: &mut Round<'_, I>, planned: &[(&Forecast<'_>, Shape)]) -> Result<(), EngineError> {
        let Round { state, board, budget, proposal, .. } = round;
        let leaving = leaving(state);
        let changed: BTreeSet<JobId> = proposal.changes.iter().map(|(id, _)| *id).collect();
        for (of, shape) in planned {
            let job = of.job;
            let Some(old) = job.verdict.allocation() else { continue };
            let same = old.shape() == *shape && job.issued.allocation.as_ref() == Some(old);
            let stays = changed.contains(&job.id) || leaving(job) || job.learnt.stragglers.replaced > 0;
            if !same || !of.is_apart(old) || stays || !old.work().is_empty() {
                continue;
            }
            let now = of.time_with(old);
            board.release(state, job);
            let (mut found, mut shape) = (None, *shape);
            loop {
                budget.spend(of.speeds())?;
                let time = of.time(shape.workers, shape.servers);
                if time < now && self.in_place(state) {
                    found = self.gather(state, of, shape, board);
                }
                if found.is_none() && self.after_restart(state, of, time) < now {
                    found = board.place_whole(state, job, shape, budget)?;
                }
                if found.is_some() || time >= now || shape.workers <= of.bounds.workers.0 {
                    break;
                }
                shape.workers = of.bounds.fewer_workers(shape.workers);
            }
            match found {
                Some(found) => proposal.run(job, found),
                None => {
                    board.restore(state, job, old);
                }
            }
        }
        Ok(())
    }

    fn find_place(
        &self,
        state: &State,
        (of, wanted): (&Forecast<'_>, Shape),
        spared: Option<&Amounts>,
        board: &mut Board,
        last: &mut u32,
        budget: &mut Budget,
    ) -> Result<Option<Arc<Allocation>>, EngineError> {
        let job = of.job;
        if let Some(worker) = spared {
            board.room.spare(Some(worker.clone()));
            let found = self.placing.place(state, board, job, wanted, last, budget);
            board.room.spare(None);
            if let Some(found) = found? {
                return self.nearer(state, (of, wanted), found, board, budget).map(Some);
            }
        }
        if let Some(found) = self.placing.place(state, board, job, wanted, last, budget)? {
            return self.nearer(state, (of, wanted), found, board, budget).map(Some);
        }
        let old = job.verdict.allocation().filter(|old| of.bounds.hold(old.shape()));
        let old = old.filter(|old| self.shrink_to_fit || old.shape() == wanted);
        if let Some(old) = old.filter(|old| board.restore(state, job, old)) {
            return Ok(Some(old.clone()));
        }
        if !self.shrink_to_fit {
            return Ok(None);
        }
        let least = of.bounds.least();
        let mut shape = wanted;
        while shape != least {
            // The role that exceeds its minimum by more gives up one slot, or as many as lead to an allowed number.
            let (w, p) = (shape.workers - least.workers, shape.servers - least.servers);
            if w >= p {
                shape.workers = of.fewer_workers(shape);
            } else {
                shape.servers -= 1;
            }
            if let Some(found) = self.placing.place(state, board, job, shape, last, budget)? {
                return self.nearer(state, (of, shape), found, board, budget).map(Some);
            }
        }
        Ok(None)
    }
}

/// The time within which a restart of a job must pay, in seconds: the more often it was started, the shorter.
fn pays_within(job: &Job, state: &State) -> f64 {
    let age = (state.now - job.arrival).max(Span::ZERO).as_seconds() + YOUNG.as_seconds();
    PAYS_WITHIN * age / f64::from(job.issued.incarnation.0.max(1))
}

/// The minimum demand of a worker with a GPU, per resource, over all jobs. None if no job has GPUs. O(jobs).
fn smallest_gpu_worker(state: &State) -> Option<Amounts> {
    let workers = state.jobs.values().map(|job| &job.worker.amounts).filter(|worker| worker[GPU] > 0);
    workers.fold(None, |least: Option<Amounts>, worker| match least {
        None => Some(worker.clone()),
        Some(least) => {
            let pairs: Vec<_> = least.iter().map(|(resource, each)| (resource, each.min(worker[resource]))).collect();
            Some(Amounts::of(&pairs))
        }
    })
}
