//! The models: a fully connected network with ReLU between its layers and a softmax at its end. Without hidden layers
//! it is softmax regression.
//!
//! Plain loops in a fixed order, with `libm` for the exponential and the logarithm, give the same numbers on every
//! machine.

use std::ops::Range;

use crate::data::{Normal, largest};

/// The shape of a network, or of some of its layers. Its parameters are one flat vector, layer by layer: weights
/// (outputs × inputs), then biases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    sizes: Vec<usize>,
    /// Its inputs are an example's features, not another partition's outputs.
    opens: bool,
    /// Its outputs are the classes' scores, not another partition's inputs.
    closes: bool,
}

/// Result for one example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// Cross-entropy, in nats.
    pub(crate) loss: f64,
    /// Whether the largest score is the label's.
    pub(crate) correct: bool,
}

/// Buffers that are reused for all examples.
pub(crate) struct Scratch {
    activations: Vec<Vec<f32>>,
    deltas: Vec<Vec<f32>>,
}

impl Network {
    /// A network from `features` inputs over the hidden layers to one score per class.
    pub(crate) fn new(features: usize, hidden: &[usize], classes: usize) -> Self {
        let mut sizes = vec![features];
        sizes.extend_from_slice(hidden);
        sizes.push(classes);
        Self { sizes, opens: true, closes: true }
    }

    /// One of `parts` contiguous partitions, cut so that the largest one has as few parameters as possible.
    pub(crate) fn part(&self, part: usize, parts: usize) -> Self {
        assert!(part < parts);
        let cuts = self.cuts(parts);
        let (first, end) = (cuts[part], cuts[part + 1]);
        Self {
            sizes: self.sizes[first..=end].to_vec(),
            opens: self.opens && part == 0,
            closes: self.closes && part + 1 == parts,
        }
    }

    /// Range of a partition's parameters in the whole model.
    pub(crate) fn range(&self, part: usize, parts: usize) -> Range<usize> {
        let cuts = self.cuts(parts);
        let before = |part: usize| self.layers().take(cuts[part]).map(parameters).sum();
        before(part)..before(part + 1)
    }

    /// The first layer of each partition, and the end of the last. The same in every process: the earliest among
    /// equally good cuts.
    fn cuts(&self, parts: usize) -> Vec<usize> {
        let sizes: Vec<usize> = self.layers().map(parameters).collect();
        // For each number of layers from the first on: the largest partition and the cuts, with as many partitions as
        // rounds so far.
        let mut best: Vec<Option<(usize, Vec<usize>)>> = vec![None; sizes.len() + 1];
        best[0] = Some((0, vec![0]));
        for _ in 0..parts {
            let cut = |end: usize| {
                let last = |start: usize| {
                    let (largest, cuts) = best[start].as_ref()?;
                    Some((sizes[start..end].iter().sum::<usize>().max(*largest), [&cuts[..], &[end]].concat()))
                };
                (0..end).filter_map(last).min()
            };
            best = (0..=sizes.len()).map(cut).collect();
        }
        best.pop().flatten().expect("no more parts than layers").1
    }

    /// Number of layers with parameters.
    pub(crate) fn depth(&self) -> usize {
        self.sizes.len() - 1
    }

    /// Inputs, hidden layers, outputs.
    pub(crate) fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Sizes of the parameter blocks, in parameters: weights and biases of each layer.
    pub(crate) fn blocks(&self) -> Vec<u64> {
        self.layers().flat_map(|(inputs, outputs)| [(inputs * outputs) as u64, outputs as u64]).collect()
    }

    pub(crate) fn parameters(&self) -> usize {
        self.layers().map(parameters).sum()
    }

    /// Initial parameters: weights with standard deviation √(2 / inputs), biases 0.
    pub(crate) fn initial(&self, seed: u64) -> Vec<f32> {
        let mut normal = Normal::new(seed, u64::MAX - 2);
        let mut parameters = Vec::with_capacity(self.parameters());
        for (inputs, outputs) in self.layers() {
            let deviation = libm::sqrt(2.0 / inputs as f64);
            parameters.extend((0..inputs * outputs).map(|_| (deviation * normal.next()) as f32));
            parameters.extend(std::iter::repeat_n(0.0, outputs));
        }
        parameters
    }

    /// Buffers for the other methods.
    pub(crate) fn scratch(&self) -> Scratch {
        let buffers = || self.sizes.iter().map(|&size| vec![0.0; size]).collect();
        Scratch { activations: buffers(), deltas: buffers() }
    }

    /// The scores of all classes for one example.
    pub(crate) fn scores(&self, parameters: &[f32], features: &[f32]) -> Vec<f32> {
        self.forward(parameters, features, &mut self.scratch()).to_vec()
    }

    /// The outputs for one example, or for the previous partition's outputs.
    pub(crate) fn forward<'a>(&self, parameters: &[f32], inputs: &[f32], scratch: &'a mut Scratch) -> &'a [f32] {
        scratch.activations[0].copy_from_slice(inputs);
        self.activate(parameters, scratch);
        &scratch.activations[self.depth()]
    }

    /// Adds the gradient of one example's loss to `gradient`, for the whole network or its last partition.
    pub(crate) fn learn(
        &self,
        parameters: &[f32],
        features: &[f32],
        label: usize,
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) -> Outcome {
        assert!(parameters.len() == self.parameters() && gradient.len() == self.parameters());
        self.forward(parameters, features, scratch);
        let last = self.depth();
        let correct = largest(&scratch.activations[last]) == label;
        let loss = softmax(&scratch.activations[last], label, &mut scratch.deltas[last]);
        self.backward(parameters, gradient, scratch);
        Outcome { loss, correct }
    }

    /// The same for a partition that isn't the last. `delta` is the loss's derivative by each of its outputs, from the
    /// next partition. The outputs are computed again, so that they need not be stored.
    pub(crate) fn follow(
        &self,
        parameters: &[f32],
        inputs: &[f32],
        delta: &[f32],
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) {
        self.forward(parameters, inputs, scratch);
        scratch.deltas[self.depth()].copy_from_slice(delta);
        self.backward(parameters, gradient, scratch);
    }

    fn layers(&self) -> impl Iterator<Item = (usize, usize)> {
        self.sizes.windows(2).map(|pair| (pair[0], pair[1]))
    }

    fn activate(&self, parameters: &[f32], scratch: &mut Scratch) {
        let (mut start, hidden) = (0, self.depth() - usize::from(self.closes));
        for (layer, (inputs, outputs)) in self.layers().enumerate() {
            let weights = &parameters[start..start + inputs * outputs];
            let biases = &parameters[start + inputs * outputs..][..outputs];
            let (before, after) = scratch.activations.split_at_mut(layer + 1);
            let input = &before[layer];
            for ((row, bias), output) in weights.chunks_exact(inputs).zip(biases).zip(after[0].iter_mut()) {
                let mut sum = *bias;
                for (weight, x) in row.iter().zip(input) {
                    sum += weight * x;
                }
                *output = if layer < hidden { sum.max(0.0) } else { sum };
            }
            start += inputs * outputs + outputs;
        }
    }

    fn backward(&self, parameters: &[f32], gradient: &mut [f32], scratch: &mut Scratch) {
        let mut end = self.parameters();
        for layer in (0..self.depth()).rev() {
            let (inputs, outputs) = (self.sizes[layer], self.sizes[layer + 1]);
            let start = end - inputs * outputs - outputs;
            let (before, after) = scratch.deltas.split_at_mut(layer + 1);
            let (input, delta, below) = (&scratch.activations[layer], &after[0], &mut before[layer]);
            let (weights, biases) = gradient[start..end].split_at_mut(inputs * outputs);
            for ((row, bias), d) in weights.chunks_exact_mut(inputs).zip(biases).zip(delta) {
                for (slot, x) in row.iter_mut().zip(input) {
                    *slot += d * x;
                }
                *bias += d;
            }
            if layer > 0 || !self.opens {
                below.fill(0.0);
                for (row, d) in parameters[start..].chunks_exact(inputs).zip(delta) {
                    for (slot, weight) in below.iter_mut().zip(row) {
                        *slot += d * weight;
                    }
                }
                // A unit that is cut off by ReLU passes no gradient.
                for (slot, x) in below.iter_mut().zip(input) {
                    if *x <= 0.0 {
                        *slot = 0.0;
                    }
                }
            }
            end = start;
        }
    }
}

impl Scratch {
    /// The loss's derivative by each input, after a partition that isn't the first has processed an example.
    pub(crate) fn below(&self) -> &[f32] {
        &self.deltas[0]
    }
}

fn parameters((inputs, outputs): (usize, usize)) -> usize {
    inputs * outputs + outputs
}

/// Cross-entropy of the scores' softmax, and its derivative by each score.
fn softmax(scores: &[f32], label: usize, delta: &mut [f32]) -> f64 {
    let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0_f32;
    for (d, score) in delta.iter_mut().zip(scores) {
        *d = libm::expf(score - top);
        sum += *d;
    }
    delta.iter_mut().for_each(|d| *d /= sum);
    delta[label] -= 1.0;
    libm::log(f64::from(sum)) - f64::from(scores[label] - top)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(network: &Network, parameters: &[f32], features: &[f32], label: usize) -> f64 {
        let mut gradient = vec![0.0; network.parameters()];
        network.learn(parameters, features, label, &mut gradient, &mut network.scratch()).loss
    }

    #[test]
    fn gradients_match_finite_differences() {
        for hidden in [&[][..], &[7], &[6, 5]] {
            let network = Network::new(4, hidden, 3);
            let mut parameters = network.initial(3);
            let features = [0.7, -1.2, 0.4, 1.9];
            let mut gradient = vec![0.0; network.parameters()];
            network.learn(&parameters, &features, 1, &mut gradient, &mut network.scratch());
            for index in 0..parameters.len() {
                let (kept, step) = (parameters[index], 1e-2);
                parameters[index] = kept + step;
                let above = loss(&network, &parameters, &features, 1);
                parameters[index] = kept - step;
                let below = loss(&network, &parameters, &features, 1);
                parameters[index] = kept;
                let numeric = (above - below) / (2.0 * f64::from(step));
                let difference = (numeric - f64::from(gradient[index])).abs();
                assert!(difference < 2e-3, "{hidden:?} parameter {index}: {numeric} against {}", gradient[index]);
            }
        }
    }

    #[test]
    fn parts_in_turn_are_the_whole_network() {
        let network = Network::new(5, &[7, 6], 4);
        let parameters = network.initial(2);
        let features = [0.7, -1.2, 0.4, 1.9, -0.3];
        let (mut gradient, mut scratch) = (vec![0.0; network.parameters()], network.scratch());
        let outcome = network.learn(&parameters, &features, 2, &mut gradient, &mut scratch);
        for parts in 1..=3 {
            let all: Vec<_> = (0..parts).map(|part| (network.part(part, parts), network.range(part, parts))).collect();
            assert!(all.iter().all(|(part, range)| part.parameters() == range.len()));
            let mut inputs = vec![features.to_vec()];
            for (part, range) in &all {
                let outputs =
                    part.forward(&parameters[range.clone()], inputs.last().unwrap(), &mut part.scratch()).to_vec();
                inputs.push(outputs);
            }
            assert_eq!(inputs[parts], network.scores(&parameters, &features));
            let (mut together, mut delta) = (vec![0.0; network.parameters()], Vec::new());
            for (number, (part, range)) in all.iter().enumerate().rev() {
                let (own, gradient) = (&parameters[range.clone()], &mut together[range.clone()]);
                let mut scratch = part.scratch();
                if number + 1 == parts {
                    assert_eq!(part.learn(own, &inputs[number], 2, gradient, &mut scratch), outcome);
                } else {
                    part.follow(own, &inputs[number], &delta, gradient, &mut scratch);
                }
                delta = scratch.below().to_vec();
            }
            assert_eq!(together, gradient, "{parts} parts");
        }
    }

    #[test]
    fn blocks_cover_the_parameters() {
        let network = Network::new(16, &[32, 8], 10);
        assert_eq!(network.blocks(), [512, 32, 256, 8, 80, 10]);
        // 544 parameters, then 264 and 90.
        assert_eq!((network.part(1, 3).sizes(), network.part(0, 2).sizes()), (&[32, 8][..], &[16, 32][..]));
        assert_eq!(network.blocks().iter().sum::<u64>(), network.parameters() as u64);
    }

    #[test]
    fn large_scores_stay_finite() {
        let mut delta = [0.0; 3];
        let loss = softmax(&[1e4, -1e4, 3.0], 1, &mut delta);
        assert!(loss.is_finite() && loss > 1e4);
        assert!(delta.iter().all(|d| d.is_finite()));
    }
}
