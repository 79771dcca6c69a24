//! What others use of nodes, told apart from what our own jobs only just got or gave back.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// What is ours is told at another moment than what is used: what only seems to be others' is gone by then.
const SETTLE: Duration = Duration::from_secs(3);

/// What was seen to be used, and when.
type History = VecDeque<(Duration, BTreeMap<String, i64>)>;

/// What others use of each node, once it is sure.
#[derive(Debug)]
pub(crate) struct ForeignUse<N> {
    seen: BTreeMap<N, History>,
}

impl<N> Default for ForeignUse<N> {
    fn default() -> Self {
        Self { seen: BTreeMap::new() }
    }
}

impl<N: Ord + Clone> ForeignUse<N> {
    /// Forgets the other nodes.
    pub(crate) fn retain(&mut self, keep: impl Fn(&N) -> bool) {
        self.seen.retain(|node, _| keep(node));
    }

    /// The least that was seen in a while, so that more is believed late and less at once. What is seen of a node first
    /// is believed.
    pub(crate) fn settle(&mut self, now: Duration, node: &N, used: BTreeMap<String, i64>) -> BTreeMap<String, i64> {
        if !self.seen.contains_key(node) {
            self.seen.insert(node.clone(), VecDeque::new());
        }
        let seen = self.seen.get_mut(node).expect("inserted above");
        let mut least = used.clone();
        seen.push_back((now, used));
        while seen.len() > 2 && seen[0].0 + SETTLE < now {
            seen.pop_front();
        }
        for (_, then) in seen.iter() {
            least.retain(|name, amount| {
                *amount = (*amount).min(then.get(name).copied().unwrap_or(0));
                *amount > 0
            });
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_foreign_use_is_believed_late_and_less_at_once() {
        let mut foreign = ForeignUse::default();
        let mut at = |seconds, cpu: i64| {
            let used = if cpu == 0 { BTreeMap::new() } else { BTreeMap::from([("cpu".to_owned(), cpu)]) };
            foreign.settle(Duration::from_secs(seconds), &"node", used).get("cpu").copied().unwrap_or(0)
        };
        assert_eq!(at(0, 1000), 1000, "what is seen first");
        assert_eq!(at(1, 3000), 1000);
        assert_eq!(at(2, 0), 0);
        assert_eq!(at(3, 2000), 0);
        assert_eq!(at(4, 2000), 0);
        assert_eq!(at(5, 2500), 0);
        assert_eq!(at(6, 2500), 2000);
    }
}
