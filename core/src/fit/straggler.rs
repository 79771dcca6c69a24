//! Detection of stragglers: workers that slow down their job.
//!
//! Source: Optimus (EuroSys'18), §5.2: a worker below half the median speed of its job is replaced. In synchronous
//! training all workers have the same speed, so the gaps between a worker's gradient arrivals are compared instead: a
//! straggler's gaps are twice the median. A single slow step isn't significant, so several in a row are required.

use serde::{Deserialize, Serialize};

/// The kind of observed numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StragglerSignal {
    /// Speeds (any unit per second). A worker below `factor` times the median is slow. For asynchronous training.
    Speed,
    /// Times between gradient arrivals, or step times. A worker above the median divided by `factor` is slow. For
    /// synchronous training.
    Gap,
}

/// The definition of a straggler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StragglerOptions {
    /// Fraction of the median speed below which a worker is slow, in (0, 1); 0.5 in the paper.
    pub factor: f64,
    /// Number of consecutive slow observations of a straggler.
    pub patience: u32,
    /// Minimum number of workers in an observation for a meaningful median.
    pub fewest: u32,
}

impl Default for StragglerOptions {
    fn default() -> Self {
        Self { factor: 0.5, patience: 3, fewest: 3 }
    }
}

/// A worker that should be replaced, with the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Straggler {
    /// The worker's slot index.
    pub worker: u32,
    /// Its latest speed as a fraction of the median.
    pub relative_speed: f64,
    /// Consecutive slow observations so far.
    pub observations: u32,
}

/// Detects the stragglers of one job.
///
/// # Examples
///
/// ```
/// use trainmaster_core::fit::{StragglerOptions, StragglerSignal, StragglerWatch};
///
/// let mut watch = StragglerWatch::new(StragglerSignal::Gap, StragglerOptions::default());
/// let steps = [(0, 1.0), (1, 1.1), (2, 2.5), (3, 0.9)]; // worker 2 takes 2.5 s a step
/// assert!(watch.observe(&steps).is_empty());
/// assert!(watch.observe(&steps).is_empty());
/// assert_eq!(watch.observe(&steps)[0].worker, 2);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StragglerWatch {
    signal: StragglerSignal,
    options: StragglerOptions,
    /// (worker, consecutive slow observations), ascending, without zeros.
    slow: Vec<(u32, u32)>,
    ignored: u64,
}

impl StragglerWatch {
    /// A detector without observations. A factor outside (0, 1) counts as 0.5.
    #[must_use]
    pub fn new(signal: StragglerSignal, options: StragglerOptions) -> Self {
        let factor = if options.factor > 0.0 && options.factor < 1.0 { options.factor } else { 0.5 };
        Self { signal, options: StragglerOptions { factor, ..options }, slow: Vec::new(), ignored: 0 }
    }

    /// Adds one number per worker, all from the same period, and returns the stragglers by ascending worker.
    ///
    /// A worker that isn't in `numbers` keeps its count, because its report may only be late. Call
    /// [`forget`](Self::forget) when its slot gets a new worker. Numbers that aren't positive and finite are ignored
    /// and counted.
    pub fn observe(&mut self, numbers: &[(u32, f64)]) -> Vec<Straggler> {
        let mut usable: Vec<(u32, f64)> = numbers.iter().copied().filter(|(_, v)| v.is_finite() && *v > 0.0).collect();
        self.ignored += (numbers.len() - usable.len()) as u64;
        if usable.len() < self.options.fewest.max(1) as usize {
            return Vec::new();
        }
        usable.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let median = median(usable.iter().map(|(_, v)| *v).collect());
        let mut out = Vec::new();
        for (worker, number) in usable {
            let relative_speed = match self.signal {
                StragglerSignal::Speed => number / median,
                StragglerSignal::Gap => median / number,
            };
            let place = self.slow.binary_search_by_key(&worker, |(w, _)| *w);
            if relative_speed >= self.options.factor {
                if let Ok(at) = place {
                    self.slow.remove(at);
                }
                continue;
            }
            let at = place.unwrap_or_else(|at| {
                self.slow.insert(at, (worker, 0));
                at
            });
            self.slow[at].1 = self.slow[at].1.saturating_add(1);
            let observations = self.slow[at].1;
            if observations >= self.options.patience.max(1) {
                out.push(Straggler { worker, relative_speed, observations });
            }
        }
        out
    }

    /// Resets a worker's count, because its slot has a new worker.
    pub fn forget(&mut self, worker: u32) {
        self.slow.retain(|(w, _)| *w != worker);
    }

    /// The same for several workers, ascending. O(slow workers · log `workers`).
    pub(crate) fn forget_all(&mut self, workers: &[u32]) {
        self.slow.retain(|(worker, _)| workers.binary_search(worker).is_err());
    }

    /// Number of ignored numbers: not positive, or not finite.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { 0.5 * values[middle - 1] + 0.5 * values[middle] }
}
