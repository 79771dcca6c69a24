//! Predictions for jobs, and fits of any measurements.

use trainmaster_core::{
    JobId, Shape, TrainingMode,
    fit::{Convergence, ConvergenceOptions, LossHistory, Prediction, SpeedFit, SpeedModel, SpeedOptions, SpeedSample},
};

use crate::{
    borrow::{self, grows, plain},
    guard,
    handle::trainmaster_scheduler,
    job::{training_mode, trainmaster_convergence, trainmaster_speed},
    server::flag,
    status::unknown,
    text::trainmaster_message,
};

/// Known values. `known` of struct trainmaster_prediction is their sum.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum trainmaster_known {
    /// `speed` and `speed_error`.
    Speed = 1,
    /// `epochs`, `low`, `high` and `remaining_epochs`.
    Convergence = 2,
    /// `remaining_ms`.
    Time = 4,
    /// The loss is not expected to converge before the job's maximum of epochs, which is then in `epochs`.
    Capped = 8,
}

/// Predictions for a job or a curve.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_prediction {
    /// sizeof(struct trainmaster_prediction); set it before the call.
    pub size: u32,
    /// Sum of TRAINMASTER_KNOWN_*.
    pub known: u32,
    /// Steps per second.
    pub speed: f64,
    /// Its standard error, as a fraction of it: 0.1 is 10 %.
    pub speed_error: f64,
    /// The epoch at whose end the job converges.
    pub epochs: u64,
    /// Convergence before this epoch is unlikely (about one in ten).
    pub low: u64,
    /// Convergence after this epoch is unlikely.
    pub high: u64,
    /// Remaining epochs until then.
    pub remaining_epochs: u64,
    /// Remaining time in milliseconds.
    pub remaining_ms: i64,
}

/// The mean loss of an epoch. Never grows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct trainmaster_loss {
    /// The epoch, from 1.
    pub epoch: u64,
    /// Its mean loss.
    pub loss: f64,
}

plain!(trainmaster_loss);
grows!(trainmaster_prediction: 64);

const NOTHING: trainmaster_prediction = trainmaster_prediction {
    size: 0,
    known: 0,
    speed: f64::NAN,
    speed_error: f64::NAN,
    epochs: 0,
    low: 0,
    high: 0,
    remaining_epochs: 0,
    remaining_ms: 0,
};

impl trainmaster_prediction {
    fn converging(self, at: &Prediction) -> Self {
        let capped = if at.capped { trainmaster_known::Capped as u32 } else { 0 };
        Self {
            known: self.known | trainmaster_known::Convergence as u32 | capped,
            epochs: at.epochs,
            low: at.low,
            high: at.high,
            remaining_epochs: at.remaining_epochs,
            ..self
        }
    }
}

/// Predictions of a job's fits for a number of workers and parameter servers, from the last
/// trainmaster_scheduler_commit_fits() or _decide(). Unknown values are not in `known`. `servers` of all-reduce: 1 for
/// workers on one server, 2 for workers on several, 0 for as the job is now.
///
/// Errors: NULL, SIZE, BUSY, POISONED, PANIC, UNKNOWN_JOB. Threads: one at a time for a scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_scheduler_predict(
    scheduler: *const trainmaster_scheduler,
    job: u64,
    workers: u32,
    servers: u32,
    prediction: *mut trainmaster_prediction,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let inner = trainmaster_scheduler::healthy(scheduler)?;
        borrow::writable(prediction, "prediction")?;
        let job = inner.core.state().job(JobId(job)).ok_or_else(|| unknown(job))?;
        let mut view = NOTHING;
        let shape = Shape { workers, servers };
        if let (Some(fit), Some(speed)) = (&job.learnt.fits.speed, job.speed(shape)) {
            view.known |= trainmaster_known::Speed as u32;
            (view.speed, view.speed_error) = (speed, fit.relative_error(job.places_at(shape), workers));
        }
        if let Some(at) = &job.learnt.fits.convergence {
            view = view.converging(at);
        }
        if let Some(left) = job.remaining_time(shape) {
            view.known |= trainmaster_known::Time as u32;
            view.remaining_ms = left.0;
        }
        borrow::write(prediction, view, "prediction")
    })
}

/// Fits a loss curve to the losses of epochs (in order, at least three, `stride` bytes apart), and predicts when it
/// meets the rule. `rule` NULL: the default rule. `paper` 1: as in the Optimus paper, section 3.1; 0: with this
/// project's additions. Needs no scheduler. Any thread.
///
/// Errors: NULL, SIZE, VALUE, PANIC, TOO_FEW_POINTS, TOO_LARGE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_fit_loss(
    losses: *const trainmaster_loss,
    count: u64,
    stride: u64,
    rule: *const trainmaster_convergence,
    paper: u32,
    prediction: *mut trainmaster_prediction,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        borrow::writable(prediction, "prediction")?;
        let losses = borrow::copies(losses, count, stride, "losses")?;
        let rule = match rule.is_null() {
            true => Default::default(),
            false => borrow::read(rule, "rule")?.convert(),
        };
        let options = if flag(paper, "paper")? { ConvergenceOptions::paper() } else { ConvergenceOptions::default() };
        let mut history = LossHistory::default();
        for point in &losses {
            history.push(point.epoch, point.epoch, point.loss);
        }
        let fit = Convergence::fit(&history, &options)?;
        let at = fit.converges(rule.delta, rule.patience, rule.max_epochs.into(), fit.last_epoch);
        borrow::write(prediction, NOTHING.converging(&at), "prediction")
    })
}

/// Fits a speed function to measured speeds, `stride` bytes apart, and sets `speed` of each of `shapes`. `mode`: one of
/// TRAINMASTER_TRAINING_MODE_*; `batch`: examples per step of the whole job. `paper` 1: as in the Optimus paper,
/// section 3.2; 0: with this project's additions. With few or no samples the result is a conservative guess. Needs no
/// scheduler. Any thread.
///
/// Errors: NULL, SIZE, VALUE, PANIC.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trainmaster_fit_speed(
    mode: u32,
    batch: f64,
    samples: *const trainmaster_speed,
    samples_count: u64,
    samples_stride: u64,
    paper: u32,
    shapes: *mut trainmaster_speed,
    shapes_count: u64,
    shapes_stride: u64,
    message: *mut trainmaster_message,
) -> u32 {
    guard::call(message, || {
        let model = match training_mode(mode, "mode")? {
            TrainingMode::Sync => SpeedModel::Sync { batch },
            TrainingMode::Async => SpeedModel::Async,
            TrainingMode::AllReduce => SpeedModel::AllReduce { batch },
        };
        let options = if flag(paper, "paper")? { SpeedOptions::paper() } else { SpeedOptions::default() };
        let samples = borrow::copies(samples, samples_count, samples_stride, "samples")?;
        let sample = |at: &trainmaster_speed| SpeedSample::new(at.servers, at.workers, at.speed);
        let samples: Vec<_> = samples.iter().map(sample).collect();
        let wanted = borrow::copies(shapes.cast_const(), shapes_count, shapes_stride, "shapes")?;
        let fit = SpeedFit::fit(model, &samples, &options);
        let places = borrow::Array::new(shapes.cast_const(), shapes_count, shapes_stride, "shapes")?;
        for (index, shape) in wanted.into_iter().enumerate() {
            let speed = fit.speed(shape.servers, shape.workers);
            borrow::set(places.at(index), trainmaster_speed { speed, ..shape }, "shapes")?;
        }
        Ok(())
    })
}
