//! Fits a network to demonstrations, with explicit gradients and Adam. The order of operations is fixed, so that the
//! same examples give the same bits.

use trainmaster_core::policy::{Demonstration, Network};
use trainmaster_sim::Draws;

/// Initial weights: normal, scaled by the width of the previous layer, so that scores are of the order of 1. Biases are
/// 0.
pub(super) fn initial(inputs: usize, hidden: usize, draws: Draws) -> Vec<f32> {
    let (first, second) = ((2.0 / inputs as f64).sqrt(), (1.0 / hidden as f64).sqrt());
    (0..Network::size(inputs, hidden))
        .map(|at| {
            let deviation = match at {
                _ if at < inputs * hidden => first,
                _ if at < (inputs + 1) * hidden => 0.0,
                _ if at < (inputs + 2) * hidden => second,
                _ => 0.0,
            };
            (deviation * draws.normal(at as u64)) as f32
        })
        .collect()
}

/// Adam (Kingma and Ba, 2015), as a minimiser.
pub(super) struct Adam {
    rate: f64,
    step: i32,
    mean: Vec<f64>,
    square: Vec<f64>,
}

impl Adam {
    pub(super) fn new(rate: f64, size: usize) -> Self {
        Self { rate, step: 0, mean: vec![0.0; size], square: vec![0.0; size] }
    }

    pub(super) fn step(&mut self, weights: &mut [f32], gradient: &[f64]) {
        const FADE: (f64, f64) = (0.9, 0.999);
        self.step += 1;
        let whole = |fade: f64| 1.0 - libm::pow(fade, f64::from(self.step));
        let (of_mean, of_square) = (whole(FADE.0), whole(FADE.1));
        for (at, gradient) in gradient.iter().enumerate() {
            let (mean, square) = (&mut self.mean[at], &mut self.square[at]);
            *mean = FADE.0 * *mean + (1.0 - FADE.0) * gradient;
            *square = FADE.1 * *square + (1.0 - FADE.1) * gradient * gradient;
            let step = self.rate * (*mean / of_mean) / ((*square / of_square).sqrt() + 1e-8);
            weights[at] = (f64::from(weights[at]) - step) as f32;
        }
    }
}

/// Adds the gradient of −log softmax(scores)\[chosen\] to `gradient`. Returns that loss, and whether the chosen
/// alternative has the highest score.
pub(super) fn cross_entropy(network: &Network, shown: &Demonstration, gradient: &mut [f64]) -> (f64, bool) {
    let (inputs, hidden) = (network.inputs(), network.hidden());
    let weights = network.weights();
    let (biases, output) = (inputs * hidden, (inputs + 1) * hidden);
    let mut units = vec![0.0_f64; shown.choices.len() * hidden];
    let mut scores = Vec::with_capacity(shown.choices.len());
    for (choice, units) in shown.choices.iter().zip(units.chunks_exact_mut(hidden)) {
        for (unit, bias) in units.iter_mut().zip(&weights[biases..]) {
            *unit = f64::from(*bias);
        }
        for (input, row) in choice.iter().zip(weights.chunks_exact(hidden)) {
            for (unit, weight) in units.iter_mut().zip(row) {
                *unit += f64::from(*input) * f64::from(*weight);
            }
        }
        let terms = units.iter().zip(&weights[output..]).map(|(unit, weight)| unit.max(0.0) * f64::from(*weight));
        scores.push(terms.sum::<f64>() + f64::from(weights[output + hidden]));
    }
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let odds: Vec<f64> = scores.iter().map(|score| libm::exp(score - most)).collect();
    let total: f64 = odds.iter().sum();
    for (at, ((choice, units), odds)) in shown.choices.iter().zip(units.chunks_exact(hidden)).zip(&odds).enumerate() {
        let slope = odds / total - if at == shown.chosen { 1.0 } else { 0.0 };
        gradient[output + hidden] += slope;
        for (at, unit) in units.iter().enumerate().filter(|(_, unit)| **unit > 0.0) {
            gradient[output + at] += slope * unit;
            let back = slope * f64::from(weights[output + at]);
            gradient[biases + at] += back;
            for (row, input) in choice.iter().enumerate().filter(|(_, input)| **input != 0.0) {
                gradient[row * hidden + at] += back * f64::from(*input);
            }
        }
    }
    let loss = libm::log(total) + most - scores[shown.chosen];
    (loss, scores.iter().enumerate().all(|(at, score)| at == shown.chosen || *score < scores[shown.chosen]))
}

/// Results of imitation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Imitated {
    /// Mean −log of the probability of the chosen alternative, in the last pass.
    pub(super) loss: f64,
    /// Fraction of all choices that the network reproduces.
    pub(super) agreed: f64,
}

/// Passes over all demonstrations, each in another order.
pub(super) fn imitate(
    weights: &mut Vec<f32>,
    (inputs, hidden): (usize, usize),
    shown: &[Demonstration],
    passes: u32,
    draws: Draws,
) -> Imitated {
    const BATCH: usize = 64;
    let mut adam = Adam::new(0.005, weights.len());
    let mut imitated = Imitated { loss: 0.0, agreed: 0.0 };
    for pass in 0..passes {
        let (mut loss, mut agreed) = (0.0, 0_u32);
        for batch in draws.order(pass.into(), shown.len()).chunks(BATCH) {
            let network = Network::new(inputs, hidden, std::mem::take(weights)).expect("Adam's steps are small");
            let mut gradient = vec![0.0; network.weights().len()];
            for at in batch {
                let (one, agrees) = cross_entropy(&network, &shown[*at], &mut gradient);
                loss += one;
                agreed += u32::from(agrees);
            }
            gradient.iter_mut().for_each(|slope| *slope /= batch.len() as f64);
            *weights = network.weights().to_vec();
            adam.step(weights, &gradient);
        }
        let count = shown.len().max(1) as f64;
        imitated = Imitated { loss: loss / count, agreed: f64::from(agreed) / count };
    }
    imitated
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(draws: Draws) -> Vec<Demonstration> {
        // The alternative with the largest first input.
        let demonstration = |key: u64| {
            let draws = draws.of(key);
            let choices: Vec<Vec<f32>> =
                (0..5).map(|at| (0..3).map(|input| draws.unit(10 * at + input) as f32).collect()).collect();
            let chosen = (0..5).max_by(|a, b| choices[*a][0].total_cmp(&choices[*b][0])).unwrap();
            Demonstration { choices, chosen }
        };
        (0..400).map(demonstration).collect()
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let shown = &shown(Draws::new(1))[0];
        let weights = initial(3, 4, Draws::new(2));
        let network = |weights: Vec<f32>| Network::new(3, 4, weights).unwrap();
        let mut gradient = vec![0.0; weights.len()];
        let _ = cross_entropy(&network(weights.clone()), shown, &mut gradient);
        for at in 0..weights.len() {
            let loss = |by: f32| {
                let mut weights = weights.clone();
                weights[at] += by;
                cross_entropy(&network(weights), shown, &mut vec![0.0; gradient.len()]).0
            };
            let slope = (loss(1e-3) - loss(-1e-3)) / 2e-3;
            assert!((slope - gradient[at]).abs() < 1e-3, "weight {at}: {slope} and {}", gradient[at]);
        }
    }

    #[test]
    fn training_and_core_compute_the_same_scores() {
        let draws = Draws::new(3);
        let network = Network::new(3, 4, initial(3, 4, draws)).unwrap();
        for shown in shown(draws) {
            let scores: Vec<f64> = shown.choices.iter().map(|choice| f64::from(network.score(choice))).collect();
            let total: f64 = scores.iter().map(|score| score.exp()).sum();
            let (loss, _) = cross_entropy(&network, &shown, &mut vec![0.0; network.weights().len()]);
            assert!((loss - (total.ln() - scores[shown.chosen])).abs() < 1e-5);
        }
    }

    #[test]
    fn demonstrations_are_imitated_reproducibly() {
        let shown = shown(Draws::new(1));
        let learn = || {
            let mut weights = initial(3, 8, Draws::new(5));
            let imitated = imitate(&mut weights, (3, 8), &shown, 150, Draws::new(6));
            (weights, imitated)
        };
        let (weights, imitated) = learn();
        assert!(imitated.agreed > 0.9, "{imitated:?}");
        assert_eq!(learn().0, weights);
    }
}
