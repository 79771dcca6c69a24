//! Random numbers by key.

/// A source of random numbers. Each number depends on a key, not on its position in a sequence: the draw of a job's
/// tenth epoch doesn't depend on earlier events, so two engines have the same random numbers.
///
/// ```
/// use trainmaster_sim::Draws;
/// let draws = Draws::new(7);
/// assert_eq!(draws.of(3).unit(1), Draws::new(7).of(3).unit(1));
/// assert_ne!(draws.of(3).unit(1), draws.of(4).unit(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draws(u64);

impl Draws {
    /// Creates a source from a seed.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x5851_f42d_4c95_7f2d))
    }

    /// The source of a job, an epoch or another numbered object.
    #[must_use]
    pub fn of(self, key: u64) -> Self {
        Self(mix(self.0 ^ mix(key)))
    }

    /// 64 random bits.
    pub fn bits(self, key: u64) -> u64 {
        self.of(key).0
    }

    /// Uniform in [0, 1).
    pub fn unit(self, key: u64) -> f64 {
        (self.bits(key) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in [from, to).
    pub fn between(self, key: u64, from: f64, to: f64) -> f64 {
        from + (to - from) * self.unit(key)
    }

    /// A uniform integer from `from` to `to`, both included.
    pub fn whole(self, key: u64, from: u64, to: u64) -> u64 {
        assert!(from <= to, "{from} to {to} is empty");
        from + self.bits(key) % (to - from + 1)
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller).
    pub fn normal(self, key: u64) -> f64 {
        let (radius, angle) = (1.0 - self.unit(key), self.of(key).unit(u64::MAX));
        (-2.0 * libm::log(radius)).sqrt() * libm::cos(std::f64::consts::TAU * angle)
    }

    /// Exponential with mean 1: times between arrivals.
    pub fn exponential(self, key: u64) -> f64 {
        -libm::log(1.0 - self.unit(key))
    }

    /// A random order of `0..count` (Fisher and Yates).
    pub fn order(self, key: u64, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            order.swap(at, self.of(key).whole(at as u64, 0, at as u64) as usize);
        }
        order
    }
}

/// SplitMix64's step and finaliser.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_have_their_means() {
        let draws = Draws::new(1);
        let mean = |draw: &dyn Fn(u64) -> f64| (0..20_000).map(draw).sum::<f64>() / 20_000.0;
        assert!((mean(&|key| draws.unit(key)) - 0.5).abs() < 0.01);
        assert!(mean(&|key| draws.normal(key)).abs() < 0.02);
        assert!((mean(&|key| draws.normal(key) * draws.normal(key)) - 1.0).abs() < 0.03);
        assert!((mean(&|key| draws.exponential(key)) - 1.0).abs() < 0.02);
        assert!((mean(&|key| draws.whole(key, 1, 6) as f64) - 3.5).abs() < 0.05);
    }

    #[test]
    fn an_order_is_a_permutation() {
        let mut order = Draws::new(3).order(0, 50);
        assert_ne!(order, (0..50).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
    }
}
