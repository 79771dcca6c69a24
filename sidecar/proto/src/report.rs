//! Conversion of training programs' reports.

use trainmaster_core::{Report, Span};

use crate::v1;

/// Progress of a training program: the report for the core, and the end of the job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Report for the fits.
    pub report: Report,
    /// Number of trained examples in the report.
    pub examples: u64,
    /// Whether the training is complete.
    pub finished: bool,
    /// Whether it is complete by convergence, rather than by the maximum of epochs.
    pub converged: bool,
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
        examples: wire.examples,
        finished: wire.finished,
        converged: wire.converged,
    }
}

/// Converts progress for the wire, for simulated training programs.
pub fn progress_to_wire(progress: &Progress) -> v1::Progress {
    let Progress { report, examples, finished, converged } = progress;
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
    fn nonsense_stays_nonsense() {
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
            let whole = Progress { report, examples, finished: flags.0, converged: flags.1 };
            prop_assert_eq!(progress(progress_to_wire(&whole)), whole);
        }
    }
}
