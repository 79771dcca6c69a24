//! The computation of a worker: gradients over its share of a step, of the whole model or of one partition.

use std::ops::Range;

use crate::{
    batch::Batches,
    data::Data,
    fixed::{Diverged, accumulate, to_fixed},
    model::{Network, Scratch},
    settings::Settings,
    tally::Tally,
};

/// Computes gradients.
pub(crate) struct Trainer {
    /// Its partition of the model.
    network: Network,
    data: Data,
    batches: Batches,
    scratch: Scratch,
    gradient: Vec<f32>,
}

/// Targets of a partition's outputs.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    /// For the last partition: each example's label.
    Labels(&'a [usize]),
    /// For the others: the loss's derivative by each output, from the next partition.
    Deltas(&'a [f32]),
}

/// Gradient sums in fixed-point units, with their tally.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) values: Vec<i64>,
    pub(crate) tally: Tally,
}

impl Sums {
    /// Sums over no examples.
    pub(crate) fn zero(parameters: usize) -> Self {
        Self { values: vec![0; parameters], tally: Tally::default() }
    }
}

impl Trainer {
    /// `part`: index of its partition.
    pub(crate) fn new(settings: &Settings, part: usize) -> Self {
        let network = settings.network.part(part, settings.parts.count());
        Self {
            data: Data::new(&settings.data),
            batches: settings.batches,
            scratch: network.scratch(),
            gradient: vec![0.0; network.parameters()],
            network,
        }
    }

    /// Number of inputs and outputs of the partition per example.
    pub(crate) fn width(&self) -> (usize, usize) {
        let sizes = self.network.sizes();
        (sizes[0], sizes[sizes.len() - 1])
    }

    /// Features and labels of some micro-shards' examples.
    pub(crate) fn draw(&self, step: u64, shards: Range<u64>) -> (Vec<f32>, Vec<usize>) {
        let (mut all, mut labels, mut features) = (Vec::new(), Vec::new(), vec![0.0; self.data.features()]);
        for example in shards.flat_map(|shard| self.batches.micro_shard(step, shard)) {
            labels.push(self.data.example(example, &mut features));
            all.extend_from_slice(&features);
        }
        (all, labels)
    }

    /// Outputs of the partition for some examples.
    pub(crate) fn forward(&mut self, parameters: &[f32], inputs: &[f32]) -> Vec<f32> {
        let examples = inputs.chunks_exact(self.width().0);
        let mut outputs = Vec::with_capacity(examples.len() * self.width().1);
        for input in examples {
            outputs.extend_from_slice(self.network.forward(parameters, input, &mut self.scratch));
        }
        outputs
    }

    /// Adds the gradients of some micro-shards of a step. Returns the loss's derivative by each input, for the previous
    /// partition. It has no meaning for the first one.
    ///
    /// # Errors
    ///
    /// [`Diverged`] if a gradient or loss isn't finite.
    pub(crate) fn learn(
        &mut self,
        parameters: &[f32],
        (step, shards): (u64, Range<u64>),
        inputs: &[f32],
        target: Target<'_>,
        sums: &mut Sums,
    ) -> Result<Vec<f32>, Diverged> {
        let (width, outputs) = self.width();
        let mut below = Vec::with_capacity(inputs.len());
        let mut examples = inputs.chunks_exact(width).enumerate();
        for shard in shards {
            self.gradient.fill(0.0);
            let (mut loss, count) = (0.0, self.batches.examples_in(step, &(shard..shard + 1)));
            for (at, input) in examples.by_ref().take(count as usize) {
                let (gradient, scratch) = (&mut self.gradient, &mut self.scratch);
                match target {
                    Target::Labels(labels) => {
                        let outcome = self.network.learn(parameters, input, labels[at], gradient, scratch);
                        loss += outcome.loss;
                        sums.tally.correct += u64::from(outcome.correct);
                    }
                    Target::Deltas(deltas) => {
                        let delta = &deltas[at * outputs..][..outputs];
                        self.network.follow(parameters, input, delta, gradient, scratch);
                    }
                }
                below.extend_from_slice(self.scratch.below());
            }
            sums.tally.examples += count;
            accumulate(&mut sums.values, &self.gradient)?;
            sums.tally.loss += to_fixed(loss)?;
        }
        Ok(below)
    }

    /// Gradient sums of the whole model over some examples of a data chunk with their labels.
    ///
    /// # Errors
    ///
    /// [`Diverged`] if a gradient or loss isn't finite.
    pub(crate) fn chunk_sums<'a>(
        &mut self,
        parameters: &[f32],
        examples: impl Iterator<Item = (usize, &'a [f32])>,
    ) -> Result<Sums, Diverged> {
        let (mut sums, mut loss) = (Sums::zero(parameters.len()), 0.0);
        self.gradient.fill(0.0);
        for (label, features) in examples {
            let outcome = self.network.learn(parameters, features, label, &mut self.gradient, &mut self.scratch);
            loss += outcome.loss;
            sums.tally.correct += u64::from(outcome.correct);
            sums.tally.examples += 1;
        }
        accumulate(&mut sums.values, &self.gradient)?;
        sums.tally.loss = to_fixed(loss)?;
        Ok(sums)
    }
}
