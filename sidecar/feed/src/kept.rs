//! Bounded storage for many owners, in which one owner's entries don't displace those of others.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Keys of stored entries, by group and owner. Smaller keys are older. If there are too many, the group with the most
/// entries loses one, and within it the oldest entry of the owner with the most. Among several such owners, the oldest
/// entry goes.
///
/// A group that never exceeds an equal share loses nothing, and neither does an owner in its group. A change takes
/// O(log n).
///
/// ```
/// let mut kept = trainmaster_feed::Kept::new(3);
/// assert!(kept.insert("", "modest", 1).is_empty());
/// assert_eq!([2, 3, 4].map(|key| kept.insert("", "greedy", key)), [vec![], vec![], vec![2]]);
/// // Many owners in one group share the group's part.
/// assert_eq!([5, 6, 7].map(|key| kept.insert("other", &format!("name{key}"), key)), [vec![3], vec![1], vec![5]]);
/// ```
#[derive(Clone, Debug)]
pub struct Kept<K> {
    most: usize,
    all: BTreeMap<K, (Arc<str>, Arc<str>)>,
    groups: Ranked<K>,
    owners: BTreeMap<Arc<str>, Ranked<K>>,
}

/// Sets of keys by name. The largest set with the oldest key is last.
#[derive(Clone, Debug)]
struct Ranked<K> {
    of: BTreeMap<Arc<str>, BTreeSet<K>>,
    ranks: BTreeSet<(usize, Reverse<K>)>,
}

impl<K: Copy + Ord> Kept<K> {
    /// An empty storage for at most `most` keys.
    pub fn new(most: usize) -> Self {
        Self { most, all: BTreeMap::new(), groups: Ranked::default(), owners: BTreeMap::new() }
    }

    /// Adds a key. A known key stays with its owner. Returns the displaced keys, which may include the new one.
    pub fn insert(&mut self, group: &str, owner: &str, key: K) -> Vec<K> {
        if self.all.contains_key(&key) {
            return Vec::new();
        }
        let (group, owner): (Arc<str>, Arc<str>) = (group.into(), owner.into());
        self.groups.change(&group, |keys| keys.insert(key));
        self.owners.entry(group.clone()).or_default().change(&owner, |keys| keys.insert(key));
        self.all.insert(key, (group, owner));
        let mut gone = Vec::new();
        while self.all.len() > self.most
            && let Some(oldest) = self.next_to_go()
        {
            self.remove(oldest);
            gone.push(oldest);
        }
        gone
    }

    /// All keys, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = K> {
        self.all.keys().copied()
    }

    fn next_to_go(&self) -> Option<K> {
        let (group, _) = self.all.get(&self.groups.oldest_of_largest()?)?;
        self.owners.get(group)?.oldest_of_largest()
    }

    fn remove(&mut self, key: K) {
        let Some((group, owner)) = self.all.remove(&key) else { return };
        self.groups.change(&group, |keys| keys.remove(&key));
        if let Some(owners) = self.owners.get_mut(&group) {
            owners.change(&owner, |keys| keys.remove(&key));
            if owners.of.is_empty() {
                self.owners.remove(&group);
            }
        }
    }
}

impl<K> Default for Ranked<K> {
    fn default() -> Self {
        Self { of: BTreeMap::new(), ranks: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> Ranked<K> {
    fn oldest_of_largest(&self) -> Option<K> {
        self.ranks.last().map(|(_, Reverse(oldest))| *oldest)
    }

    fn change(&mut self, name: &Arc<str>, change: impl FnOnce(&mut BTreeSet<K>) -> bool) {
        let rank = |keys: &BTreeSet<K>| keys.first().map(|oldest| (keys.len(), Reverse(*oldest)));
        let keys = self.of.entry(name.clone()).or_default();
        if let Some(rank) = rank(keys) {
            self.ranks.remove(&rank);
        }
        change(keys);
        match rank(keys) {
            Some(rank) => self.ranks.insert(rank),
            None => self.of.remove(name).is_some(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_takes_only_its_own() {
        let mut kept = Kept::new(100);
        let mut gone = Vec::new();
        for key in 0..10_000_u32 {
            // The flood has many names, but comes from one group.
            let (group, owner) = match key {
                0..25 => ("", "a".to_owned()),
                25..50 => ("", "b".to_owned()),
                _ => ("flood", format!("name{key}")),
            };
            gone.extend(kept.insert(group, &owner, key));
            assert!(kept.insert("another", "another", key).is_empty(), "a key is kept once");
            assert_eq!(kept.all.len(), (key as usize + 1).min(100));
            for ranked in kept.owners.values().chain([&kept.groups]) {
                assert_eq!(ranked.ranks.len(), ranked.of.len());
            }
            let count = |ranked: &Ranked<u32>| ranked.of.values().map(BTreeSet::len).sum::<usize>();
            assert_eq!(count(&kept.groups), kept.all.len());
            assert_eq!(kept.owners.values().map(count).sum::<usize>(), kept.all.len());
        }
        assert!(gone.iter().copied().eq(50..9950), "its own, the oldest first");
        assert!(kept.iter().eq((0..50).chain(9950..10_000)));
    }

    #[test]
    fn the_oldest_entry_of_one_owner_is_displaced() {
        let mut kept = Kept::new(2);
        assert_eq!([5, 9, 7, 3].map(|key| kept.insert("", "", key)), [vec![], vec![], vec![5], vec![3]]);
        // Each owner has one, so the oldest of all goes.
        assert_eq!(["a", "b"].map(|owner| kept.insert("", owner, 10 + u32::from(owner == "b"))), [vec![7], vec![9]]);
        assert_eq!(Kept::new(0).insert("", "a", 1), [1]);
    }
}
