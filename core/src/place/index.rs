//! Servers in the order of their free room, kept while that changes.

use crate::{
    ids::{ResourceId, ServerId},
    place::Room,
    resources::Amounts,
    state::State,
};

/// What "most free" means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortBy {
    /// Σ over resource types of free / the cluster's total.
    Share,
    /// One type's amount, as the Optimus paper sorts by CPU.
    Amount(ResourceId),
}

/// So many entries a block holds before it is split: a block's entries are scanned and moved in a few cache lines.
const BLOCK: usize = 128;

/// The key of a server that isn't there.
const GONE: u64 = u64::MAX;

#[derive(Clone, Debug, Default)]
struct Block {
    /// (key, server), ascending: the freest first.
    entries: Vec<(u64, u32)>,
    /// Component-wise at least the free room of every entry: what exceeds it fits none of them.
    most: Amounts,
}

/// Servers ordered by free room, freest first, ties by id; in blocks that know their component-wise largest room, so
/// that servers which can't hold something are skipped by the block.
///
/// Building is O(S log S), a change O(√S) with a tiny constant (a search over blocks and a move within one), a walk
/// O(blocks + servers looked at).
#[derive(Clone, Debug, Default)]
pub struct FreeIndex {
    blocks: Vec<Block>,
    keys: Vec<u64>,
    weights: Vec<f64>,
    /// The totals that the weights are made of: the index is built anew when they change.
    total: Amounts,
    sort_by: Option<SortBy>,
}

impl FreeIndex {
    /// Whether the order is still that of this state.
    pub fn is_current(&self, state: &State, sort_by: SortBy) -> bool {
        self.sort_by == Some(sort_by) && self.total == state.capacity
    }

    /// All present servers by their room.
    pub fn build(state: &State, room: &Room, sort_by: SortBy) -> Self {
        let weight = |total: i64| if total > 0 { 1.0 / total as f64 } else { 0.0 };
        let weights = match sort_by {
            SortBy::Share => state.capacity.iter().map(|(_, total)| weight(total)).collect(),
            SortBy::Amount(only) => {
                state.capacity.iter().map(|(id, total)| if id == only { weight(total) } else { 0.0 }).collect()
            }
        };
        let mut index = Self {
            blocks: Vec::new(),
            keys: vec![GONE; room.len()],
            weights,
            total: state.capacity.clone(),
            sort_by: Some(sort_by),
        };
        let mut entries: Vec<(u64, u32)> = state
            .servers
            .iter()
            .filter(|server| server.present)
            .map(|server| (index.key(room.free(server.id)), server.id.0))
            .collect();
        entries.sort_unstable();
        for &(key, server) in &entries {
            index.keys[server as usize] = key;
        }
        for chunk in entries.chunks(BLOCK) {
            let mut block = Block { entries: chunk.to_vec(), most: Amounts::default() };
            block.remember_most(room);
            index.blocks.push(block);
        }
        index
    }

    /// Small for much room, so that ascending order is the freest first.
    fn key(&self, free: &Amounts) -> u64 {
        let score: f64 = free
            .iter()
            .zip(&self.weights)
            .map(|((_, free), weight)| if free > 0 { free as f64 * weight } else { 0.0 })
            // Not `sum`: of nothing, that is −0.
            .fold(0.0, |sum, share| sum + share);
        // Bits of a non-negative float order as the float does; `GONE` is above even a full server's.
        GONE - 1 - score.to_bits()
    }

    /// Moves a server to where its room in `room` belongs; one that is gone is dropped.
    pub fn update(&mut self, room: &Room, id: ServerId, present: bool) {
        if self.keys.len() <= id.index() {
            self.keys.resize(id.index() + 1, GONE);
        }
        let old = self.keys[id.index()];
        let key = if present { self.key(room.free(id)) } else { GONE };
        if old == key {
            if present {
                // Same score, perhaps another mix: the block's maxima must still cover it.
                let at = self.block_of((key, id.0));
                self.blocks[at].most.max_with(room.free(id));
            }
            return;
        }
        self.keys[id.index()] = key;
        if old != GONE {
            self.remove((old, id.0), room);
        }
        if key != GONE {
            self.insert((key, id.0), room);
        }
    }

    fn block_of(&self, entry: (u64, u32)) -> usize {
        self.blocks
            .partition_point(|block| block.entries.last().is_some_and(|last| *last < entry))
            .min(self.blocks.len().saturating_sub(1))
    }

    fn remove(&mut self, entry: (u64, u32), room: &Room) {
        let at = self.block_of(entry);
        let block = &mut self.blocks[at];
        if let Ok(position) = block.entries.binary_search(&entry) {
            block.entries.remove(position);
        }
        if block.entries.is_empty() {
            self.blocks.remove(at);
        } else if block.entries.len().is_multiple_of(16) {
            // The maxima may only be too large; now and then they are taken anew.
            block.remember_most(room);
        }
    }

    fn insert(&mut self, entry: (u64, u32), room: &Room) {
        if self.blocks.is_empty() {
            self.blocks.push(Block::default());
        }
        let at = self.block_of(entry);
        let block = &mut self.blocks[at];
        let position = block.entries.partition_point(|other| *other < entry);
        block.entries.insert(position, entry);
        block.most.max_with(room.free(ServerId(entry.1)));
        if block.entries.len() > 2 * BLOCK {
            let mut upper = Block { entries: block.entries.split_off(BLOCK), most: Amounts::default() };
            block.remember_most(room);
            upper.remember_most(room);
            self.blocks.insert(at + 1, upper);
        }
    }

    /// Servers whose free room covers `need`, freest first. Draining and labels are the caller's to check.
    pub fn freest<'a>(&'a self, room: &'a Room, need: &'a Amounts) -> impl Iterator<Item = ServerId> + 'a {
        self.blocks
            .iter()
            .filter(|block| need.fits(&block.most))
            .flat_map(|block| block.entries.iter())
            .map(|(_, server)| ServerId(*server))
            .filter(|server| need.fits(room.free(*server)))
    }

    /// The same, fullest first.
    pub fn fullest<'a>(&'a self, room: &'a Room, need: &'a Amounts) -> impl Iterator<Item = ServerId> + 'a {
        self.blocks
            .iter()
            .rev()
            .filter(|block| need.fits(&block.most))
            .flat_map(|block| block.entries.iter().rev())
            .map(|(_, server)| ServerId(*server))
            .filter(|server| need.fits(room.free(*server)))
    }
}

impl Block {
    fn remember_most(&mut self, room: &Room) {
        let mut most = Amounts::default();
        for (_, server) in &self.entries {
            most.max_with(room.free(ServerId(*server)));
        }
        self.most = most;
    }
}
