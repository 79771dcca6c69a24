//! Reports of running jobs.

use std::sync::Arc;

use super::{Change, State};
use crate::{
    decision::Allocation,
    event::{EventError, Report},
    fit::{SpeedSample, StragglerOptions, StragglerSignal, StragglerWatch},
    ids::{Incarnation, JobId},
    job::{Batching, Dataset, Job},
    shape::Role,
    time::Span,
};

/// Maximum speed in a report, in steps per second. Higher values are mistakes.
const MOST_SPEED: f64 = 1e7;
/// Maximum restart time. Longer values are mistakes.
const LONGEST_RESTART: Span = Span::seconds(2 * 86_400);

impl State {
    /// Accepts a report, or ignores and counts it.
    pub(super) fn report(
        &mut self,
        id: JobId,
        incarnation: Incarnation,
        slot: (Role, u32),
        report: &Report,
    ) -> Result<(), EventError> {
        let job = self.jobs.get(&id).ok_or(EventError::UnknownJob(id))?;
        if let Err(problem) = check(job, incarnation, slot, report) {
            self.job_mut(id).expect("looked up above").learnt.progress.ignored += 1;
            return Err(EventError::Report { job: id, problem });
        }
        let now = self.now;
        let job = self.job_mut(id).expect("looked up above");
        let first = job.learnt.reported.is_empty();
        job.learnt.reported.insert(slot, report.seq);
        let mut dirty = false;
        let progress = &mut job.learnt.progress;
        progress.at = Some(now);
        progress.step = report.step;
        progress.epoch = report.epoch;
        if report.steps_per_epoch > 0 {
            progress.steps_per_epoch = report.steps_per_epoch;
        }
        progress.accuracy = report.accuracy.or(progress.accuracy);
        // The epoch of these steps: the current one, or the one that they complete.
        let epoch = match report.steps_per_epoch {
            0 => u64::from(report.epoch) + 1,
            steps => report.step.div_ceil(steps).max(1),
        };
        if let Some(accuracy) = report.accuracy {
            Arc::make_mut(&mut job.learnt.accuracies).push(report.step, epoch - 1, accuracy);
            dirty = job.may_stop_early();
        }
        if let Some(loss) = report.loss {
            job.learnt.progress.loss = Some(loss);
            let before = job.learnt.losses.last_epoch();
            Arc::make_mut(&mut job.learnt.losses).push(report.step, epoch, loss);
            dirty |= job.learnt.losses.last_epoch() != before;
        }
        // Once its slots are gone, the type of GPU that it had isn't known any more.
        let has_slots = job.issued.allocation.is_some() || job.seen.allocation.is_some();
        if let Some(speed) = speed(report).filter(|_| has_slots) {
            job.learnt.progress.speed = Some(speed * job.batching().map_or(1.0, Batching::gain));
        }
        let places = places(job, report);
        if let Some((speed, places)) = speed(report).filter(|_| has_slots).zip(places) {
            let sample = SpeedSample::new(places, report.workers, speed).on(job.worker.speed_type());
            let used = job.batching().and_then(|batching| batching.used).unwrap_or(job.spec.batch);
            let sample = if used == job.spec.batch { sample } else { sample.at_batch(used as f64) };
            let has_table = job.has_speed_table();
            let is_size = has_table && job.sizes.has(report.workers);
            let moved = Arc::make_mut(&mut job.learnt.speeds).report(&sample, !has_table);
            dirty |= moved || job.learnt.fits.speed.is_none() || job.learnt.speeds.contradiction().is_some();
            // The first report of a new batch weighs little in a fit.
            dirty |= job.batching.is_some() && job.learnt.speeds.is_news(&sample);
            let (model, batch) = (job.model.clone(), used as f64);
            let (is_type, is_news) = self.learn(&model, sample.at_batch(batch));
            if is_type || (is_size && is_news) {
                // The model's other jobs may prefer this type or size, or not.
                let others = self.jobs.values().filter(|job| job.model == model && (is_type || job.has_speed_table()));
                let others = others.map(|job| job.id);
                self.pending.unfitted.extend(others.collect::<Vec<_>>());
            }
        }
        let job = self.job_mut(id).expect("looked up above");
        let before = job.learnt.chunks.len();
        if job.spec.dataset.as_ref().is_some_and(|data| data.chunks <= Dataset::MOST_TRACKED) {
            job.learnt.chunks.extend(report.chunks.iter().copied());
        }
        let trained = job.learnt.chunks.len() > before;
        if let Some(restart) = report.restart {
            // The time that the job lost: from the order to change until it trained again, including checkpoint and
            // stop. A program that was restarted within its incarnation knows only its own part.
            let gap = if first { now - job.issued.changed } else { Span::ZERO };
            let measured = Span(restart.0.max(gap.0 - report.duration.0).max(0));
            // The first start takes as long as a restart, but reads no checkpoint. It serves as the first measurement.
            job.learnt.restart_cost = if job.issued.incarnation.0 <= 1 {
                measured
            } else {
                Span(job.learnt.restart_cost.0.saturating_add(measured.0) / 2)
            };
            if job.issued.incarnation.0 > 1 {
                job.learnt.restart_total.0 += measured.0;
            }
        }
        if !report.slot_times.is_empty() {
            let stragglers = Arc::make_mut(&mut job.learnt.stragglers);
            let watch = || StragglerWatch::new(StragglerSignal::Gap, StragglerOptions::default());
            stragglers.found = stragglers.watch.get_or_insert_with(watch).observe(&report.slot_times);
        }
        let chooses = job.batching.is_some();
        if dirty {
            self.pending.unfitted.insert(id);
        }
        if chooses {
            // A change that came too soon is made up for.
            self.choose_batch(id);
        }
        if trained {
            self.note(Change::Trained(id));
        }
        self.note(Change::Job(id));
        Ok(())
    }

    /// Adds a sample to a model. Returns whether it is the first of several types of GPU, and whether its shape is
    /// [news](crate::fit::SpeedHistory::is_news) for other jobs.
    fn learn(&mut self, model: &str, sample: SpeedSample) -> (bool, bool) {
        let model = Arc::make_mut(self.models.get_mut(model).expect("it has an active job"));
        let is_new = !model.speeds.is_empty() && !model.speeds.has_type(sample.server_type);
        Arc::make_mut(&mut model.speeds).report(&sample, true);
        (is_new, model.speeds.is_news(&sample))
    }
}

fn speed(report: &Report) -> Option<f64> {
    let seconds = report.duration.as_seconds();
    let speed = f64::from(report.steps) / seconds;
    (report.steps > 0 && seconds > 0.0 && report.workers > 0 && speed < MOST_SPEED).then_some(speed)
}

/// p of the job's speed function at a report. Of all-reduce, that of the slots with as many workers. `None` while
/// workers move between one server and several, when nobody knows which the report is of.
fn places(job: &Job, report: &Report) -> Option<u32> {
    if !job.tells_places() {
        return Some(report.servers);
    }
    let seen = job.seen.allocation.as_ref().filter(|_| job.seen.incarnation == job.issued.incarnation);
    let slots = [seen, job.issued.allocation.as_ref()];
    let same = slots.map(|slots| slots.filter(|slots| slots.shape().workers == report.workers));
    match same.map(|slots| slots.map(|slots| job.places(slots))) {
        [Some(seen), Some(issued)] if seen != issued => None,
        [seen, issued] => seen.or(issued).or_else(|| slots.into_iter().flatten().next().map(|slots| job.places(slots))),
    }
}

fn check(job: &Job, incarnation: Incarnation, slot: (Role, u32), report: &Report) -> Result<(), &'static str> {
    if incarnation != job.issued.incarnation {
        return Err("it is of another incarnation");
    }
    let has = |allocation: &Option<Arc<Allocation>>| {
        allocation.as_ref().is_some_and(|has| has.of(slot.0).binary_search_by_key(&slot.1, |slot| slot.index).is_ok())
    };
    // A slot may report after it left the plan, or before its manager reports it. The number of such slots is limited
    // to the job's bounds, so that the stored data stays bounded.
    let others = || job.learnt.reported.keys().filter(|(role, _)| *role == slot.0).count();
    let known = job.learnt.reported.contains_key(&slot) || has(&job.issued.allocation) || has(&job.seen.allocation);
    if !known && others() >= job.bounds().most().count(slot.0) as usize {
        return Err("the job has no such slot");
    }
    if job.learnt.reported.get(&slot).is_some_and(|last| report.seq <= *last) {
        return Err("its sequence number was seen before");
    }
    if report.loss.is_some_and(|loss| !loss.is_finite()) {
        return Err("its loss is not a number");
    }
    if report.accuracy.is_some_and(|accuracy| !(0.0..=1.0).contains(&accuracy)) {
        return Err("its accuracy is not from 0 to 1");
    }
    let chunks = job.spec.dataset.as_ref().map_or(0, |data| data.chunks);
    if report.chunks.len() > chunks.min(Dataset::MOST_TRACKED) as usize {
        return Err("it names more data chunks than its dataset has, or than are told apart");
    }
    if report.chunks.iter().any(|chunk| *chunk >= chunks) {
        return Err("its dataset has no such chunk");
    }
    // The data per worker is bounded by the maximum number of workers. A worker that comes for another one has an index
    // that none of the others had, which can be beyond that number.
    let workers = job.bounds().most().workers;
    let indices = workers.saturating_mul(3);
    if report.slot_times.len() > workers as usize || report.slot_times.iter().any(|(worker, _)| *worker >= indices) {
        return Err("it has times of workers that the job can't have");
    }
    // Only a program that restarted from a checkpoint can be behind earlier reports.
    if report.step < job.learnt.progress.step && report.restart.is_none() {
        return Err("its step went back");
    }
    if report.restart.is_some_and(|restart| restart > LONGEST_RESTART) {
        return Err("a restart doesn't take days");
    }
    if report.duration < Span::ZERO || report.slot_times.iter().any(|(_, ms)| !(ms.is_finite() && *ms >= 0.0)) {
        return Err("a duration is negative or not a number");
    }
    Ok(())
}
