//! Conversion of training programs' reports.

use trainmaster_core::{Event, Incarnation, JobId, Report, Role, Span, batch::GradientNoise};

use crate::v1;

/// Progress of a training program: the report for the core, and the end of the job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Report for the fits.
    pub report: Report,
    /// The batch of its steps, if the program tells it.
    pub batch: Option<u64>,
    /// Statistics of its gradients, if the program tells them.
    pub noise: Option<GradientNoise>,
    /// Number of trained examples in the report.
    pub examples: u64,
    /// Whether the training is complete.
    pub finished: bool,
    /// Whether it is complete by convergence, rather than by the maximum of epochs.
    pub converged: bool,
}

impl Progress {
    /// Its data about batches and gradients, for the core to take before the report.
    pub fn batch_event(&self, job: JobId, incarnation: Incarnation, slot: (Role, u32)) -> Option<Event> {
        let (seq, batch, noise) = (self.report.seq, self.batch, self.noise);
        let says = batch.is_some() || noise.is_some();
        says.then_some(Event::BatchReported { job, incarnation, slot, seq, batch, noise })
    }
}

/// Converts progress. It never fails: invalid values are kept, so that the core ignores and counts them.
pub fn progress(wire: v1::Progress) -> Progress {
    Progress {
        report: Report {
            seq: wire.seq,
            step: wire.step,
            epoch: wire.epoch,
            steps_per_epoch: wire.steps_per_epoch,
            loss: wire.loss,
            accuracy: wire.accuracy,
            steps: wire.steps,
            duration: span(wire.duration_ms),
            workers: wire.workers,
            servers: wire.servers,
            slot_times: wire.slot_times.iter().map(|time| (time.worker, time.step_ms)).collect(),
            restart: wire.restart_ms.map(span),
            chunks: wire.chunks,
        },
        batch: wire.batch,
        noise: match (wire.grad_sqr, wire.grad_var) {
            (None, None) => None,
            // One without the other can't be used, so it is counted.
            (sqr, var) => Some(GradientNoise { sqr: sqr.unwrap_or(f64::NAN), var: var.unwrap_or(f64::NAN) }),
        },
        examples: wire.examples,
        finished: wire.finished,
        converged: wire.converged,
    }
}

/// Converts progress for the wire, for simulated training programs.
pub fn progress_to_wire(progress: &Progress) -> v1::Progress {
    let Progress { report, batch, noise, examples, finished, converged } = progress;
    v1::Progress {
        seq: report.seq,
        step: report.step,
        epoch: report.epoch,
        steps_per_epoch: report.steps_per_epoch,
        loss: report.loss,
        accuracy: report.accuracy,
        examples: *examples,
        steps: report.steps,
        duration_ms: report.duration.0 as f64,
        workers: report.workers,
        servers: report.servers,
        slot_times: report.slot_times.iter().map(|&(worker, step_ms)| v1::SlotTime { worker, step_ms }).collect(),
        finished: *finished,
        converged: *converged,
        restart_ms: report.restart.map(|restart| restart.0 as f64),
        chunks: report.chunks.clone(),
        batch: *batch,
        grad_sqr: noise.map(|noise| noise.sqr),
        grad_var: noise.map(|noise| noise.var),
    }
}

/// Rounds to whole milliseconds. NaN becomes negative, which the core refuses.
fn span(ms: f64) -> Span {
    if ms.is_finite() { Span(ms.round() as i64) } else { Span(-1) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_values_are_kept() {
        let wire = v1::Progress { duration_ms: f64::NAN, loss: Some(f64::NAN), ..v1::Progress::default() };
        let read = progress(wire);
        assert_eq!(read.report.duration, Span(-1));
        assert!(read.report.loss.unwrap().is_nan());
        assert_eq!(span(f64::NEG_INFINITY), Span(-1));
        assert_eq!(span(1.6), Span(2));
    }

    proptest! {
        #[test]
        fn progress_survives_the_wire(
            numbers in any::<(u64, u64, u32, u64, u32, u32, u32, u64)>(),
            loss in proptest::option::of(-1e6..1e6_f64),
            duration in 0..1_000_000_i64,
            times in proptest::collection::vec((any::<u32>(), 0.0..1e6_f64), 0..4),
            chunks in proptest::collection::vec(any::<u32>(), 0..4),
            flags in any::<(bool, bool)>(),
            restart in proptest::option::of(0..1_000_000_i64),
            batch in proptest::option::of(any::<u64>()),
            noise in proptest::option::of((0.0..1e9_f64, 0.0..1e9_f64)),
        ) {
            let (seq, step, epoch, steps_per_epoch, steps, workers, servers, examples) = numbers;
            let report = Report {
                seq, step, epoch, steps_per_epoch, steps, workers, servers, loss,
                accuracy: loss.map(|loss| loss / 1e6),
                duration: Span(duration),
                slot_times: times,
                chunks,
                restart: restart.map(Span),
            };
            let noise = noise.map(|(sqr, var)| GradientNoise { sqr, var });
            let whole = Progress { report, batch, noise, examples, finished: flags.0, converged: flags.1 };
            prop_assert_eq!(progress(progress_to_wire(&whole)), whole);
        }
    }
}
