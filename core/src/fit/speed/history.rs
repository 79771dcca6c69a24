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
/// A report contradicts a profile where it is so many times slower or faster than the profile leaves possible. Ordinary noise
/// and a cold start stay below.
const CONTRADICTS: f64 = 1.5;
/// After so many reports in a row that contradict it a profile is forgotten; until then each halves its weight.
const STRIKES: u32 = 3;

/// Measured speeds of one job: a running mean per (p, w, M, server type) with exponential forgetting.
///
/// [`profile`](Self::profile) takes what was measured before the job ran, [`report`](Self::report) what it reports live:
/// both go to the same mean, so live reports calibrate the profile and outlive it. A profile that reports contradict loses
/// weight fast ([`contradiction`](Self::contradiction)). At most 64 pairs are kept.
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
    /// Reports in a row that contradicted the profile.
    strikes: u32,
    /// The last one of them.
    contradiction: Option<Contradiction>,
}

/// A report that a profile can't be true with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contradiction {
    /// p that was reported.
    pub servers: u32,
    /// w that was reported.
    pub workers: u32,
    /// Steps per second that were reported.
    pub reported: f64,
    /// The nearest that the profile leaves possible there: with twice the workers nothing is more than twice as fast.
    pub profiled: f64,
    /// The profile isn't believed any more.
    pub dropped: bool,
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
    /// Seconds per step as profiled, of a pair that was.
    profiled: Option<f64>,
    /// Mean seconds per step over reports alone, and how many it rests on.
    reported: (f64, f64),
}

impl SpeedHistory {
    /// Takes a speed measured before the job ran.
    pub fn profile(&mut self, sample: &SpeedSample) {
        if let Some(at) = self.take(sample, PROFILED) {
            self.cells[at].profiled = Some(1.0 / sample.speed);
        }
    }

    /// Takes a live report.
    pub fn report(&mut self, sample: &SpeedSample) {
        self.weigh_profile(sample);
        let Some(at) = self.take(sample, 1.0) else { return };
        let (mean, count) = &mut self.cells[at].reported;
        *count = (*count + 1.0).min(HORIZON);
        *mean += (1.0 / sample.speed - *mean) / *count;
    }

    /// How reports contradict the profile, if the last one that could did. O(pairs).
    #[must_use]
    pub fn contradiction(&self) -> Option<&Contradiction> {
        self.contradiction.as_ref()
    }

    /// Compares a report with what the nearest profiled pair leaves possible: of either role twice as many make a job at most
    /// twice as fast or slow.
    fn weigh_profile(&mut self, sample: &SpeedSample) {
        let far = |c: &Cell| {
            let away = |a: u32, b: u32| libm::fabs(libm::log(f64::from(a.max(1)) / f64::from(b.max(1))));
            away(c.workers, sample.workers) + away(c.servers, sample.servers)
        };
        let profiled = self.cells.iter().filter(|c| c.profiled.is_some());
        let Some(near) = profiled.min_by(|a, b| far(a).total_cmp(&far(b))) else { return };
        let (slack, profiled) = (libm::exp(far(near)), near.profiled.map_or(0.0, |time| 1.0 / time));
        let possible = sample.speed.clamp(profiled / slack, profiled * slack);
        let off = (sample.speed / possible).max(possible / sample.speed);
        if !off.is_finite() || off < CONTRADICTS {
            (self.strikes, self.contradiction) = (0, None);
            return;
        }
        self.strikes += 1;
        let dropped = self.strikes >= STRIKES;
        let (servers, workers, reported) = (sample.servers, sample.workers, sample.speed);
        self.contradiction = Some(Contradiction { servers, workers, reported, profiled: possible, dropped });
        if dropped {
            self.cells.retain(|c| c.profiled.is_none() || c.reported.1 > 0.0);
            for c in &mut self.cells {
                if c.profiled.take().is_none() {
                    continue;
                }
                (c.time, c.count) = c.reported;
            }
        }
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
        let doubt = libm::exp2(-f64::from(self.strikes));
        let trust = |c: &Cell| if c.profiled.is_some() && c.reported.1 == 0.0 { doubt } else { 1.0 };
        let to_sample = |c: &Cell| {
            let age = (self.taken - c.last) as f64;
            SpeedSample {
                servers: c.servers,
                workers: c.workers,
                batch: c.batch,
                server_type: c.server_type,
                speed: 1.0 / c.time,
                weight: c.count / (c.count + HALF) * (STALE / (STALE + age)) * trust(c),
            }
        };
        self.cells.iter().map(to_sample).collect()
    }

    /// Fits the speed function to what was seen. See [`SpeedFit::fit`].
    #[must_use]
    pub fn fit(&self, model: SpeedModel, options: &SpeedOptions) -> SpeedFit {
        SpeedFit::fit(model, &self.samples(), options)
    }

    /// Where it went; `None`: it is no usable speed.
    fn take(&mut self, s: &SpeedSample, worth: f64) -> Option<usize> {
        let time = 1.0 / s.speed;
        let usable = |v: f64| v.is_finite() && v > 0.0;
        let batch_ok = s.batch.is_none_or(usable);
        if s.workers == 0 || !usable(s.speed) || !usable(time) || !usable(s.weight) || !batch_ok {
            self.ignored += 1;
            return None;
        }
        self.taken += 1;
        let worth = worth * s.weight.min(HORIZON);
        let key = (s.servers, s.workers, s.server_type, s.batch.map(f64::to_bits));
        let known =
            self.cells.iter().position(|c| (c.servers, c.workers, c.server_type, c.batch.map(f64::to_bits)) == key);
        if let Some(at) = known {
            let c = &mut self.cells[at];
            c.count = (c.count + worth).min(HORIZON.max(worth));
            c.time += (time - c.time) * (worth / c.count).min(1.0);
            c.last = self.taken;
            return known;
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
            profiled: None,
            reported: (0.0, 0.0),
        });
        Some(self.cells.len() - 1)
    }
}
