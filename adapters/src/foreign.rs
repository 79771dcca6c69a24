//! Foreign use of nodes, told apart from the use by jobs that were just started or stopped.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// Managers report use and jobs at different times. An apparent foreign use that is an own job's is gone after this
/// time.
const SETTLE: Duration = Duration::from_secs(3);

/// The amounts in use, with the times at which they were seen.
type History = VecDeque<(Duration, BTreeMap<String, i64>)>;

/// Foreign use of each node, without short peaks.
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
    /// Removes all nodes for which `keep` is false.
    pub(crate) fn retain(&mut self, keep: impl Fn(&N) -> bool) {
        self.seen.retain(|node, _| keep(node));
    }

    /// Returns the minimum of a node's amounts within the last `SETTLE`. An increase therefore counts late, and a
    /// decrease at once. A node's first amounts count at once.
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
