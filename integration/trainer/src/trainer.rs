//! A worker's real work: gradients over its share of a step.

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
    network: Network,
    data: Data,
    batches: Batches,
    scratch: Scratch,
    features: Vec<f32>,
    gradient: Vec<f32>,
}

impl Trainer {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            network: settings.network.clone(),
            data: Data::new(&settings.data),
            batches: settings.batches,
            scratch: settings.network.scratch(),
            features: vec![0.0; settings.data.features],
            gradient: vec![0.0; settings.network.parameters()],
        }
    }

    /// Gradient sums of some micro-shards of a step, in fixed-point units.
    ///
    /// # Errors
    ///
    /// [`Diverged`] if a gradient or loss isn't finite.
    pub(crate) fn sums(
        &mut self,
        parameters: &[f32],
        step: u64,
        shards: Range<u64>,
    ) -> Result<(Vec<i64>, Tally), Diverged> {
        let mut sums = vec![0; parameters.len()];
        let mut tally = Tally::default();
        for shard in shards {
            self.gradient.fill(0.0);
            let mut loss = 0.0;
            for example in self.batches.micro_shard(step, shard) {
                let label = self.data.example(example, &mut self.features);
                let outcome =
                    self.network.learn(parameters, &self.features, label, &mut self.gradient, &mut self.scratch);
                loss += outcome.loss;
                tally.correct += u64::from(outcome.correct);
                tally.examples += 1;
            }
            accumulate(&mut sums, &self.gradient)?;
            tally.loss += to_fixed(loss)?;
        }
        Ok((sums, tally))
    }

    /// The same of some examples of a data chunk, with their labels.
    ///
    /// # Errors
    ///
    /// [`Diverged`] if a gradient or loss isn't finite.
    pub(crate) fn chunk_sums<'a>(
        &mut self,
        parameters: &[f32],
        examples: impl Iterator<Item = (usize, &'a [f32])>,
    ) -> Result<(Vec<i64>, Tally), Diverged> {
        let (mut sums, mut tally, mut loss) = (vec![0; parameters.len()], Tally::default(), 0.0);
        self.gradient.fill(0.0);
        for (label, features) in examples {
            let outcome = self.network.learn(parameters, features, label, &mut self.gradient, &mut self.scratch);
            loss += outcome.loss;
            tally.correct += u64::from(outcome.correct);
            tally.examples += 1;
        }
        accumulate(&mut sums, &self.gradient)?;
        tally.loss = to_fixed(loss)?;
        Ok((sums, tally))
    }
}
