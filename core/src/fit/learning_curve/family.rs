//! Families of learning curves.

/// g in y = c − a·g(k) over k ≥ 1: the decreasing remainder of the way to the curve's end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Family {
    /// k^(−α).
    Power(f64),
    /// e^(−(k/τ)^δ): Weibull's and Janoschek's curves.
    Stretched(f64, f64),
    /// 1/(1 + (k/κ)^η): Hill's, and Morgan's, Mercer's and Flodin's.
    Hill(f64, f64),
    /// −ln k: increases without bound.
    Logarithm,
}

const POWERS: [f64; 8] = [0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0];
/// τ as a fraction of the whole training.
const TIMES: [f64; 12] = [0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.11, 0.15, 0.2, 0.3, 0.6];
const STRETCHES: [f64; 3] = [0.5, 1.0, 2.0];
/// κ as a fraction of the whole training.
const HALVES: [f64; 4] = [0.01, 0.03, 0.1, 0.3];
const SLOPES: [f64; 3] = [1.0, 2.0, 4.0];

impl Family {
    /// All shapes of the grid for a training of `epochs` epochs.
    pub(super) fn all(epochs: f64) -> impl Iterator<Item = Self> {
        let stretched = TIMES
            .iter()
            .flat_map(move |time| STRETCHES.iter().map(move |power| Self::Stretched(time * epochs, *power)));
        let hill =
            HALVES.iter().flat_map(move |half| SLOPES.iter().map(move |slope| Self::Hill(half * epochs, *slope)));
        let powers = POWERS.iter().map(|power| Self::Power(*power));
        powers.chain(stretched).chain(hill).chain([Self::Logarithm])
    }

    /// g(k).
    pub(super) fn left(self, k: f64) -> f64 {
        match self {
            Self::Power(power) => libm::pow(k, -power),
            Self::Stretched(time, power) => libm::exp(-libm::pow(k / time, power)),
            Self::Hill(half, slope) => 1.0 / (1.0 + libm::pow(k / half, slope)),
            Self::Logarithm => -libm::log(k),
        }
    }

    /// Whether the curve converges to c.
    pub(super) fn saturates(self) -> bool {
        self != Self::Logarithm
    }
}
