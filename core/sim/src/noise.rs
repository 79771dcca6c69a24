//! The true noise of a simulated job's gradients.

/// The noise scale φ, measured in runs with a few batches. Between them it is interpolated on logarithmic scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrueNoise {
    /// The runs, by their batch.
    pub runs: &'static [(f64, &'static [f64])],
    /// The completed fractions of the training at which each run has a value.
    pub at: &'static [f64],
}

impl TrueNoise {
    /// φ at a completed fraction of the training, with a batch. O(runs · values).
    pub fn scale(&self, progress: f64, batch: f64) -> f64 {
        let value =
            |run: &'static [f64]| between(self.at.iter().copied().zip(run.iter().map(|phi| libm::log(*phi))), progress);
        let runs = self.runs.iter().map(|(batch, run)| (libm::log(*batch), value(run)));
        libm::exp(between(runs, libm::log(batch)))
    }
}

/// The value at `x` of a line through points by ascending x, constant outside.
fn between(points: impl Iterator<Item = (f64, f64)>, x: f64) -> f64 {
    let mut below: Option<(f64, f64)> = None;
    for (at, value) in points {
        match below {
            Some((low, last)) if x < at => return last + (value - last) * ((x - low) / (at - low)).max(0.0),
            None if x < at => return value,
            _ => below = Some((at, value)),
        }
    }
    below.map_or(0.0, |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_measured_or_between() {
        let noise = TrueNoise { runs: &[(64.0, &[10.0, 1000.0]), (256.0, &[40.0, 4000.0])], at: &[0.0, 1.0] };
        let near = |progress: f64, batch: f64, expected: f64| {
            let scale = noise.scale(progress, batch);
            assert!((scale / expected - 1.0).abs() < 1e-9, "{progress} {batch}: {scale}");
        };
        near(0.0, 64.0, 10.0);
        near(1.0, 256.0, 4000.0);
        near(0.5, 64.0, 100.0);
        near(0.0, 128.0, 20.0);
        near(2.0, 1024.0, 4000.0);
        near(-1.0, 1.0, 10.0);
    }
}
