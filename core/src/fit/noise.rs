//! Noise scales of gradients, by progress and batch.
//!
//! The noise of a model's gradients grows while it trains, and differs by batch: halfway through its training on
//! CIFAR-10, Pollux's authors measured 4,770 examples with batches of 128, and 17,600 with batches of 4,096. A job
//! measures it at one progress and one batch. What its model's jobs reported at that progress says what other batches
//! would have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Maximum number of cells of a history. A new one replaces the one without reports for the longest time.
const MOST: usize = 128;
/// Number of reports after which a new one moves a cell's mean by 1/`HORIZON`.
const HORIZON: f64 = 10.0;
/// Cells without another one beyond speak for a progress from half to twice their own.
const NEAR: f64 = std::f64::consts::LN_2;
/// Maximum number of batches of a curve.
const BATCHES: usize = 8;
/// The largest noise scale that a curve says.
const LARGEST: f64 = 1e12;

/// What the jobs of one model reported, as means over cells: an octave of batches, half an octave of progress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NoiseHistory {
    cells: BTreeMap<(u8, u8), Cell>,
    reports: u64,
}

/// Means over its reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Cell {
    /// Logarithm of the batch.
    batch: f64,
    /// Logarithm of the number of examples that were trained.
    progress: f64,
    /// Logarithm of the noise scale.
    noise: f64,
    /// Number of reports, at most [`HORIZON`].
    count: f64,
    /// The number of its last report.
    last: u64,
}

impl NoiseHistory {
    /// Adds a report of a noise scale, in examples, with a batch after `examples` trained ones: steps times submitted
    /// batch. O(log cells), or O(cells) if it replaces another cell.
    pub fn report(&mut self, batch: u64, examples: f64, noise: f64) {
        if !(examples.is_finite() && noise.is_finite()) {
            return;
        }
        let seen = [batch as f64, examples, noise].map(log);
        let octaves = |log: f64| libm::round(log / NEAR).clamp(0.0, 255.0) as u8;
        let key = (octaves(seen[0]), octaves(2.0 * seen[1]));
        if self.cells.len() >= MOST && !self.cells.contains_key(&key) {
            let oldest = self.cells.iter().min_by_key(|(_, cell)| cell.last).map(|(key, _)| *key);
            oldest.map(|key| self.cells.remove(&key));
        }
        self.reports += 1;
        let cell = self.cells.entry(key).or_default();
        cell.count = (cell.count + 1.0).min(HORIZON);
        cell.last = self.reports;
        for (mean, value) in [&mut cell.batch, &mut cell.progress, &mut cell.noise].into_iter().zip(seen) {
            *mean += (value - *mean) / cell.count;
        }
    }

    /// Whether nothing was reported.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The noise scale after `examples` trained ones, for batches of a range. Between two cells of an octave of batches
    /// it is a power of the progress. An octave without a cell near this progress is left out, unless all are: then the
    /// nearest cell counts. A progress before the first report counts as that of the first one, and one after the last
    /// report as that of the last one. O(cells).
    pub fn at(&self, examples: f64, range: (u64, u64)) -> Option<NoiseCurve> {
        let all = || self.cells.values().map(|cell| cell.progress);
        let at = log(examples).min(all().fold(f64::NEG_INFINITY, f64::max)).max(all().fold(f64::INFINITY, f64::min));
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut cells = self.cells.iter().peekable();
        while let Some((&(octave, _), first)) = cells.next() {
            let (mut below, mut above) = (None, None);
            let mut next = Some(first);
            while let Some(cell) = next {
                if cell.progress <= at {
                    below = Some(*cell);
                } else if above.is_none() {
                    above = Some(*cell);
                }
                next = cells.next_if(|((of, _), _)| *of == octave).map(|(_, cell)| cell);
            }
            let near = |cell: &Cell| libm::fabs(cell.progress - at) <= NEAR;
            points.extend(match (below, above) {
                (Some(a), Some(b)) => {
                    let part = (at - a.progress) / (b.progress - a.progress);
                    Some((a.batch + part * (b.batch - a.batch), a.noise + part * (b.noise - a.noise)))
                }
                (one, other) => one.or(other).filter(near).map(|cell| (cell.batch, cell.noise)),
            });
        }
        if points.is_empty() {
            let far = |cell: &Cell| libm::fabs(cell.progress - at);
            let nearest = self.cells.values().min_by(|a, b| far(a).total_cmp(&far(b)));
            points.extend(nearest.map(|cell| (cell.batch, cell.noise)));
        }
        NoiseCurve::of(points, range)
    }
}

/// Noise scales by batch, in examples. Between two known batches it is a power of the batch, beyond them constant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoiseCurve {
    /// Logarithms, by ascending batch. Not empty, at most [`BATCHES`].
    points: Vec<(f64, f64)>,
}

impl NoiseCurve {
    /// Of points by ascending batch: those in a range with the next one on each side, or every n-th of them if they are
    /// too many. A batch k times as large has between 1/k and k times the noise.
    fn of(mut points: Vec<(f64, f64)>, (min, max): (u64, u64)) -> Option<Self> {
        let from = points.iter().rposition(|(batch, _)| *batch <= log(min as f64)).unwrap_or(0);
        let to = points.iter().position(|(batch, _)| *batch >= log(max as f64)).map_or(points.len(), |at| at + 1);
        points = points.get(from..to).map(<[_]>::to_vec).unwrap_or_default();
        let each = points.len().div_ceil(BATCHES).max(1);
        points = points.into_iter().step_by(each).collect();
        for at in 1..points.len() {
            let ((b0, n0), (b1, n1)) = (points[at - 1], points[at]);
            points[at].1 = n1.min(n0 + (b1 - b0)).max(n0 - (b1 - b0));
        }
        (!points.is_empty()).then_some(Self { points })
    }

    /// The same for all batches.
    pub fn constant(noise: f64) -> Self {
        Self { points: vec![(0.0, log(noise))] }
    }

    /// The curve moved up or down, so that it goes through a noise scale that the job itself measured with a batch.
    #[must_use]
    pub fn through(mut self, batch: f64, noise: f64) -> Self {
        let by = log(noise) - self.log_at(log(batch));
        self.points.iter_mut().for_each(|(_, noise)| *noise += by);
        self
    }

    /// The noise scale of a batch. O(known batches).
    pub fn at(&self, batch: f64) -> f64 {
        libm::exp(self.log_at(log(batch))).clamp(1.0, LARGEST)
    }

    fn log_at(&self, at: f64) -> f64 {
        match self.points.iter().position(|(batch, _)| *batch >= at) {
            Some(0) => self.points[0].1,
            None => self.points[self.points.len() - 1].1,
            Some(next) => {
                let ((b0, n0), (b1, n1)) = (self.points[next - 1], self.points[next]);
                n0 + (n1 - n0) * (at - b0) / (b1 - b0)
            }
        }
    }

    /// For each known batch its noise scale, and the range of batches that are nearest to it, as a part of `range`
    /// (empty parts are left out). They cover the range.
    pub(crate) fn parts(&self, (min, max): (f64, f64)) -> impl Iterator<Item = (f64, (f64, f64))> {
        let points = &self.points;
        let middle = |a: usize, b: usize| libm::exp(0.5 * (points[a].0 + points[b].0));
        let part = move |at: usize| {
            let from = if at == 0 { min } else { middle(at - 1, at).clamp(min, max) };
            let to = if at + 1 == points.len() { max } else { middle(at, at + 1).clamp(min, max) };
            (from < to || points.len() == 1).then(|| (self.at(libm::exp(points[at].0)), (from, to)))
        };
        (0..points.len()).filter_map(part)
    }

    /// Number of known batches.
    pub(crate) fn batches(&self) -> u64 {
        self.points.len() as u64
    }
}

/// The logarithm of a number of examples. Less than one counts as one.
fn log(examples: f64) -> f64 {
    libm::log(examples.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: (u64, u64) = (1, u64::MAX);

    #[test]
    fn noise_is_known_near_what_was_reported() {
        let mut history = NoiseHistory::default();
        assert_eq!(history.at(1000.0, ALL), None);
        for (examples, small, large) in [(1000.0, 100.0, 400.0), (16_000.0, 1600.0, 6400.0)] {
            for _ in 0..3 {
                history.report(64, examples, small);
                history.report(1024, examples, large);
            }
        }
        let near = |history: &NoiseHistory, examples: f64, batch: f64, expected: f64| {
            let noise = history.at(examples, ALL).unwrap().at(batch);
            assert!((noise / expected - 1.0).abs() < 1e-9, "{examples} {batch}: {noise}");
        };
        near(&history, 1000.0, 64.0, 100.0);
        near(&history, 1000.0, 1024.0, 400.0);
        near(&history, 1000.0, 256.0, 200.0);
        near(&history, 1000.0, 1.0, 100.0);
        near(&history, 1000.0, 1e9, 400.0);
        near(&history, 4000.0, 64.0, 400.0);
        // Before the first and after the last report.
        near(&history, 0.0, 64.0, 100.0);
        near(&history, 1e9, 1024.0, 6400.0);
        // A batch that was reported only later says nothing of now.
        (0..2).for_each(|_| history.report(16_384, 16_000.0, 25_600.0));
        near(&history, 1000.0, 16_384.0, 400.0);
        near(&history, 15_999.0, 16_384.0, 25_600.0);
        // A batch has at most as many times the noise as it is larger.
        history.report(1 << 20, 16_000.0, 1e12);
        near(&history, 16_000.0, 1_048_576.0, 25_600.0 * 64.0);
        // Only batches near the range matter.
        assert_eq!(history.at(16_000.0, (64, 1000)).unwrap().batches(), 2);
        // Between two octaves that are known before and after it only, the nearest report counts.
        let mut gap = NoiseHistory::default();
        for _ in 0..2 {
            gap.report(64, 1000.0, 50.0);
            gap.report(1024, 1e6, 800.0);
        }
        near(&gap, 20_000.0, 64.0, 50.0);
        near(&gap, 200_000.0, 64.0, 800.0);
    }

    #[test]
    fn a_curve_goes_through_what_the_job_measured() {
        let mut history = NoiseHistory::default();
        for _ in 0..2 {
            history.report(64, 1000.0, 100.0);
            history.report(1024, 1000.0, 400.0);
        }
        let curve = history.at(1000.0, ALL).unwrap().through(256.0, 100.0);
        for (batch, noise) in [(64.0, 50.0), (256.0, 100.0), (1024.0, 200.0)] {
            assert!((curve.at(batch) / noise - 1.0).abs() < 1e-9, "{batch}: {}", curve.at(batch));
        }
        let parts: Vec<_> = curve.parts((32.0, 512.0)).collect();
        assert_eq!(parts.len(), 2);
        assert!((parts[0].1.1 - 256.0).abs() < 1e-9 && parts[0].1.1 == parts[1].1.0, "{parts:?}");
        assert_eq!((parts[0].1.0, parts[1].1.1), (32.0, 512.0));
        assert_eq!(NoiseCurve::constant(9.0).parts((5.0, 5.0)).map(|part| part.1).collect::<Vec<_>>(), [(5.0, 5.0)]);
        assert_eq!(curve.parts((32.0, 33.0)).count(), 1);
    }

    #[test]
    fn strange_reports_take_bounded_room() {
        let mut history = NoiseHistory::default();
        for at in 0..20_000_u64 {
            let draw = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            history.report(1 << (draw >> 58), libm::exp2((draw % 128) as f64), (draw % 1000) as f64);
        }
        history.report(0, -1.0, 0.0);
        history.report(u64::MAX, f64::INFINITY, 1.0);
        history.report(1, f64::NAN, f64::NAN);
        assert_eq!(history.cells.len(), MOST);
        (0..20).for_each(|at| history.report(1 << (at / 2), 1e6, libm::exp2(f64::from(at * 30))));
        for examples in [0.0, 1.0, 1e30, f64::MAX] {
            let curve = history.at(examples, ALL).unwrap();
            for batch in [0.0, 1.0, 1e6, f64::MAX] {
                assert!(curve.at(batch).is_finite() && curve.at(batch) > 0.0, "{examples} {batch}");
            }
            assert!(curve.batches() <= 8);
        }
        // The cell that was reported longest ago makes room.
        for _ in 0..MOST {
            (0..MOST as u64).for_each(|at| history.report(1 << (at % 32), libm::exp2((at / 32) as f64 / 2.0), 7.0));
        }
        assert!(history.cells.values().all(|cell| (cell.noise - log(7.0)).abs() < 1e-3));
    }
}
