//! Limits for data from other users of the cluster. Anyone who can reach Ray's head can register nodes, create
//! placement groups and write to its key-value store. Such data must not end the daemon, in which this adapter runs,
//! must not exhaust its memory, and must not keep it from reading other data.

use trainmaster_core::text::{is_unseen, shown};

/// Maximum bytes of an answer, decoded or not. A large cluster exceeds gRPC's default of 4 MiB.
pub(super) const MOST_BYTES: usize = 128 << 20;
/// Maximum bytes of a driver's record of its job, and of a plan.
pub(super) const LONGEST_RECORD: usize = 1 << 20;
pub(super) const LONGEST_PLAN: usize = 16 << 20;
/// Maximum bytes of all drivers' records.
pub(super) const MOST_IN_RECORDS: usize = 32 << 20;
/// Maximum number of keys in the key-value store, and maximum bytes of one.
pub(super) const MOST_KEYS: usize = 20_000;
pub(super) const LONGEST_KEY: usize = 256;
/// Maximum number of keys that are deleted in one step.
pub(super) const MOST_DELETED: usize = 256;
/// Maximum number of nodes: several times as many as Ray was ever tested with.
pub(super) const MOST_NODES: usize = 10_000;
/// Maximum bytes of a node's id.
pub(super) const LONGEST_ID: usize = 64;
/// Maximum bytes of the name of a node or a node type. Digits of an id may be appended to it.
pub(super) const LONGEST_NAME: usize = 200;
/// Maximum number of labels of a node, and maximum bytes of a label and of its value.
pub(super) const MOST_LABELS: usize = 64;
pub(super) const LONGEST_LABEL: usize = 256;
/// Maximum number of resources of a node besides Ray's own, and maximum bytes of a resource's name.
pub(super) const MOST_RESOURCES: usize = 64;
pub(super) const LONGEST_RESOURCE: usize = 64;
/// Maximum number of kinds of resources of all nodes, including the types of their GPUs. The core has room for about
/// 250.
pub(super) const MOST_KINDS: usize = 128;
/// Maximum amount of a resource of a node, in the core's sub-units.
pub(super) const MOST_OF_ANY: f64 = 1e12;
/// Maximum number of characters of a text for people.
const LONGEST_TEXT: usize = 1000;

/// Escapes and shortens a text from others, for logs and for people.
pub(super) fn words(text: &str) -> String {
    shown(text, LONGEST_TEXT).into_owned()
}

/// Whether a text can be a name.
pub(super) fn is_name(text: &str, longest: usize) -> bool {
    (1..=longest).contains(&text.len()) && !text.chars().any(is_unseen)
}

/// Parses a number in the form in which the daemon writes it. Otherwise two keys could mean the same number.
pub(super) fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| number.to_string() == text)
}

/// Limits a list to `most` elements. Known ones are kept first.
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
