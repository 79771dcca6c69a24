//! History of a job's reported losses, in bounded memory.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Maximum number of points for the solver.
pub const MAX_POINTS: usize = 512;
/// Number of first epochs that are never merged, because a loss curve is steepest there.
const HEAD: usize = 64;
/// Number of latest epochs that are kept unmerged. It is larger than any sensible patience.
pub(super) const RECENT: usize = 64;

/// Mean loss of one epoch, or of a few neighbouring epochs in a long history.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossPoint {
    /// The epoch, or the mean of the merged epochs.
    pub epoch: f64,
    /// Mean loss, in the job's unit.
    pub loss: f64,
    /// Number of epochs that the point averages.
    pub epochs: f64,
}

impl LossPoint {
    fn merge(a: Self, b: Self) -> Self {
        let epochs = a.epochs + b.epochs;
        let mean = |x: f64, y: f64| (x * a.epochs + y * b.epochs) / epochs;
        Self { epoch: mean(a.epoch, b.epoch), loss: mean(a.loss, b.loss), epochs }
    }
}

/// The epoch whose reports are being averaged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Open {
    epoch: u64,
    mean: f64,
    reports: u64,
}

/// Losses of one job, averaged per epoch. A report costs amortised O(1). There are at most [`MAX_POINTS`] points.
///
/// The first 64 epochs keep a point each. When there are too many points, the later ones are merged in pairs, so that
/// each of them averages the same number of epochs.
///
/// # Examples
///
/// ```
/// use trainmaster_core::fit::LossHistory;
///
/// let mut history = LossHistory::default();
/// history.push(100, 1, 2.0);
/// history.push(200, 1, 1.0);
/// history.push(300, 2, f64::NAN); // counted, not kept
/// history.push(300, 2, 0.9);
/// assert_eq!(history.points().len(), 2);
/// assert_eq!(history.points()[0].loss, 1.5);
/// assert_eq!(history.ignored(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossHistory {
    closed: Vec<LossPoint>,
    /// Number of merges of the later points: each averages 2^`halvings` epochs.
    halvings: u32,
    recent: VecDeque<LossPoint>,
    open: Option<Open>,
    first_loss: Option<f64>,
    /// First and last accepted (step, epoch).
    start: Option<(u64, u64)>,
    last: Option<(u64, u64)>,
    ignored: u64,
}

impl LossHistory {
    /// Adds the loss that was reported at a step of an epoch. Reports of one epoch are averaged.
    ///
    /// NaN and infinite losses are ignored and counted. So are reports whose step or epoch is before an accepted one:
    /// after a restart from a checkpoint, repeated steps count once.
    pub fn push(&mut self, step: u64, epoch: u64, loss: f64) {
        let back = self.last.is_some_and(|(s, e)| step < s || epoch < e);
        if !loss.is_finite() || back {
            self.ignored += 1;
            return;
        }
        self.start.get_or_insert((step, epoch));
        self.last = Some((step, epoch));
        match &mut self.open {
            Some(open) if open.epoch == epoch => {
                open.reports += 1;
                open.mean += (loss - open.mean) / open.reports as f64;
            }
            _ => {
                self.close();
                self.open = Some(Open { epoch, mean: loss, reports: 1 });
            }
        }
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let point = open.point();
        self.first_loss.get_or_insert(point.loss);
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(point);
        let width = (1_u64 << self.halvings.min(63)) as f64;
        match self.closed.last_mut() {
            Some(last) if self.halvings > 0 && last.epochs < width => *last = LossPoint::merge(*last, point),
            _ => self.closed.push(point),
        }
        // One entry is reserved for the open epoch.
        if self.closed.len() >= MAX_POINTS {
            let merged = |pair: &[LossPoint]| match *pair {
                [a, b] => LossPoint::merge(a, b),
                _ => pair[0],
            };
            let tail: Vec<LossPoint> = self.closed.split_off(HEAD).chunks(2).map(merged).collect();
            self.closed.extend(tail);
            self.halvings += 1;
        }
    }

    /// The points by ascending epoch, at most [`MAX_POINTS`].
    #[must_use]
    pub fn points(&self) -> Vec<LossPoint> {
        self.closed.iter().copied().chain(self.open.map(|o| o.point())).collect()
    }

    /// The latest epochs by ascending epoch, without merges.
    pub(super) fn recent(&self) -> Vec<LossPoint> {
        let all: Vec<LossPoint> = self.recent.iter().copied().chain(self.open.map(|o| o.point())).collect();
        all[all.len().saturating_sub(RECENT)..].to_vec()
    }

    /// Mean loss of the first epoch; δ is a fraction of it. `None` before the first report.
    #[must_use]
    pub fn first_loss(&self) -> Option<f64> {
        self.first_loss.or(self.open.map(|o| o.mean))
    }

    /// Epoch of the latest report.
    #[must_use]
    pub fn last_epoch(&self) -> Option<u64> {
        self.last.map(|(_, epoch)| epoch)
    }

    /// Mean steps per epoch so far. `None` during the first epoch.
    #[must_use]
    pub fn steps_per_epoch(&self) -> Option<f64> {
        let ((s0, e0), (s1, e1)) = (self.start?, self.last?);
        (e1 > e0).then(|| (s1 - s0) as f64 / (e1 - e0) as f64)
    }

    /// Number of ignored reports: NaN, infinite, or of an earlier step or epoch.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored
    }
}

impl Open {
    fn point(self) -> LossPoint {
        LossPoint { epoch: self.epoch as f64, loss: self.mean, epochs: 1.0 }
    }
}
