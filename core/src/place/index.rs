//! An index of servers by free room, updated with each change.

use std::{cmp::Reverse, iter, mem};

use smallvec::SmallVec;

use crate::{
    ids::{ResourceId, ServerId},
    place::room::Room,
    resources::Amounts,
    state::State,
    topology::Domain,
};

/// The order of free room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortBy {
    /// Σ over resource types of free / the cluster's total.
    Share,
    /// One type's amount, as the Optimus paper sorts by CPU.
    Amount(ResourceId),
}

/// Maximum number of entries in a block. Entries of a block are scanned and moved within a few cache lines.
const BLOCK: usize = 128;

/// Number of blocks in a group. A group without enough room is skipped at once.
const GROUP: usize = 32;

/// Maximum number of servers of a domain that are sorted for each search. Larger domains are filtered from all servers.
const SMALL: usize = 256;

/// Key of an absent server.
const GONE: u64 = u64::MAX;

/// (key, server). In ascending order, the server with the most free room is first.
type Entry = (u64, u32);

#[derive(Clone, Debug, Default)]
struct Block {
    entries: Vec<Entry>,
    /// An upper bound of the free room of all entries, per resource. A need above it fits on none of them.
    most: Amounts,
}

/// The edge's or the cloud's servers with free room of the same resource types, in blocks.
#[derive(Clone, Debug, Default)]
struct Shelf {
    types: u64,
    blocks: Vec<Block>,
    /// An upper bound of each block: at least its last entry, and less than the next block's first.
    bounds: Vec<Entry>,
    /// An upper bound of the `most` of the blocks in each group, per resource.
    groups: Vec<Amounts>,
}

/// Servers ordered by free room, freest first, ties by id.
///
/// The order is divided into shelves. Servers with free room of the same resource types are on one shelf, so that a
/// search for a GPU skips servers without one. Cloud servers have shelves of their own. Blocks and groups of blocks
/// store their largest room per resource, so that searches skip those that can't hold a need. Building is O(S log S). A
/// change is O(log S) plus a move within a block. A walk is O(groups + visited blocks and servers).
///
/// The worst case is O(S): every group has servers with enough of each single resource, but no server has enough of
/// all. The caller checks what the order doesn't contain (labels, draining, fragments of devices), at O(1) for each
/// server of the walk.
#[derive(Clone, Debug, Default)]
pub struct FreeIndex {
    shelves: Vec<Shelf>,
    /// Key and resource types of each server, by id.
    places: Vec<(u64, u64)>,
    weights: Vec<f64>,
    /// The totals from which the weights are computed. A change of them rebuilds the index.
    total: Amounts,
    sort_by: Option<SortBy>,
}

impl FreeIndex {
    /// Whether the order is valid for this state.
    pub fn is_current(&self, state: &State, sort_by: SortBy) -> bool {
        self.sort_by == Some(sort_by) && self.total == state.capacity
    }

    /// Builds the index of all present servers.
    pub fn build(state: &State, room: &Room, sort_by: SortBy) -> Self {
        let weight = |total: i64| if total > 0 { 1.0 / total as f64 } else { 0.0 };
        let weights = match sort_by {
            SortBy::Share => state.capacity.iter().map(|(_, total)| weight(total)).collect(),
            SortBy::Amount(only) => {
                state.capacity.iter().map(|(id, total)| if id == only { weight(total) } else { 0.0 }).collect()
            }
        };
        let mut index = Self {
            shelves: Vec::new(),
            places: vec![(GONE, 0); room.len()],
            weights,
            total: state.capacity.clone(),
            sort_by: Some(sort_by),
        };
        let mut sorted: Vec<(u64, Vec<Entry>)> = Vec::new();
        for server in state.servers.iter().filter(|server| server.present) {
            let free = room.free(server.id);
            let (key, types) = (index.key(free), types_of(room, server.id));
            index.places[server.id.index()] = (key, types);
            let at = sorted.iter().position(|(of, _)| *of == types).unwrap_or_else(|| {
                sorted.push((types, Vec::new()));
                sorted.len() - 1
            });
            sorted[at].1.push((key, server.id.0));
        }
        index.shelves = sorted
            .into_iter()
            .map(|(types, mut entries)| {
                entries.sort_unstable();
                Shelf::of(types, &entries, room)
            })
            .collect();
        index
    }

    /// The key is small for much room, so that ascending order has the freest server first.
    fn key(&self, free: &Amounts) -> u64 {
        let score: f64 = free
            .iter()
            .zip(&self.weights)
            .map(|((_, free), weight)| if free > 0 { free as f64 * weight } else { 0.0 })
            // Not `sum`, because the sum of nothing is −0.
            .fold(0.0, |sum, share| sum + share);
        // The bits of non-negative floats have the order of the floats. `GONE` is above the key of a full server.
        GONE - 1 - score.to_bits()
    }

    /// Moves a server to the position of its room in `room`. An absent server is removed.
    pub fn update(&mut self, room: &Room, id: ServerId, present: bool) {
        if self.places.len() <= id.index() {
            self.places.resize(id.index() + 1, (GONE, 0));
        }
        let free = room.free(id);
        let old = self.places[id.index()];
        let new = if present { (self.key(free), types_of(room, id)) } else { (GONE, 0) };
        if old == new {
            if present {
                // The score is the same, but the mix can differ, and the maxima must still cover it.
                self.shelf(new.1).cover((new.0, id.0), free);
            }
            return;
        }
        self.places[id.index()] = new;
        if old.0 != GONE {
            self.shelf(old.1).remove((old.0, id.0), room);
        }
        if new.0 != GONE {
            self.shelf(new.1).insert((new.0, id.0), room);
        }
    }

    fn shelf(&mut self, types: u64) -> &mut Shelf {
        let at = self.shelves.iter().position(|shelf| shelf.types == types).unwrap_or_else(|| {
            self.shelves.push(Shelf { types, ..Shelf::default() });
            self.shelves.len() - 1
        });
        &mut self.shelves[at]
    }

    /// Servers of a domain, or of all, whose free room covers `need`, freest first, within the room's
    /// [limit](Room::limit). The caller checks draining and labels. With a small domain O(its servers · their log).
    pub fn freest<'a>(
        &'a self,
        room: &'a Room,
        within: Option<&'a Domain>,
        need: &'a Amounts,
    ) -> impl Iterator<Item = ServerId> + 'a {
        let mut near = self.near(room, within, need);
        near.sort_unstable();
        let all = walked(within).map(|is_near| self.freest_in(room, need, room.limited()).filter(is_near));
        near.into_iter().map(|(_, server)| ServerId(server)).chain(all.into_iter().flatten())
    }

    /// The same for cloud servers (`true`), other servers (`false`), or all servers (`None`), regardless of the room's
    /// limit.
    pub fn freest_in<'a>(
        &'a self,
        room: &'a Room,
        need: &'a Amounts,
        cloud: Option<bool>,
    ) -> impl Iterator<Item = ServerId> + 'a {
        merged(self.having(need, cloud).map(|shelf| shelf.walk(need).copied()))
            .map(|(_, server)| ServerId(server))
            .filter(|server| need.fits(room.free(*server)))
    }

    /// The same, fullest first.
    pub fn fullest<'a>(
        &'a self,
        room: &'a Room,
        within: Option<&'a Domain>,
        need: &'a Amounts,
    ) -> impl Iterator<Item = ServerId> + 'a {
        let mut near = self.near(room, within, need);
        near.sort_unstable_by_key(|entry| Reverse(*entry));
        let all = walked(within).map(|is_near| {
            merged(self.having(need, room.limited()).map(|shelf| shelf.walk(need).rev().copied().map(Reverse)))
                .map(|Reverse((_, server))| ServerId(server))
                .filter(|server| need.fits(room.free(*server)))
                .filter(is_near)
        });
        near.into_iter().map(|(_, server)| ServerId(server)).chain(all.into_iter().flatten())
    }

    /// The present servers of a small domain whose free room covers `need`.
    fn near(&self, room: &Room, within: Option<&Domain>, need: &Amounts) -> Vec<Entry> {
        let small = within.filter(|domain| domain.servers.len() <= SMALL);
        let servers = small.into_iter().flat_map(|domain| &domain.servers);
        let entry = |id: &ServerId| Some((self.places.get(id.index())?.0, id.0));
        let is_there = |(key, id): &Entry| {
            let id = ServerId(*id);
            *key != GONE && need.fits(room.free(id)) && room.limited().is_none_or(|cloud| cloud == room.is_cloud(id))
        };
        servers.filter_map(entry).filter(is_there).collect()
    }

    /// The shelves whose servers have free room of every needed type.
    fn having(&self, need: &Amounts, cloud: Option<bool>) -> impl Iterator<Item = &Shelf> {
        let needed = types_in(need);
        let zone = cloud.map(|cloud| if cloud { CLOUD } else { 0 });
        let shelves = self.shelves.iter().filter(move |shelf| needed & !shelf.types == 0);
        shelves.filter(move |shelf| zone.is_none_or(|zone| shelf.types & CLOUD == zone))
    }
}

/// Which servers are in a domain, if a walk of all has to tell: there is none, or it is large.
fn walked(within: Option<&Domain>) -> Option<impl Fn(&ServerId) -> bool + '_> {
    let is_small = within.is_some_and(|domain| domain.servers.len() <= SMALL);
    (!is_small).then_some(move |id: &ServerId| within.is_none_or(|domain| domain.has(*id)))
}

/// The bit of cloud servers.
const CLOUD: u64 = 1 << 63;

/// The resource types of which a server has free room, and the bit of cloud servers.
fn types_of(room: &Room, id: ServerId) -> u64 {
    types_in(room.free(id)) | if room.is_cloud(id) { CLOUD } else { 0 }
}

/// A bit for each type with a positive amount. Types from the 63rd on share a bit.
fn types_in(amounts: &Amounts) -> u64 {
    amounts.iter().take(63).fold(0, |types, (id, amount)| types | u64::from(amount > 0) << id.index())
}

/// Merges ascending walks.
fn merged<T: Ord, I: Iterator<Item = T>>(walks: impl Iterator<Item = I>) -> impl Iterator<Item = T> {
    let mut heads: SmallVec<[(T, I); 4]> = walks.filter_map(|mut walk| Some((walk.next()?, walk))).collect();
    iter::from_fn(move || {
        let at = (0..heads.len()).min_by(|a, b| heads[*a].0.cmp(&heads[*b].0))?;
        let (head, walk) = &mut heads[at];
        match walk.next() {
            Some(next) => Some(mem::replace(head, next)),
            None => Some(heads.swap_remove(at).0),
        }
    })
}

impl Shelf {
    fn of(types: u64, entries: &[Entry], room: &Room) -> Self {
        let mut shelf = Self { types, ..Self::default() };
        for chunk in entries.chunks(BLOCK) {
            let mut block = Block { entries: chunk.to_vec(), most: Amounts::default() };
            block.remember_most(room);
            shelf.bounds.extend(chunk.last());
            shelf.blocks.push(block);
        }
        shelf.regroup();
        shelf
    }

    /// Entries of the blocks that can contain a server with room for `need`.
    fn walk<'a>(&'a self, need: &'a Amounts) -> impl DoubleEndedIterator<Item = &'a Entry> {
        self.blocks
            .chunks(GROUP)
            .zip(&self.groups)
            .filter(|(_, most)| need.fits(most))
            .flat_map(|(blocks, _)| blocks)
            .filter(|block| need.fits(&block.most))
            .flat_map(|block| &block.entries)
    }

    fn block_of(&self, entry: Entry) -> usize {
        self.bounds.partition_point(|bound| *bound < entry).min(self.blocks.len().saturating_sub(1))
    }

    /// Raises the maxima of an entry's block to this room.
    fn cover(&mut self, entry: Entry, free: &Amounts) {
        let at = self.block_of(entry);
        self.blocks[at].most.max_with(free);
        self.groups[at / GROUP].max_with(free);
    }

    fn remove(&mut self, entry: Entry, room: &Room) {
        let at = self.block_of(entry);
        let entries = &mut self.blocks[at].entries;
        if let Ok(position) = entries.binary_search(&entry) {
            entries.remove(position);
        }
        // The maxima can only become too large, so they are recomputed from time to time.
        if entries.len().is_multiple_of(16) {
            self.blocks[at].remember_most(room);
            let group = at / GROUP;
            let blocks = &self.blocks[group * GROUP..];
            self.groups[group] = most_of(&blocks[..blocks.len().min(GROUP)]);
        }
    }

    fn insert(&mut self, entry: Entry, room: &Room) {
        if self.blocks.is_empty() {
            self.blocks.push(Block::default());
            self.bounds.push(entry);
            self.groups.push(Amounts::default());
        }
        let at = self.block_of(entry);
        let entries = &mut self.blocks[at].entries;
        let position = entries.partition_point(|other| *other < entry);
        entries.insert(position, entry);
        let full = entries.len() > 2 * BLOCK;
        self.bounds[at] = self.bounds[at].max(entry);
        self.cover(entry, room.free(ServerId(entry.1)));
        if full {
            self.split(at, room);
        }
    }

    /// O(blocks), because the groups change. Splits are rare among changes of entries.
    fn split(&mut self, at: usize, room: &Room) {
        let lower = &mut self.blocks[at];
        let mut upper = Block { entries: lower.entries.split_off(BLOCK), most: Amounts::default() };
        lower.remember_most(room);
        upper.remember_most(room);
        self.bounds.insert(at, lower.entries[BLOCK - 1]);
        self.blocks.insert(at + 1, upper);
        let mut bounds = mem::take(&mut self.bounds).into_iter();
        for block in &self.blocks {
            self.bounds.extend(bounds.next().filter(|_| !block.entries.is_empty()));
        }
        self.blocks.retain(|block| !block.entries.is_empty());
        self.regroup();
    }

    fn regroup(&mut self) {
        self.groups = self.blocks.chunks(GROUP).map(most_of).collect();
    }
}

fn most_of(blocks: &[Block]) -> Amounts {
    let mut most = Amounts::default();
    blocks.iter().for_each(|block| most.max_with(&block.most));
    most
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
