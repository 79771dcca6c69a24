//! Reads a journal's tables entry by entry. Memory grows with the entries in the file, not with a number that a damaged
//! file states.

use std::collections::BTreeMap;

use imbl::OrdMap;
use serde::{Deserialize, Deserializer};

pub(crate) fn table<'de, D, K, V>(deserializer: D) -> Result<OrdMap<K, V>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + Ord + Clone,
    V: Deserialize<'de> + Clone,
{
    Ok(BTreeMap::deserialize(deserializer)?.into())
}

pub(crate) fn tables<'de, D, K, L, V>(deserializer: D) -> Result<OrdMap<K, OrdMap<L, V>>, D::Error>
where
    D: Deserializer<'de>,
    K: Deserialize<'de> + Ord + Clone,
    L: Deserialize<'de> + Ord + Clone,
    V: Deserialize<'de> + Clone,
{
    let tables = BTreeMap::<K, BTreeMap<L, V>>::deserialize(deserializer)?;
    Ok(tables.into_iter().map(|(key, table)| (key, OrdMap::from(table))).collect())
}
