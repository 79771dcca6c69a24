//! How much is taken of what others on the cluster say. Whoever reaches Ray's head can register nodes, make placement
//! groups and write into its key-value store, whatever they like: that must neither end the daemon, in which this
//! adapter runs, nor fill it, nor keep it from what all others say.

use trainmaster_core::text::{is_unseen, shown};

/// Bytes of an answer, decoded or not: a large cluster is far larger than gRPC's default of 4 MiB allows.
pub(super) const MOST_BYTES: usize = 128 << 20;
/// Bytes of what a driver says of its job, and of a plan.
pub(super) const LONGEST_RECORD: usize = 1 << 20;
pub(super) const LONGEST_PLAN: usize = 16 << 20;
/// The same of what all drivers say.
pub(super) const MOST_IN_RECORDS: usize = 32 << 20;
/// Keys in the key-value store, and bytes of one.
pub(super) const MOST_KEYS: usize = 20_000;
pub(super) const LONGEST_KEY: usize = 256;
/// Keys that are deleted at a time.
pub(super) const MOST_DELETED: usize = 256;
/// Nodes: several times as many as Ray was ever tested with.
pub(super) const MOST_NODES: usize = 10_000;
/// Bytes of a node's id.
pub(super) const LONGEST_ID: usize = 64;
/// Bytes of the name of a node or a node type; digits of an id may come behind it.
pub(super) const LONGEST_NAME: usize = 200;
/// Labels of a node, and bytes of one and of its value.
pub(super) const MOST_LABELS: usize = 64;
pub(super) const LONGEST_LABEL: usize = 256;
/// Resources of a node beside Ray's own, and bytes of the name of one.
pub(super) const MOST_RESOURCES: usize = 64;
pub(super) const LONGEST_RESOURCE: usize = 64;
/// The same of all nodes together, with the types of their GPUs: the core has room for some 250.
pub(super) const MOST_KINDS: usize = 128;
/// What a node can have of anything, in the core's sub-units.
pub(super) const MOST_OF_ANY: f64 = 1e12;
/// Characters of what is said in words.
const LONGEST_TEXT: usize = 1000;

/// What others say in words: escaped and cut, for logs and for people.
pub(super) fn words(text: &str) -> String {
    shown(text, LONGEST_TEXT).into_owned()
}

/// Whether a text can be somebody's name.
pub(super) fn is_name(text: &str, longest: usize) -> bool {
    (1..=longest).contains(&text.len()) && !text.chars().any(is_unseen)
}

/// A number as the daemon writes it: one that could be written otherwise would be two keys.
pub(super) fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| number.to_string() == text)
}

/// As many as are taken: those that are known go first.
pub(super) fn first<T>(mut all: Vec<T>, most: usize, is_known: impl Fn(&T) -> bool) -> Vec<T> {
    if all.len() > most {
        all.sort_by_key(|one| !is_known(one));
        all.truncate(most);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_ones_go_first_where_there_are_too_many() {
        assert_eq!(first(vec![3, 1, 2], 3, |one| *one == 2), [3, 1, 2]);
        assert_eq!(first((0..100).collect(), 3, |one| *one > 97), [98, 99, 0]);
    }
}
