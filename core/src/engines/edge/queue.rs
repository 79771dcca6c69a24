//! The queue of chunks on one worker, and its projection to the arrival of another chunk.
//!
//! The queue is a search tree whose nodes store sums of their subtrees: remaining training time, and weights. It is a
//! treap, balanced by priorities that are hashed from the order of dispatch, so that the same chunks always make the
//! same tree. All sums are of integers, so a rebuilt tree equals one that was updated.

use std::collections::BTreeMap;

use super::memo::Item;
use crate::time::{Span, Time};

/// Fixed-point unit of 1/D_j.
pub(super) const ONE: u64 = 1 << 40;

/// Position of a chunk in a worker's queue: highest average processing rate γ_jd = n_j/(E_j·D_j·Mb_j) first, then the
/// earlier dispatch. The rate is stored as its inverse, a whole number of milliseconds: D_j times the time of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// 1/γ, D_j · E_j·Mb_j/n, in milliseconds.
    pub(super) inverse: u128,
    /// Number of the dispatch, over all chunks.
    pub(super) order: u64,
}

impl Key {
    /// The position after all chunks with at least this rate.
    fn after(inverse: u128) -> Self {
        Self { inverse, order: u64::MAX }
    }
}

/// A chunk in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) item: Item,
    /// p̂: remaining training time.
    pub(super) left: Span,
    /// 1/D_j, in parts of [`ONE`].
    pub(super) weight: u64,
}

/// Sums of remaining times and weights over several chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) left: u128,
    pub(super) weight: u128,
}

impl Sums {
    fn of(entry: &Entry) -> Self {
        Self { left: entry.left.0.max(0) as u128, weight: entry.weight.into() }
    }

    fn plus(self, other: Self) -> Self {
        Self { left: self.left + other.left, weight: self.weight + other.weight }
    }
}

type Link = Option<Box<Node>>;

#[derive(Clone, Debug)]
struct Node {
    key: Key,
    entry: Entry,
    priority: u64,
    /// Sums of the whole subtree.
    sums: Sums,
    before: Link,
    after: Link,
}

impl Node {
    fn summed(mut self: Box<Self>) -> Box<Self> {
        self.sums = sums(&self.before).plus(Sums::of(&self.entry)).plus(sums(&self.after));
        self
    }
}

fn sums(link: &Link) -> Sums {
    link.as_ref().map_or(Sums::default(), |node| node.sums)
}

/// Splits a tree into keys below `at`, and the others.
fn split(link: Link, at: Key) -> (Link, Link) {
    let Some(mut node) = link else { return (None, None) };
    if node.key < at {
        let (below, above) = split(node.after.take(), at);
        node.after = below;
        (Some(node.summed()), above)
    } else {
        let (below, above) = split(node.before.take(), at);
        node.before = above;
        (below, Some(node.summed()))
    }
}

/// Joins two trees. All keys of the first are below those of the second.
fn join(first: Link, second: Link) -> Link {
    match (first, second) {
        (Some(mut a), Some(mut b)) => Some(if a.priority >= b.priority {
            a.after = join(a.after.take(), Some(b));
            a.summed()
        } else {
            b.before = join(Some(a), b.before.take());
            b.summed()
        }),
        (a, b) => a.or(b),
    }
}

/// Hashes consecutive numbers (the finaliser of SplitMix64).
fn hashed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Uploaded chunks by key.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue(Link);

impl Queue {
    /// O(log n).
    pub(super) fn insert(&mut self, key: Key, entry: Entry) {
        let (below, above) = split(self.0.take(), key);
        let priority = hashed(key.order);
        let node = Box::new(Node { key, entry, priority, sums: Sums::of(&entry), before: None, after: None });
        self.0 = join(join(below, Some(node)), above);
    }

    /// O(log n).
    pub(super) fn remove(&mut self, key: Key) -> Option<Entry> {
        let (below, rest) = split(self.0.take(), key);
        let (this, above) = split(rest, Key { order: key.order + 1, ..key });
        self.0 = join(below, above);
        this.map(|node| node.entry)
    }

    /// Sums of all chunks. O(1).
    pub(super) fn sums(&self) -> Sums {
        sums(&self.0)
    }

    /// Sums of the chunks with a smaller key. O(log n).
    fn below(&self, at: Key) -> Sums {
        let (mut link, mut found) = (&self.0, Sums::default());
        while let Some(node) = link {
            if node.key < at {
                found = found.plus(sums(&node.before)).plus(Sums::of(&node.entry));
                link = &node.after;
            } else {
                link = &node.before;
            }
        }
        found
    }

    /// Sums of the first chunks that this amount of work completes. O(log n).
    fn trained_by(&self, work: u128) -> Sums {
        let (mut link, mut found) = (&self.0, Sums::default());
        while let Some(node) = link {
            let with = found.plus(sums(&node.before)).plus(Sums::of(&node.entry));
            if with.left <= work {
                found = with;
                link = &node.after;
            } else {
                link = &node.before;
            }
        }
        found
    }

    /// The first chunk after this key, or the first of all. O(log n).
    pub(super) fn next(&self, after: Option<Key>) -> Option<(Key, Item)> {
        let (mut link, mut found) = (&self.0, None);
        while let Some(node) = link {
            if after.is_none_or(|after| node.key > after) {
                found = Some((node.key, node.entry.item));
                link = &node.before;
            } else {
                link = &node.after;
            }
        }
        found
    }

    /// All chunks in order. The first takes O(log n), each next one amortised O(1).
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Entry)> {
        let mut path = Vec::new();
        let mut link = &self.0;
        std::iter::from_fn(move || {
            while let Some(node) = link {
                path.push(node);
                link = &node.before;
            }
            let node = path.pop()?;
            link = &node.after;
            Some((node.key, &node.entry))
        })
    }
}

/// The chunks of one worker: uploaded ones, and those on their way.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    pub(super) queue: Queue,
    /// Chunks on their way, by the end of their upload.
    pub(super) coming: BTreeMap<(Time, Key), Entry>,
    /// The chunk in training.
    pub(super) running: Option<Running>,
}

/// A chunk in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Running {
    pub(super) key: Key,
    pub(super) item: Item,
    /// Time since which its training isn't subtracted from its remaining time.
    pub(super) since: Time,
}

/// The queue that an arriving chunk of some rate meets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Σ p̂(t0) of chunks with at least its rate, which come before it.
    pub(super) ahead: u128,
    /// Σ 1/D of chunks with a lower rate, which it delays.
    pub(super) behind: u128,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.0.is_none() && self.coming.is_empty()
    }

    /// The queue at `t0`, worked off in order from now on, with the chunks whose upload ends by then. Completed work is
    /// always at the start of the queue, so one number describes its progress. With `coming`, chunks of a lower rate
    /// count as well if they arrive later, but before the end of the new chunk.
    ///
    /// O(log n) for n chunks in the queue, and the same for each chunk on its way.
    pub(super) fn at(&self, now: Time, t0: Time, inverse: u128, takes: Span, coming: bool) -> Found {
        let mut done = self.trained(now);
        let mut landed: Vec<(Key, Sums)> = Vec::new();
        let mut at = now;
        for ((ready, key), entry) in self.coming.range(..=(t0, Key::after(u128::MAX))) {
            self.work(&mut done, &mut landed, *ready - at);
            at = at.max(*ready);
            let place = landed.partition_point(|(other, _)| other < key);
            landed.insert(place, (*key, Sums::of(entry)));
        }
        self.work(&mut done, &mut landed, t0 - at);
        let (all, first, trained) =
            (self.queue.sums(), self.queue.below(Key::after(inverse)), self.queue.trained_by(done));
        let mut found =
            Found { ahead: first.left.saturating_sub(done), behind: all.weight - first.weight.max(trained.weight) };
        for (key, sums) in landed {
            if key.inverse <= inverse {
                found.ahead += sums.left;
            } else {
                found.behind += sums.weight;
            }
        }
        if coming {
            let end = Time(t0.0.saturating_add(takes.0).saturating_add(found.ahead.min(i64::MAX as u128 / 4) as i64));
            let later = self.coming.range((t0, Key::after(u128::MAX))..(end, Key { inverse: 0, order: 0 }));
            let lower = later.filter(|((_, key), _)| key.inverse > inverse);
            found.behind += lower.map(|(_, entry)| u128::from(entry.weight)).sum::<u128>();
        }
        found
    }

    /// Work on the first chunk of the queue that isn't booked yet.
    fn trained(&self, now: Time) -> u128 {
        let first = self.queue.iter().next();
        let runs = first.zip(self.running).filter(|((first, _), running)| *first == running.key);
        runs.map_or(0, |((_, entry), running)| (now - running.since).0.clamp(0, entry.left.0.max(0)) as u128)
    }

    /// Advances time: the first chunks of the queue and of the arrived ones are worked off.
    fn work(&self, done: &mut u128, landed: &mut Vec<(Key, Sums)>, span: Span) {
        let mut span = span.0.max(0) as u128;
        while span > 0 {
            let Some((key, first)) = landed.first_mut() else {
                *done = (*done + span).min(self.queue.sums().left);
                return;
            };
            let before = self.queue.below(*key).left.saturating_sub(*done).min(span);
            *done += before;
            span -= before;
            let own = first.left.min(span);
            first.left -= own;
            span -= own;
            if first.left == 0 {
                landed.remove(0);
            }
        }
    }

    /// Subtracts the running chunk's work until now from its remaining time, which is returned. O(log n).
    pub(super) fn book(&mut self, now: Time) -> Option<(Item, Span)> {
        let running = self.running.as_mut()?;
        let mut entry = self.queue.remove(running.key)?;
        entry.left = Span((entry.left.0 - (now - running.since).0.max(0)).max(0));
        self.queue.insert(running.key, entry);
        running.since = now;
        Some((entry.item, entry.left))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::JobId;

    fn entry(order: u64, left: i64, weight: u64) -> Entry {
        Entry { item: Item { job: JobId(order), chunk: 0 }, left: Span(left), weight }
    }

    /// The same, chunk by chunk.
    fn plainly(pending: &Pending, now: Time, t0: Time, inverse: u128) -> Found {
        let mut there: Vec<(Key, Sums)> = pending.queue.iter().map(|(key, entry)| (key, Sums::of(entry))).collect();
        let mut coming: Vec<_> = pending.coming.iter().collect();
        for at in now.0..=t0.0 {
            there.extend(
                coming.extract_if(.., |((ready, _), _)| ready.0 <= at).map(|((_, key), entry)| (*key, Sums::of(entry))),
            );
            there.retain(|(_, sums)| sums.left > 0);
            there.sort_by_key(|(key, _)| *key);
            if let Some((_, first)) = there.first_mut().filter(|_| at < t0.0) {
                first.left -= 1;
            }
        }
        let mut found = Found::default();
        for (key, sums) in there.iter().filter(|(_, sums)| sums.left > 0) {
            if key.inverse <= inverse { found.ahead += sums.left } else { found.behind += sums.weight }
        }
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_projected_queue_equals_a_simulation_by_chunk(
            there in proptest::collection::vec((1..9_u128, 1..20_i64, 1..5_u64), 0..12),
            coming in proptest::collection::vec((1..9_u128, 1..20_i64, 1..5_u64, 0..60_i64), 0..8),
            t0 in 0..80_i64,
            inverse in 0..10_u128,
        ) {
            let mut pending = Pending::default();
            for (order, (inverse, left, weight)) in there.iter().enumerate() {
                let key = Key { inverse: *inverse, order: order as u64 };
                pending.queue.insert(key, entry(order as u64, *left, *weight));
            }
            for (order, (inverse, left, weight, ready)) in coming.iter().enumerate() {
                let order = 100 + order as u64;
                pending.coming.insert((Time(*ready), Key { inverse: *inverse, order }), entry(order, *left, *weight));
            }
            let found = pending.at(Time(0), Time(t0), inverse, Span(1), false);
            prop_assert_eq!(found, plainly(&pending, Time(0), Time(t0), inverse));
        }

        #[test]
        fn a_queue_keeps_its_sums(
            steps in proptest::collection::vec((any::<bool>(), 0..6_u128, 0..30_u64, 0..9_i64), 1..60),
        ) {
            let (mut queue, mut plain) = (Queue::default(), BTreeMap::new());
            for (put, inverse, order, left) in steps {
                let key = Key { inverse, order };
                if put && !plain.contains_key(&key) {
                    queue.insert(key, entry(order, left, order));
                    plain.insert(key, entry(order, left, order));
                } else {
                    prop_assert_eq!(queue.remove(key), plain.remove(&key));
                }
                let all = queue.iter().map(|(key, entry)| (key, *entry));
                prop_assert!(all.eq(plain.iter().map(|(key, entry)| (*key, *entry))));
                let sum = |entries: &mut dyn Iterator<Item = &Entry>| {
                    entries.fold(Sums::default(), |sum, entry| sum.plus(Sums::of(entry)))
                };
                prop_assert_eq!(queue.sums(), sum(&mut plain.values()));
                prop_assert_eq!(queue.below(key), sum(&mut plain.range(..key).map(|(_, entry)| entry)));
            }
        }
    }
}
