//! The examples of a step, from the step's number and the seed alone.
//!
//! Each epoch visits each example once, in its own order. The order is a keyed permutation (a Feistel network, repeated
//! until the result is in the range). So it needs no memory, and every process can compute the batch of any step.

use std::ops::Range;

use crate::fixed::MAX_MICRO_SHARDS;

/// Division of epochs into steps, and of steps into micro-shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batches {
    /// Examples per epoch.
    pub(crate) examples: u64,
    /// Examples per step. The last step of an epoch trains the rest.
    pub(crate) batch: u64,
    /// Seed of the order of all epochs.
    pub(crate) seed: u64,
}

impl Batches {
    /// Steps per epoch: ⌈examples / batch⌉.
    pub(crate) fn steps_per_epoch(&self) -> u64 {
        self.examples.div_ceil(self.batch)
    }

    /// Number of examples in a step.
    pub(crate) fn length(&self, step: u64) -> u64 {
        let first = (step % self.steps_per_epoch()) * self.batch;
        self.batch.min(self.examples - first)
    }

    /// Examples per micro-shard, the same for every number of workers.
    pub(crate) fn micro(&self) -> u64 {
        self.batch.div_ceil(MAX_MICRO_SHARDS)
    }

    /// Number of micro-shards in a step.
    pub(crate) fn micro_shards(&self, step: u64) -> u64 {
        self.length(step).div_ceil(self.micro())
    }

    /// The micro-shards of the `position`-th of `workers` workers: contiguous, with sizes that differ by at most one.
    pub(crate) fn share(&self, step: u64, position: usize, workers: usize) -> Range<u64> {
        let (shards, position, workers) = (self.micro_shards(step), position as u64, workers as u64);
        shards * position / workers..shards * (position + 1) / workers
    }

    /// Numbers of the examples in one micro-shard of a step.
    pub(crate) fn micro_shard(&self, step: u64, shard: u64) -> impl Iterator<Item = u64> + use<> {
        let first = (step % self.steps_per_epoch()) * self.batch;
        let (start, end) = (shard * self.micro(), ((shard + 1) * self.micro()).min(self.length(step)));
        permuted(self.examples, self.seed, step / self.steps_per_epoch(), first + start..first + end)
    }

    /// Number of examples in a range of micro-shards.
    pub(crate) fn examples_in(&self, step: u64, shards: &Range<u64>) -> u64 {
        let length = self.length(step);
        (shards.end * self.micro()).min(length) - (shards.start * self.micro()).min(length)
    }
}

/// The examples at some positions of an epoch's order of `0..examples`.
pub(crate) fn permuted(examples: u64, seed: u64, epoch: u64, places: Range<u64>) -> impl Iterator<Item = u64> {
    let order = Permutation::new(examples, seed, epoch);
    places.map(move |place| order.at(place))
}

/// A permutation of 0..examples.
struct Permutation {
    examples: u64,
    half_bits: u32,
    keys: [u64; 4],
}

impl Permutation {
    fn new(examples: u64, seed: u64, epoch: u64) -> Self {
        let bits = 64 - examples.saturating_sub(1).leading_zeros();
        let base = mix(seed ^ mix(epoch));
        Self { examples, half_bits: bits.div_ceil(2).max(1), keys: [1, 2, 3, 4].map(|round| mix(base ^ round)) }
    }

    fn at(&self, position: u64) -> u64 {
        // The network permutes a range of at most four times the examples, so repetition finds one inside the range
        // quickly.
        let mut value = position;
        loop {
            value = self.permute(value);
            if value < self.examples {
                return value;
            }
        }
    }

    fn permute(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

/// The finaliser of `SplitMix64`: every input bit reaches every output bit.
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn epoch(batches: &Batches, epoch: u64) -> Vec<u64> {
        let steps = batches.steps_per_epoch();
        (epoch * steps..(epoch + 1) * steps)
            .flat_map(|step| {
                (0..batches.micro_shards(step))
                    .flat_map(move |shard| batches.micro_shard(step, shard))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn an_epoch_visits_every_example_once() {
        for (examples, batch) in [(1, 1), (7, 3), (1000, 64), (1025, 1024), (50, 600)] {
            let batches = Batches { examples, batch, seed: 5 };
            let seen = epoch(&batches, 2);
            assert_eq!(seen.len() as u64, examples);
            assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), (0..examples).collect());
        }
    }

    #[test]
    fn epochs_and_seeds_have_their_own_order() {
        let batches = Batches { examples: 500, batch: 50, seed: 1 };
        assert_ne!(epoch(&batches, 0), epoch(&batches, 1));
        assert_ne!(epoch(&batches, 0), epoch(&Batches { seed: 2, ..batches }, 0));
        assert_eq!(epoch(&batches, 3), epoch(&batches, 3));
    }

    #[test]
    fn shares_cover_the_step_for_any_number_of_workers() {
        let batches = Batches { examples: 1000, batch: 300, seed: 0 };
        assert_eq!((batches.steps_per_epoch(), batches.length(0), batches.length(3)), (4, 300, 100));
        assert_eq!(batches.share(0, 2, 3), 100..150);
        for step in 0..4 {
            for workers in 1..=20 {
                let shares: Vec<_> = (0..workers).map(|w| batches.share(step, w, workers)).collect();
                assert_eq!(shares[0].start, 0);
                assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert_eq!(shares[workers - 1].end, batches.micro_shards(step));
                assert_eq!(shares.iter().map(|s| batches.examples_in(step, s)).sum::<u64>(), batches.length(step));
            }
        }
        assert!(batches.micro_shards(0) <= MAX_MICRO_SHARDS);
    }
}
