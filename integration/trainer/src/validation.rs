//! Accuracy of the model on held-out examples.

use crate::{
    data::{Data, largest},
    model::{Network, Scratch},
    settings::Settings,
};

/// The held-out examples, generated once.
pub(crate) struct Validation {
    network: Network,
    scratch: Scratch,
    /// Label and features.
    examples: Vec<(usize, Vec<f32>)>,
}

impl Validation {
    pub(crate) fn new(settings: &Settings) -> Self {
        let data = Data::new(&settings.data);
        let draw = |number| {
            let mut features = vec![0.0; settings.data.features];
            (data.example(number, &mut features), features)
        };
        let network = settings.network.clone();
        Self { scratch: network.scratch(), network, examples: data.held_out().map(draw).collect() }
    }

    /// Fraction of the held-out examples that a model with these parameters labels correctly.
    pub(crate) fn accuracy(&mut self, parameters: &[f32]) -> f64 {
        let Self { network, scratch, examples } = self;
        let right = examples
            .iter()
            .filter(|(label, features)| largest(network.forward(parameters, features, scratch)) == *label)
            .count();
        right as f64 / examples.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::settings;

    #[test]
    fn a_perfect_model_has_full_accuracy() {
        // Blobs far from each other, and a linear model that scores by the distance to their centres.
        let settings = settings(&["--features=2", "--classes=2", "--noise=0", "--label-noise=0"]);
        let data = Data::new(&settings.data);
        let mut centres = [[0.0_f32; 2]; 2];
        for number in 0..50 {
            let mut at = [0.0; 2];
            let label = data.example(number, &mut at);
            centres[label] = at;
        }
        let square = |centre: [f32; 2]| -(centre[0] * centre[0] + centre[1] * centre[1]) / 2.0;
        let [a, b] = centres;
        let mut validation = Validation::new(&settings);
        assert_eq!(validation.examples.len(), 500);
        assert_eq!(validation.accuracy(&[a[0], a[1], b[0], b[1], square(a), square(b)]), 1.0);
        assert_eq!(validation.accuracy(&[b[0], b[1], a[0], a[1], square(b), square(a)]), 0.0);
    }
}
