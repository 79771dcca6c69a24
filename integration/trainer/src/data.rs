//! Training data: generated from a seed, example by example, or a small real set that is compiled in. No file is read,
//! and all processes have the same data.

use std::ops::Range;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};

use crate::{iris, model::Network};

/// Numbers of examples from here on are never trained, because no epoch is that long.
const HELD_OUT: u64 = 1 << 41;
/// This number of examples determines the accuracy to within about two points.
const VALIDATION: u64 = 500;

/// Kind of the examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DataKind {
    /// Gaussian blobs, one per class; `noise` is their standard deviation (centres are about one unit apart per
    /// feature).
    Blobs,
    /// Standard normal features, labelled by a random network with one hidden layer; `noise` perturbs its scores.
    Teacher,
    /// Fisher's irises, a real set in the program: 150 flowers, 4 measures, 3 species. Nothing is random; every fifth
    /// flower is held out.
    Iris,
}

impl DataKind {
    /// Classes and features of a set with a fixed shape.
    pub(crate) fn shape(self) -> Option<(u32, u32)> {
        (self == Self::Iris).then_some((iris::CLASSES, iris::FEATURES))
    }

    /// Default number of examples per epoch.
    pub(crate) fn examples(self) -> Option<u64> {
        (self == Self::Iris).then_some(iris::TRAINED)
    }
}

/// Shape and difficulty of a data set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DataSettings {
    pub(crate) kind: DataKind,
    pub(crate) classes: usize,
    pub(crate) features: usize,
    /// See [`DataKind`].
    pub(crate) noise: f64,
    /// Fraction of generated examples with a random label, which keeps the loss from falling to zero.
    pub(crate) label_noise: f64,
    /// Another seed is another task.
    pub(crate) seed: u64,
}

/// Examples by number.
pub(crate) struct Data {
    settings: DataSettings,
    centres: Vec<f32>,
    teacher: Option<Network>,
    teacher_parameters: Vec<f32>,
}

// Streams of the generator that don't belong to an example.
const CENTRES: u64 = u64::MAX;
const TEACHER: u64 = u64::MAX - 1;

impl Data {
    /// Prepares the common data of all examples: the blobs' centres or the teacher.
    pub(crate) fn new(settings: &DataSettings) -> Self {
        let mut data =
            Self { settings: settings.clone(), centres: Vec::new(), teacher: None, teacher_parameters: Vec::new() };
        match settings.kind {
            DataKind::Blobs => {
                let mut normal = Normal::new(settings.seed, CENTRES);
                data.centres = (0..settings.classes * settings.features).map(|_| normal.next() as f32).collect();
            }
            DataKind::Teacher => {
                let teacher = Network::new(settings.features, &[2 * settings.features], settings.classes);
                data.teacher_parameters = teacher.initial(settings.seed ^ TEACHER);
                data.teacher = Some(teacher);
            }
            DataKind::Iris => {}
        }
        data
    }

    pub(crate) fn features(&self) -> usize {
        self.settings.features
    }

    /// Numbers of the held-out examples for validation. They don't depend on the length of an epoch.
    pub(crate) fn held_out(&self) -> Range<u64> {
        let count = if self.settings.kind == DataKind::Iris { iris::HELD_OUT } else { VALIDATION };
        HELD_OUT..HELD_OUT + count
    }

    /// Writes the features of an example, and returns its label.
    pub(crate) fn example(&self, number: u64, features: &mut [f32]) -> usize {
        let DataSettings { classes, noise, label_noise, .. } = self.settings;
        assert_eq!(features.len(), self.settings.features);
        if self.settings.kind == DataKind::Iris {
            let flower = number.checked_sub(HELD_OUT).map_or_else(|| iris::trained(number), iris::held_out);
            let (measures, species) = flower;
            features.copy_from_slice(measures);
            return *species;
        }
        let mut normal = Normal::new(self.settings.seed, number);
        let class = normal.below(classes);
        let drawn_at_random = normal.uniform() < label_noise;
        let random_label = normal.below(classes);
        let label = match &self.teacher {
            None => {
                let centre = &self.centres[class * features.len()..][..features.len()];
                for (feature, mean) in features.iter_mut().zip(centre) {
                    *feature = mean + (noise * normal.next()) as f32;
                }
                class
            }
            Some(teacher) => {
                features.iter_mut().for_each(|feature| *feature = normal.next() as f32);
                let mut scores = teacher.scores(&self.teacher_parameters, features);
                scores.iter_mut().for_each(|score| *score += (noise * normal.next()) as f32);
                largest(&scores)
            }
        };
        if drawn_at_random { random_label } else { label }
    }
}

/// Index of the largest number; the first among equals.
pub(crate) fn largest(values: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = index;
        }
    }
    best
}

/// Normal deviates by Box and Muller, computed with `libm` so that they are the same on all machines.
pub(crate) struct Normal {
    rng: ChaCha8Rng,
    spare: Option<f64>,
}

impl Normal {
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self { rng, spare: None }
    }

    pub(crate) fn uniform(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.rng.next_u64()) * limit as u128) >> 64) as usize
    }

    pub(crate) fn next(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.uniform()));
        let (sine, cosine) = libm::sincos(std::f64::consts::TAU * self.uniform());
        self.spare = Some(radius * sine);
        radius * cosine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(kind: DataKind) -> DataSettings {
        DataSettings { kind, classes: 4, features: 6, noise: 0.5, label_noise: 0.1, seed: 9 }
    }

    #[test]
    fn the_same_number_is_the_same_example() {
        for kind in [DataKind::Blobs, DataKind::Teacher] {
            let (one, two) = (Data::new(&settings(kind)), Data::new(&settings(kind)));
            let (mut a, mut b) = ([0.0; 6], [0.0; 6]);
            for number in 0..50 {
                assert_eq!(one.example(number, &mut a), two.example(number, &mut b));
                assert_eq!(a, b);
            }
            one.example(50, &mut a);
            assert_ne!(a, b);
        }
    }

    #[test]
    fn held_out_examples_are_others() {
        for kind in [DataKind::Blobs, DataKind::Teacher] {
            let data = Data::new(&settings(kind));
            let (mut trained, mut held) = ([0.0; 6], [0.0; 6]);
            data.example(data.held_out().start, &mut held);
            assert!((0..500).all(|number| {
                data.example(number, &mut trained);
                trained != held
            }));
        }
    }

    #[test]
    fn every_class_occurs() {
        for kind in [DataKind::Blobs, DataKind::Teacher] {
            let data = Data::new(&settings(kind));
            let mut counts = [0; 4];
            for number in 0..2000 {
                counts[data.example(number, &mut [0.0; 6])] += 1;
            }
            assert!(counts.iter().all(|&count| count > 50), "{kind:?}: {counts:?}");
        }
    }

    #[test]
    fn deviates_are_standard_normal() {
        let mut normal = Normal::new(1, 2);
        let draws: Vec<f64> = (0..20_000).map(|_| normal.next()).collect();
        let mean = draws.iter().sum::<f64>() / 20_000.0;
        let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.04, "{mean} {variance}");
    }
}
