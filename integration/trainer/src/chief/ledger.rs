//! The chief's records: steps, epochs, losses, and the reports from them.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::{Duration, Instant},
};

use trainmaster_proto::v1::{Progress, SlotTime};

use crate::{
    checkpoint::Checkpoint,
    chunks::{Orders, Portion},
    convergence::Done,
    fixed::from_fixed,
    settings::Settings,
    tally::Tally,
};

/// Progress since the last report.
#[derive(Default)]
struct Window {
    tally: Tally,
    recorded: u32,
    /// Number of steps in a constant shape, and their duration.
    steady: u32,
    steady_ms: f64,
    /// Sum and number of times, per worker.
    times: BTreeMap<u32, (f64, u32)>,
}

/// One completed step.
pub(crate) struct CompletedStep<'a> {
    pub(crate) tally: Tally,
    pub(crate) took: Duration,
    /// Milliseconds per worker.
    pub(crate) times: &'a [(u32, f32)],
    /// Number of workers and parameter servers.
    pub(crate) shape: (u32, u32),
    /// Trained mini-batches of chunks. Empty without chunks.
    pub(crate) portions: &'a [Portion],
}

pub(crate) struct Ledger {
    pub(crate) step: u64,
    pub(crate) losses: Vec<f64>,
    pub(crate) epoch: Tally,
    pub(crate) done: Option<Done>,
    settings: Rc<Settings>,
    /// Number of trained mini-batches of each chunk.
    trained: BTreeMap<u32, u64>,
    /// Completed chunks that aren't reported yet.
    ended: BTreeSet<u32>,
    /// Training accuracy of an ended epoch whose validation is pending.
    unseen: Option<f64>,
    unsettled: u32,
    shape: (u32, u32),
    window: Window,
    opened: Instant,
    seq: u64,
    restart_ms: Option<f64>,
    pub(crate) longest: Duration,
}

impl Ledger {
    pub(crate) fn new(settings: &Rc<Settings>, from: &Checkpoint, last_seq: u64) -> Self {
        let mut ledger = Self {
            step: from.step,
            losses: from.losses.clone(),
            epoch: from.epoch,
            done: None,
            settings: Rc::clone(settings),
            trained: from.chunks.iter().copied().collect(),
            ended: BTreeSet::new(),
            unseen: None,
            unsettled: 0,
            shape: (0, 0),
            window: Window::default(),
            opened: Instant::now(),
            seq: last_seq,
            restart_ms: None,
            longest: Duration::ZERO,
        };
        // It is unknown whether their ends were reported.
        ledger.ended = ledger.trained.keys().copied().filter(|chunk| ledger.left(*chunk).is_none()).collect();
        // A finished job that was started again is done.
        ledger.judge();
        ledger
    }

    /// Number of trained mini-batches of each chunk.
    pub(crate) fn trained(&self) -> Vec<(u32, u64)> {
        self.trained.iter().map(|(chunk, batches)| (*chunk, *batches)).collect()
    }

    /// The next mini-batch of a chunk. None if it is trained completely.
    pub(crate) fn left(&self, chunk: u32) -> Option<Portion> {
        let batch = self.trained.get(&chunk).copied().unwrap_or_default();
        self.settings.chunks.filter(|chunks| batch < chunks.length()).map(|_| Portion { chunk, batch })
    }

    /// Applies the scheduler's knowledge of chunks. A chunk that it counts as trained never runs again, although a
    /// checkpoint may be older. If it still runs a completed chunk, that end must be reported again.
    pub(crate) fn heard(&mut self, orders: &Orders) {
        let Some(chunks) = self.settings.chunks else { return };
        self.trained.extend(orders.done.iter().map(|chunk| (*chunk, chunks.length())));
        let ended: Vec<u32> = orders.running.values().copied().filter(|chunk| self.left(*chunk).is_none()).collect();
        self.ended.extend(ended);
        self.judge();
    }

    /// A report of its own, if the end of a chunk must be reported.
    pub(crate) fn news(&mut self) -> Option<Progress> {
        if self.ended.is_empty() { None } else { self.flush().or_else(|| Some(self.progress())) }
    }

    /// Checks whether the job is done: with chunks by their number, otherwise by the convergence rule.
    fn judge(&mut self) {
        let by_losses = self.settings.convergence.check(&self.losses);
        self.done = match self.settings.chunks.filter(|_| !self.trained.is_empty()) {
            Some(chunks) if (0..chunks.count).all(|chunk| self.left(chunk).is_none()) => Some(Done::Exhausted),
            Some(_) => by_losses.filter(|done| *done == Done::Converged),
            None => by_losses,
        };
        if self.settings.pace.max_steps.is_some_and(|most| self.step >= most) {
            self.done = self.done.or(Some(Done::Exhausted));
        }
    }

    /// Number of completed epochs.
    pub(crate) fn epochs(&self) -> u32 {
        self.losses.len() as u32
    }

    /// Records the start of the first step of this incarnation, `after` the program's start.
    pub(crate) fn first_step(&mut self, after: Duration) {
        self.restart_ms = Some(after.as_secs_f64() * 1e3);
    }

    /// Training was interrupted, so the next steps don't count as steady speed.
    pub(crate) fn disturbed(&mut self) {
        self.unsettled = self.settings.pace.settle_steps;
    }

    /// Records a step. Returns the reports that are due.
    pub(crate) fn record(&mut self, step: &CompletedStep<'_>) -> Vec<Progress> {
        let mut reports = Vec::new();
        if step.shape != self.shape {
            reports.extend(self.flush());
            self.shape = step.shape;
            self.disturbed();
        }
        self.step += 1;
        self.longest = self.longest.max(step.took);
        self.epoch.add(step.tally);
        self.window.tally.add(step.tally);
        self.window.recorded += 1;
        if self.unsettled > 0 {
            self.unsettled -= 1;
        } else {
            self.window.steady += 1;
            self.window.steady_ms += step.took.as_secs_f64() * 1e3;
            for (worker, ms) in step.times {
                let (sum, count) = self.window.times.entry(*worker).or_default();
                *sum += f64::from(*ms);
                *count += 1;
            }
        }
        for portion in step.portions {
            self.trained.insert(portion.chunk, portion.batch + 1);
            if self.left(portion.chunk).is_none() {
                self.ended.insert(portion.chunk);
            }
        }
        // With chunks, an epoch is the number of mini-batches in one pass over all chunks, whichever are trained.
        let whole = match self.settings.chunks.filter(|_| !step.portions.is_empty()) {
            Some(chunks) => self.trained.values().sum::<u64>() / chunks.pass() > self.epochs().into(),
            None => self.step.is_multiple_of(self.settings.batches.steps_per_epoch()),
        };
        if whole {
            self.losses.push(mean(self.epoch));
            self.unseen = Some(self.epoch.correct as f64 / self.epoch.examples.max(1) as f64);
            self.epoch = Tally::default();
        }
        self.judge();
        let enough = self.settings.pace.report_steps.is_some_and(|steps| self.window.recorded >= steps);
        if whole
            || enough
            || !self.ended.is_empty()
            || self.done.is_some()
            || self.opened.elapsed() >= self.settings.pace.report
        {
            reports.extend(self.flush());
        }
        reports
    }

    /// Progress that isn't reported yet.
    pub(crate) fn flush(&mut self) -> Option<Progress> {
        self.opened = Instant::now();
        let window = std::mem::take(&mut self.window);
        if window.recorded == 0 {
            return None;
        }
        let slot_times =
            window.times.into_iter().map(|(worker, (sum, count))| SlotTime { worker, step_ms: sum / f64::from(count) });
        Some(Progress {
            loss: Some(mean(window.tally)),
            examples: window.tally.examples,
            steps: window.steady,
            duration_ms: window.steady_ms,
            slot_times: slot_times.collect(),
            restart_ms: self.restart_ms.take(),
            ..self.progress()
        })
    }

    /// Training accuracy of an epoch that has just ended, once for each.
    pub(crate) fn unseen(&mut self) -> Option<f64> {
        self.unseen.take()
    }

    /// Records the validation accuracy.
    pub(crate) fn validated(&mut self, accuracy: f64) -> Progress {
        Progress { accuracy: Some(accuracy), ..self.progress() }
    }

    /// The last report of a job that is done.
    pub(crate) fn finished(&mut self, accuracy: Option<f64>) -> Progress {
        let converged = self.done == Some(Done::Converged);
        Progress { finished: true, converged, accuracy, ..self.progress() }
    }

    fn progress(&mut self) -> Progress {
        self.seq += 1;
        Progress {
            seq: self.seq,
            step: self.step,
            epoch: self.epochs(),
            // With chunks it depends on the number of running ones.
            steps_per_epoch: if self.trained.is_empty() { self.settings.batches.steps_per_epoch() } else { 0 },
            chunks: std::mem::take(&mut self.ended).into_iter().collect(),
            workers: self.shape.0,
            servers: self.shape.1,
            ..Progress::default()
        }
    }
}

fn mean(tally: Tally) -> f64 {
    from_fixed(tally.loss) / tally.examples.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixed::SCALE, settings::tests::settings};

    fn ledger(flags: &[&str]) -> Ledger {
        Ledger::new(&settings(flags), &Checkpoint::default(), 0)
    }

    fn step(ledger: &mut Ledger, workers: u32, loss: f64) -> Vec<Progress> {
        let tally = Tally { loss: (loss * 10.0 * SCALE) as i64, correct: 4, examples: 10 };
        let took = Duration::from_millis(20);
        ledger.record(&CompletedStep { tally, took, times: &[(0, 15.0)], shape: (workers, 1), portions: &[] })
    }

    const FLAGS: [&str; 4] = ["--batch=10", "--examples=30", "--report-ms=3600000", "--max-epochs=5"];

    #[test]
    fn an_epoch_ends_with_a_report_of_its_mean_loss() {
        let mut ledger = ledger(&FLAGS);
        assert!(step(&mut ledger, 2, 3.0).is_empty());
        assert!(step(&mut ledger, 2, 2.0).is_empty());
        let reports = step(&mut ledger, 2, 1.0);
        assert_eq!(reports.len(), 1);
        let Progress { seq, step, epoch, loss, accuracy, examples, steps, duration_ms, .. } = reports[0];
        assert_eq!((seq, step, epoch, loss, accuracy, examples), (1, 3, 1, Some(2.0), None, 30));
        assert_eq!((ledger.unseen(), ledger.unseen()), (Some(0.4), None), "accuracy on what is trained");
        let Progress { seq, step, epoch, accuracy, examples, .. } = ledger.validated(0.3);
        assert_eq!((seq, step, epoch, accuracy, examples), (2, 3, 1, Some(0.3), 0));
        assert_eq!((steps, duration_ms), (2, 40.0), "the first step at a shape is not steady");
        assert_eq!(ledger.losses, [2.0]);
    }

    #[test]
    fn a_new_shape_closes_the_window() {
        let mut ledger = ledger(&FLAGS);
        step(&mut ledger, 2, 1.0);
        let reports = step(&mut ledger, 3, 1.0);
        assert_eq!((reports.len(), reports[0].workers, reports[0].steps), (1, 2, 0));
        let reports = step(&mut ledger, 3, 1.0);
        assert_eq!((reports.len(), reports[0].workers, reports[0].steps), (1, 3, 1));
        assert_eq!((reports[0].seq, reports[0].slot_times.len()), (2, 1));
    }

    #[test]
    fn convergence_and_limits_end_the_job() {
        let mut ledger = ledger(&[&FLAGS[..], &["--delta=0.1", "--patience=2"]].concat());
        for _ in 0..9 {
            assert_eq!(ledger.done, None);
            step(&mut ledger, 1, 1.0);
        }
        assert_eq!(ledger.done, Some(Done::Converged));
        assert!(ledger.finished(None).converged);
        let mut limited = self::ledger(&["--max-steps=2"]);
        step(&mut limited, 1, 1.0);
        assert_eq!(step(&mut limited, 1, 1.0).len(), 1);
        assert_eq!(limited.done, Some(Done::Exhausted));
        assert!(!limited.finished(None).converged);
    }

    #[test]
    fn chunks_end_one_by_one_and_then_the_job() {
        let flags = ["--chunks=2", "--chunk-batches=2", "--chunk-epochs=3", "--report-ms=3600000", "--max-epochs=1"];
        let mut ledger = ledger(&flags);
        let train = |ledger: &mut Ledger, chunks: &[u32]| {
            let portions: Vec<Portion> = chunks.iter().filter_map(|chunk| ledger.left(*chunk)).collect();
            let tally = Tally { loss: 0, correct: 4, examples: 10 };
            ledger.record(&CompletedStep {
                tally,
                took: Duration::ZERO,
                times: &[],
                shape: (1, 1),
                portions: &portions,
            })
        };
        assert!(train(&mut ledger, &[0]).is_empty());
        (0..4).for_each(|_| drop(train(&mut ledger, &[0, 1])));
        assert_eq!((ledger.trained(), ledger.losses.len()), (vec![(0, 5), (1, 4)], 2));
        let reports = train(&mut ledger, &[0]);
        assert_eq!((reports[0].chunks.as_slice(), reports[0].steps_per_epoch), (&[0][..], 0));
        assert_eq!((ledger.left(0), ledger.done, ledger.news()), (None, None, None));
        // The scheduler hasn't received the end. Then it knows of an end that a lost incarnation reported.
        ledger.heard(&Orders { running: [(0, 0)].into(), ..Orders::default() });
        assert_eq!(ledger.news().unwrap().chunks, [0]);
        ledger.heard(&Orders { done: [1].into(), ..Orders::default() });
        assert_eq!(ledger.done, Some(Done::Exhausted));
    }

    #[test]
    fn a_finished_checkpoint_is_done() {
        let settings = settings(&["--max-epochs=2"]);
        let checkpoint = Checkpoint { step: 64, losses: vec![2.0, 1.0], ..Checkpoint::default() };
        assert_eq!(Ledger::new(&settings, &checkpoint, 0).done, Some(Done::Exhausted));
    }
}
