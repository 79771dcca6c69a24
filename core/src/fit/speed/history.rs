//! The speeds a job has shown, kept in bounded memory.

use serde::{Deserialize, Serialize};

use super::{SpeedFit, SpeedModel, SpeedOptions, SpeedSample};

/// Pairs kept. A job visits few; what it visited longest ago goes first.
const CELLS: usize = 64;
/// Reports after which a new one moves the mean by 1/`HORIZON`: older ones are forgotten exponentially.
const HORIZON: f64 = 20.0;
/// Reports that a profiled measurement is worth: careful, but made on a sample of the data before the job ran.
const PROFILED: f64 = 3.0;
/// A pair with this many reports counts half; the model's own error keeps thousands from drowning the other pairs.
const HALF: f64 = 2.0;
/// Reports of other pairs after which a pair not seen since counts half.
const STALE: f64 = 200.0;

/// Measured speeds of one job: a running mean per (p, w, M, server type) with exponential forgetting.
///
/// [`profile`](Self::profile) takes what was measured before the job ran, [`report`](Self::report) what it reports live:
/// both go to the same mean, so live reports calibrate the profile and outlive it. At most 64 pairs are kept.
///
/// # Examples
///
/// ```
/// use trainmaster_core::fit::speed::{SpeedHistory, SpeedModel, SpeedOptions, SpeedSample};
///
/// let mut history = SpeedHistory::default();
/// history.profile(&SpeedSample::new(1, 1, 2.0));
/// for _ in 0..50 {
///     history.report(&SpeedSample::new(1, 1, 1.0)); // it turns out slower than profiled
/// }
/// let fit = history.fit(SpeedModel::Async, &SpeedOptions::default());
/// assert!((fit.speed(1, 1) - 1.0).abs() < 0.1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeedHistory {
    cells: Vec<Cell>,
    /// Reports and measurements taken so far: the clock by which pairs age.
    taken: u64,
    ignored: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Cell {
    servers: u32,
    workers: u32,
    batch: Option<f64>,
    server_type: u16,
    /// Mean seconds per step: durations add up, speeds do not.
    time: f64,
    /// Reports the mean rests on, at most [`HORIZON`].
    count: f64,
    /// `taken` at the last one.
    last: u64,
}

impl SpeedHistory {
    /// Takes a speed measured before the job ran.
    pub fn profile(&mut self, sample: &SpeedSample) {
        self.take(sample, PROFILED);
    }

    /// Takes a live report.
    pub fn report(&mut self, sample: &SpeedSample) {
        self.take(sample, 1.0);
    }

    /// Reports that held no usable speed.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Distinct (p, w, M, server type) kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether nothing usable was seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// One sample per pair, weighted below 1 by how often and how long ago it was seen.
    #[must_use]
    pub fn samples(&self) -> Vec<SpeedSample> {
        let to_sample = |c: &Cell| {
            let age = (self.taken - c.last) as f64;
            SpeedSample {
                servers: c.servers,
                workers: c.workers,
                batch: c.batch,
                server_type: c.server_type,
                speed: 1.0 / c.time,
                weight: c.count / (c.count + HALF) * (STALE / (STALE + age)),
            }
        };
        self.cells.iter().map(to_sample).collect()
    }

    /// Fits the speed function to what was seen. See [`SpeedFit::fit`].
    #[must_use]
    pub fn fit(&self, model: SpeedModel, options: &SpeedOptions) -> SpeedFit {
        SpeedFit::fit(model, &self.samples(), options)
    }

    fn take(&mut self, s: &SpeedSample, worth: f64) {
        let time = 1.0 / s.speed;
        let usable = |v: f64| v.is_finite() && v > 0.0;
        let batch_ok = s.batch.is_none_or(usable);
        if s.workers == 0 || !usable(s.speed) || !usable(time) || !usable(s.weight) || !batch_ok {
            self.ignored += 1;
            return;
        }
        self.taken += 1;
        let worth = worth * s.weight.min(HORIZON);
        let key = (s.servers, s.workers, s.server_type, s.batch.map(f64::to_bits));
        if let Some(c) =
            self.cells.iter_mut().find(|c| (c.servers, c.workers, c.server_type, c.batch.map(f64::to_bits)) == key)
        {
            c.count = (c.count + worth).min(HORIZON.max(worth));
            c.time += (time - c.time) * (worth / c.count).min(1.0);
            c.last = self.taken;
            return;
        }
        if self.cells.len() == CELLS {
            // Among equally old pairs (there are none: every report has its own number) the first would go.
            let oldest = (0..CELLS).min_by_key(|&i| self.cells[i].last).unwrap_or(0);
            self.cells.remove(oldest);
        }
        self.cells.push(Cell {
            servers: s.servers,
            workers: s.workers,
            batch: s.batch,
            server_type: s.server_type,
            time,
            count: worth,
            last: self.taken,
        });
    }
}
