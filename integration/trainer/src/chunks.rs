//! A dataset in chunks: its division, and the chunks of a revision.
//!
//! If the scheduler assigns chunks to workers, a step trains one mini-batch of each running chunk, and their mean is
//! one update. Mini-batches belong to a chunk, so each pass over it trains each of its examples once, whatever other
//! chunks run.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use serde::{Deserialize, Serialize};
use trainmaster_proto::v1::{Work, WorkState};

use crate::batch::{Batches, mix, permuted};

/// Division of a dataset into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunks {
    /// Number of chunks.
    pub(crate) count: u32,
    /// Passes over each chunk.
    pub(crate) epochs: u32,
    /// Mini-batches per chunk.
    pub(crate) batches: u32,
}

/// A mini-batch of a chunk, counted over all passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Portion {
    pub(crate) chunk: u32,
    pub(crate) batch: u64,
}

impl Chunks {
    /// Number of mini-batches until a chunk is trained completely.
    pub(crate) fn length(&self) -> u64 {
        u64::from(self.epochs) * u64::from(self.batches)
    }

    /// Number of mini-batches in a pass over the whole dataset.
    pub(crate) fn pass(&self) -> u64 {
        u64::from(self.count) * u64::from(self.batches)
    }

    /// Numbers of the examples in a chunk. At least one, even if there are more chunks than examples.
    pub(crate) fn examples(&self, batches: &Batches, chunk: u32) -> Range<u64> {
        part(batches.examples, chunk.into(), self.count.into())
    }

    /// Positions of a mini-batch's examples in their chunk. Each pass has its own order.
    pub(crate) fn places(&self, batches: &Batches, portion: Portion) -> impl Iterator<Item = usize> + use<> {
        let Range { start, end } = self.examples(batches, portion.chunk);
        let (pass, batch) = (portion.batch / u64::from(self.batches), portion.batch % u64::from(self.batches));
        let range = part(end - start, batch, self.batches.into());
        permuted(end - start, mix(batches.seed ^ mix(portion.chunk.into())), pass, range).map(|place| place as usize)
    }
}

/// One of `parts` nearly equal parts of `0..length`.
fn part(length: u64, number: u64, parts: u64) -> Range<u64> {
    let at = |number: u64| (u128::from(length) * u128::from(number) / u128::from(parts)) as u64;
    at(number)..at(number + 1).max(at(number) + 1)
}

/// The chunks of a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    /// By worker: the chunk that it trains now.
    pub(crate) running: BTreeMap<u32, u32>,
    /// By worker: all chunks whose data it needs.
    pub(crate) sent: BTreeMap<u32, BTreeSet<u32>>,
    pub(crate) done: BTreeSet<u32>,
}

impl Orders {
    /// None if there are no chunks: all workers train all data.
    pub(crate) fn read(work: &[Work], chunks: Chunks) -> Option<Self> {
        if work.is_empty() {
            return None;
        }
        let mut orders = Self::default();
        for work in work.iter().filter(|work| work.chunk < chunks.count) {
            match (work.state(), work.worker) {
                (WorkState::Done, _) => {
                    orders.done.insert(work.chunk);
                }
                (state, Some(worker)) => {
                    orders.sent.entry(worker).or_default().insert(work.chunk);
                    if state == WorkState::Running {
                        orders.running.insert(worker, work.chunk);
                    }
                }
                (_, None) => {}
            }
        }
        Some(orders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pass_trains_every_example_of_a_chunk_once() {
        for (examples, count, batches) in [(100, 3, 5), (60, 4, 4), (7, 2, 3)] {
            let chunks = Chunks { count, epochs: 2, batches };
            let all = Batches { examples, batch: 10, seed: 3 };
            let mut seen = Vec::new();
            for chunk in 0..count {
                let range = chunks.examples(&all, chunk);
                let pass = |pass: u64| -> Vec<usize> {
                    let batches = u64::from(batches);
                    let portions = (pass * batches..(pass + 1) * batches).map(|batch| Portion { chunk, batch });
                    portions.flat_map(|portion| chunks.places(&all, portion)).collect()
                };
                let places: BTreeSet<usize> = pass(0).into_iter().collect();
                assert_eq!((pass(0).len(), places.len() as u64), (places.len(), range.end - range.start));
                assert!(range.end - range.start < 10 || pass(0) != pass(1), "passes have their own order");
                seen.extend(range);
            }
            assert_eq!(seen, (0..examples).collect::<Vec<_>>());
        }
    }

    #[test]
    fn chunks_and_batches_are_never_empty() {
        let (chunks, all) = (Chunks { count: 3, epochs: 2, batches: 5 }, Batches { examples: 100, batch: 1, seed: 0 });
        assert_eq!((chunks.examples(&all, 1), chunks.length()), (33..66, 10));
        let (chunks, all) = (Chunks { count: 9, epochs: 1, batches: 4 }, Batches { examples: 3, batch: 1, seed: 0 });
        for chunk in 0..9 {
            assert!(chunks.examples(&all, chunk).end <= 3);
            assert!((0..4).all(|batch| chunks.places(&all, Portion { chunk, batch }).eq([0])));
        }
    }

    #[test]
    fn orders_name_workers_that_train_and_that_need_data() {
        let chunks = Chunks { count: 5, epochs: 1, batches: 1 };
        assert_eq!(Orders::read(&[], chunks), None);
        let work = |chunk, worker, state: WorkState| Work { chunk, worker, state: state.into(), rank: 0 };
        let orders = Orders::read(
            &[
                work(0, Some(0), WorkState::Done),
                work(1, Some(0), WorkState::Running),
                work(2, Some(1), WorkState::Preempted),
                work(3, Some(1), WorkState::Queued),
                work(4, None, WorkState::Queued),
                work(99, Some(0), WorkState::Running),
            ],
            chunks,
        );
        let orders = orders.unwrap();
        assert_eq!(orders.running, [(0, 1)].into());
        assert_eq!(orders.sent, [(0, [1].into()), (1, [2, 3].into())].into());
        assert_eq!(orders.done, [0].into());
    }
}
