//! History of a job's measured speeds, in bounded memory.

use serde::{Deserialize, Serialize};

use super::{fit::SpeedFit, model::SpeedModel, model::SpeedOptions, model::SpeedSample};

/// Maximum number of pairs. A job uses few; the pair that was used longest ago is dropped first.
const CELLS: usize = 64;
/// Number of reports after which a new one moves the mean by 1/`HORIZON`. Older reports are forgotten exponentially.
const HORIZON: f64 = 20.0;
/// Weight of a profiled measurement in reports: it is careful, but made on a sample of the data before the job ran.
const PROFILED: f64 = 3.0;
/// Number of reports at which a pair has half of the full weight. Because of the model's own error, thousands of
/// reports of one pair must not outweigh the other pairs.
const HALF: f64 = 2.0;
/// Number of reports of other pairs after which an unused pair has half of its weight.
const STALE: f64 = 200.0;
/// A report contradicts a profile if it is slower or faster by this factor than the profile allows. Ordinary noise and
/// a cold start stay below it.
const CONTRADICTS: f64 = 1.5;
/// Number of consecutive contradicting reports after which a profile is dropped. Each one before halves its weight.
const STRIKES: u32 = 3;
/// Number of reports of a pair from which it counts for other jobs of the model: the first one may be of a cold start.
const FEW: f64 = 2.0;
/// A mean that moved by this fraction is news.
const MOVED: f64 = 0.1;

/// Measured speeds of one job: a running mean per (p, w, M, server type) with exponential forgetting.
///
/// [`profile`](Self::profile) adds measurements from before the job ran, [`report`](Self::report) the job's own
/// reports. Both enter the same mean, so reports calibrate the profile and eventually replace it. A profile that
/// reports contradict loses weight quickly ([`contradiction`](Self::contradiction)). At most 64 pairs are kept.
///
/// # Examples
///
/// ```
/// use trainmaster_core::fit::speed::{SpeedHistory, SpeedModel, SpeedOptions, SpeedSample};
///
/// let mut history = SpeedHistory::default();
/// history.profile(&SpeedSample::new(1, 1, 2.0));
/// for _ in 0..50 {
///     history.report(&SpeedSample::new(1, 1, 1.0), true); // it turns out slower than profiled
/// }
/// let fit = history.fit(SpeedModel::Async, &SpeedOptions::default());
/// assert!((fit.speed(1, 1) - 1.0).abs() < 0.1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeedHistory {
    cells: Vec<Cell>,
    /// Number of reports and measurements so far: the clock for the age of pairs.
    taken: u64,
    ignored: u64,
    /// Number of consecutive reports that contradict the profile.
    strikes: u32,
    /// The last contradiction.
    contradiction: Option<Contradiction>,
}

/// A report that is inconsistent with the profile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Contradiction {
    /// p of the report.
    pub servers: u32,
    /// w of the report.
    pub workers: u32,
    /// Reported steps per second.
    pub reported: f64,
    /// The nearest speed that the profile allows: twice the workers are at most twice as fast.
    pub profiled: f64,
    /// The profile was dropped.
    pub dropped: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Cell {
    servers: u32,
    workers: u32,
    batch: Option<f64>,
    server_type: u16,
    /// Mean seconds per step, because durations add up and speeds don't.
    time: f64,
    /// Number of reports in the mean, at most [`HORIZON`].
    count: f64,
    /// `taken` at the last report.
    last: u64,
    /// Profiled seconds per step, if the pair was profiled.
    profiled: Option<f64>,
    /// Mean seconds per step over reports alone, and their number.
    reported: (f64, f64),
    /// The mean that was last news.
    told: f64,
}

impl SpeedHistory {
    /// Adds a speed that was measured before the job ran.
    pub fn profile(&mut self, sample: &SpeedSample) {
        if let Some(at) = self.take(sample, PROFILED) {
            self.cells[at].profiled = Some(1.0 / sample.speed);
        }
    }

    /// Adds a report of the running job. Returns whether a fit should be renewed: the pair is new, or its mean moved by
    /// more than a tenth since this was last true, as after a warm-up. `is_smooth`: a profile of other pairs limits
    /// what speed is possible, which isn't so if each number of workers has an execution plan of its own.
    pub fn report(&mut self, sample: &SpeedSample, is_smooth: bool) -> bool {
        if sample.batch.is_none() {
            self.weigh_profile(sample, is_smooth);
        } else {
            // A profile is of the submitted batch, so this report says nothing of it.
            self.strikes = 0;
            self.contradiction.take_if(|at| !at.dropped);
        }
        let Some(at) = self.take(sample, 1.0) else { return false };
        let cell = &mut self.cells[at];
        let (mean, count) = &mut cell.reported;
        *count = (*count + 1.0).min(HORIZON);
        *mean += (1.0 / sample.speed - *mean) / *count;
        let moved = libm::fabs(cell.time - cell.told) > MOVED * cell.told;
        if moved {
            cell.told = cell.time;
        }
        moved
    }

    /// The contradiction between reports and profile, if the last comparable report contradicts it. O(pairs).
    #[must_use]
    pub fn contradiction(&self) -> Option<&Contradiction> {
        self.contradiction.as_ref()
    }

    /// Compares a report with the speeds that the nearest profiled pair allows: twice as many slots of a role make a
    /// job at most twice as fast or slow.
    fn weigh_profile(&mut self, sample: &SpeedSample, is_smooth: bool) {
        let far = |c: &Cell| {
            let away = |a: u32, b: u32| libm::fabs(libm::log(f64::from(a.max(1)) / f64::from(b.max(1))));
            away(c.workers, sample.workers) + away(c.servers, sample.servers)
        };
        let profiled = self.cells.iter().filter(|c| c.profiled.is_some() && c.server_type == sample.server_type);
        let profiled = profiled.filter(|c| is_smooth || far(c) == 0.0);
        let Some(near) = profiled.min_by(|a, b| far(a).total_cmp(&far(b))) else {
            // Measurements at the former number of workers no longer count against the profile.
            self.strikes = if is_smooth { self.strikes } else { 0 };
            self.contradiction.take_if(|at| !is_smooth && !at.dropped);
            return;
        };
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
            let is_meant = |c: &Cell| is_smooth || far(c) == 0.0;
            self.cells.retain(|c| c.profiled.is_none() || c.reported.1 > 0.0 || !is_meant(c));
            for c in self.cells.iter_mut().filter(|c| is_meant(c)) {
                if c.profiled.take().is_none() {
                    continue;
                }
                (c.time, c.count) = c.reported;
            }
        }
    }

    /// Whether the model's other jobs should learn the last report now: its pair has been reported often enough to
    /// count there, or five times. Once the history was full, nothing is news, so that nobody can make others' work by
    /// naming ever new pairs. O(pairs).
    pub(crate) fn is_news(&self, last: &SpeedSample) -> bool {
        let same = |c: &&Cell| (c.servers, c.workers, c.server_type) == (last.servers, last.workers, last.server_type);
        let found = self.cells.iter().find(|c| same(c) && c.batch == last.batch);
        self.cells.len() < CELLS && found.is_some_and(|c| c.reported.1 == FEW || c.reported.1 == 5.0)
    }

    /// The pairs that were reported or profiled often enough to count for the model's other jobs.
    pub(crate) fn known(&self) -> Vec<SpeedSample> {
        let all = self.cells.iter().zip(self.samples());
        all.filter(|(cell, _)| cell.count >= FEW).map(|(_, sample)| sample).collect()
    }

    /// Whether there is a speed on servers of a type.
    pub(crate) fn has_type(&self, server_type: u16) -> bool {
        self.cells.iter().any(|cell| cell.server_type == server_type)
    }

    /// Removes the speeds on servers of a type.
    pub(crate) fn forget_type(&mut self, server_type: u16) {
        self.cells.retain(|cell| cell.server_type != server_type);
    }

    /// Number of reports without a usable speed.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Number of distinct (p, w, M, server type).
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether there is no usable report.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// One sample per pair, with a weight below 1 by the number and the age of its reports.
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

    /// Fits the speed function to the history. See [`SpeedFit::fit`].
    #[must_use]
    pub fn fit(&self, model: SpeedModel, options: &SpeedOptions) -> SpeedFit {
        SpeedFit::fit(model, &self.samples(), options)
    }

    /// Adds a speed, and returns its index. `None`: the speed isn't usable.
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
            // Every report has its own number, so pairs have different ages.
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
            told: 0.0,
        });
        Some(self.cells.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_is_news_twice_until_the_history_is_full() {
        let mut history = SpeedHistory::default();
        let mut told = |workers: u32| {
            let sample = SpeedSample::new(0, workers, 1.0);
            history.report(&sample, true);
            (history.is_news(&sample), history.known().iter().any(|known| known.workers == workers))
        };
        let of_four: Vec<_> = (0..7).map(|_| told(4)).collect();
        let (no, yes) = ((false, true), (true, true));
        assert_eq!(of_four, [(false, false), yes, no, no, yes, no, no]);
        let news = (0..100_000_u32).filter(|at| told(5 + at / 2 % 200).0).count();
        assert_eq!(news, CELLS - 2, "the second report of each pair, until there is no place for another");
    }
}
