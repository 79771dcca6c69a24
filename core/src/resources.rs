//! Integer resource vectors over named types.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{amount::Unit, ids::ResourceId};

/// GPUs of any type, in thousandths.
pub const GPU: ResourceId = ResourceId(0);
/// CPU cores, in thousandths.
pub const CPU: ResourceId = ResourceId(1);
/// Memory, in MiB.
pub const MEMORY: ResourceId = ResourceId(2);
/// Disk, in MiB.
pub const DISK: ResourceId = ResourceId(3);
/// Network bandwidth, in Mbit/s.
pub const BANDWIDTH: ResourceId = ResourceId(4);

const BUILT_IN: [&str; 5] = ["gpu", "cpu", "memory", "disk", "bandwidth"];

/// Whether a resource or a device is a GPU: `gpu` or `gpu:<type>`.
pub fn is_gpu(name: &str) -> bool {
    name == "gpu" || name.starts_with("gpu:")
}

/// The GPU types that a demand's name allows to the workers of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuTypes<'a> {
    /// `gpu`: one type, whichever it is.
    Any,
    /// `gpu:a100|v100`: one type of a list, the first preferred.
    OneOf(&'a str),
    /// `gpu:a100`: this type. `gpu:*`: several types, mixed.
    Fixed,
}

impl<'a> GpuTypes<'a> {
    /// Reads a name. None if it isn't a GPU's.
    pub(crate) fn of(name: &'a str) -> Option<Self> {
        match name.strip_prefix("gpu") {
            Some("") => Some(Self::Any),
            Some(types) if types.starts_with(':') && types.contains('|') => Some(Self::OneOf(&types[1..])),
            Some(types) if types.starts_with(':') => Some(Self::Fixed),
            _ => None,
        }
    }

    /// The names of the listed types, such as `gpu:a100`, the preferred one first.
    pub(crate) fn listed(self) -> impl Iterator<Item = String> {
        let list = match self {
            Self::OneOf(list) => list,
            Self::Any | Self::Fixed => "",
        };
        list.split('|').filter(|name| !name.is_empty()).map(|name| format!("gpu:{name}"))
    }
}

/// The resource that a demand's name counts as until a type is chosen: of a list the first, and of `gpu:*` any GPU.
pub(crate) fn counted_as(name: &str) -> &str {
    match (GpuTypes::of(name), name.find('|')) {
        (Some(GpuTypes::OneOf(_)), Some(end)) => &name[..end],
        (Some(_), _) if name == "gpu:*" => "gpu",
        _ => name,
    }
}

/// The resource types in use: five built-in ones, and others in the order of their first use. A new type takes the
/// index of a forgotten one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceTypes {
    names: Vec<Arc<str>>,
    ids: BTreeMap<Arc<str>, ResourceId>,
}

impl Default for ResourceTypes {
    fn default() -> Self {
        let mut types = Self { names: Vec::new(), ids: BTreeMap::new() };
        for name in BUILT_IN {
            types.intern(name);
        }
        types
    }
}

impl ResourceTypes {
    /// Maximum number of types. Every [`Amounts`] is as long as its last type.
    pub const MOST: usize = 256;
    /// Maximum number of types at which a job can add a new one. The rest is reserved for servers and settings.
    pub const MOST_FOR_JOBS: usize = 128;

    /// The id of a name. A new name gets a new id.
    pub fn intern(&mut self, name: &str) -> ResourceId {
        if let Some(id) = self.id(name) {
            return id;
        }
        let name: Arc<str> = name.into();
        let free = self.names.iter().position(|name| name.is_empty());
        let at = free.unwrap_or(self.names.len());
        let id = ResourceId(u16::try_from(at).expect("fewer than 65,536 resource types"));
        match free {
            Some(at) => self.names[at] = name.clone(),
            None => self.names.push(name.clone()),
        }
        self.ids.insert(name, id);
        id
    }

    /// Forgets a type that no amount uses.
    pub(crate) fn forget(&mut self, id: ResourceId) {
        debug_assert!(id.index() >= BUILT_IN.len());
        let name = std::mem::take(&mut self.names[id.index()]);
        self.ids.remove(&name);
    }

    /// The types that can be forgotten: all except the built-in ones.
    pub(crate) fn others(&self) -> impl Iterator<Item = (ResourceId, &str)> {
        let named = self.names.iter().enumerate().skip(BUILT_IN.len()).filter(|(_, name)| !name.is_empty());
        named.map(|(at, name)| (ResourceId(at as u16), &**name))
    }

    /// The id of a known name.
    pub fn id(&self, name: &str) -> Option<ResourceId> {
        self.ids.get(name).copied()
    }

    /// The name of a type; empty if its index is free.
    pub fn name(&self, id: ResourceId) -> &str {
        &self.names[id.index()]
    }

    /// An upper bound of the ids in use, exclusive.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// Number of types in use.
    pub fn used(&self) -> usize {
        self.ids.len()
    }

    /// Formats a quantity of a type: `2`, `10GiB`.
    pub fn format(&self, id: ResourceId, value: i64) -> String {
        Unit::of(self.name(id)).format(value)
    }

    /// The id of the resource that a demand's name counts as. A new one gets a new id.
    pub(crate) fn intern_demand(&mut self, name: &str) -> ResourceId {
        self.intern(counted_as(name))
    }

    /// Converts a table of names to a vector. A positive demand for `gpu:<type>` also counts as `gpu`. A demand for one
    /// of several types counts as the first.
    pub fn demand(&mut self, table: &BTreeMap<String, i64>) -> Amounts {
        let mut amounts = Amounts::default();
        for (name, &value) in table.iter().filter(|(_, value)| **value != 0) {
            let id = self.intern_demand(name);
            amounts.add(id, value);
            if id != GPU && is_gpu(name) {
                amounts.add(GPU, value);
            }
        }
        amounts
    }
}

/// Amounts by resource type, in sub-units. Types beyond the vector's length are zero.
///
/// ```
/// use trainmaster_core::resources::{Amounts, CPU, GPU};
/// let mut free = Amounts::of(&[(GPU, 2000), (CPU, 16_000)]);
/// let worker = Amounts::of(&[(GPU, 1000), (CPU, 4000)]);
/// assert!(worker.fits(&free));
/// free -= &worker;
/// assert_eq!(free[GPU], 1000);
/// ```
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Amounts(SmallVec<[i64; 6]>);

impl Clone for Amounts {
    /// Copies the numbers at once. The clone of [`SmallVec`] takes them one by one.
    #[inline]
    fn clone(&self) -> Self {
        Self(SmallVec::from_slice(&self.0))
    }
}

impl Amounts {
    /// Creates amounts from pairs.
    pub fn of(pairs: &[(ResourceId, i64)]) -> Self {
        let mut amounts = Self::default();
        for &(id, value) in pairs {
            amounts.add(id, value);
        }
        amounts
    }

    /// Adds an amount of one type.
    pub fn add(&mut self, id: ResourceId, value: i64) {
        if self.0.len() <= id.index() {
            self.0.resize(id.index() + 1, 0);
        }
        self.0[id.index()] += value;
    }

    /// Sets a type to zero.
    pub(crate) fn clear(&mut self, id: ResourceId) {
        if let Some(value) = self.0.get_mut(id.index()) {
            *value = 0;
        }
    }

    /// Whether every amount is at most the one in `room`.
    #[inline]
    pub fn fits(&self, room: &Self) -> bool {
        self.first_excess(room).is_none()
    }

    /// The first type whose amount exceeds the one in `room`.
    #[inline]
    pub fn first_excess(&self, room: &Self) -> Option<ResourceId> {
        let shared = self.0.len().min(room.0.len());
        let by_both = self.0[..shared].iter().zip(&room.0[..shared]).position(|(need, have)| *need > 0 && need > have);
        let position = by_both.or_else(|| self.0[shared..].iter().position(|need| *need > 0).map(|at| at + shared));
        position.map(|at| ResourceId(at as u16))
    }

    /// `self += other × times`.
    #[inline]
    pub fn add_times(&mut self, other: &Self, times: i64) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs * times;
        }
    }

    /// `self × times`.
    #[inline]
    pub fn times(&self, times: i64) -> Self {
        let mut product = self.clone();
        product.0.iter_mut().for_each(|value| *value *= times);
        product
    }

    /// The maximum of both, per type. Missing types count as zero.
    pub fn max_with(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Replaces negative amounts by zero.
    pub fn at_least_zero(mut self) -> Self {
        for value in &mut self.0 {
            *value = (*value).max(0);
        }
        self
    }

    /// Whether all amounts are zero.
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|value| *value == 0)
    }

    /// All types with their amounts, including zeros.
    pub fn iter(&self) -> impl Iterator<Item = (ResourceId, i64)> + Clone + '_ {
        self.0.iter().enumerate().map(|(at, value)| (ResourceId(at as u16), *value))
    }

    /// Dominant share of `total`: the largest `self[r] / total[r]` over all types. Infinite if the total lacks a
    /// demanded type.
    pub fn dominant_share(&self, total: &Self) -> f64 {
        let mut share = 0.0_f64;
        for (id, value) in self.iter().filter(|(_, value)| *value > 0) {
            let whole = total[id];
            share = share.max(if whole > 0 { value as f64 / whole as f64 } else { f64::INFINITY });
        }
        share
    }
}

impl std::ops::Index<ResourceId> for Amounts {
    type Output = i64;
    #[inline]
    fn index(&self, id: ResourceId) -> &i64 {
        self.0.get(id.index()).unwrap_or(&0)
    }
}

impl std::ops::AddAssign<&Self> for Amounts {
    #[inline]
    fn add_assign(&mut self, other: &Self) {
        self.add_times(other, 1);
    }
}

impl std::ops::SubAssign<&Self> for Amounts {
    #[inline]
    fn sub_assign(&mut self, other: &Self) {
        self.add_times(other, -1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_gpu_counts_once_as_a_gpu() {
        let mut types = ResourceTypes::default();
        let table = BTreeMap::from([("gpu:a100".to_owned(), 2000), ("cpu".to_owned(), 500)]);
        let demand = types.demand(&table);
        assert_eq!(demand[GPU], 2000);
        assert_eq!(demand[types.id("gpu:a100").unwrap()], 2000);
        assert_eq!(types.format(MEMORY, 10 * 1024), "10GiB");
    }

    #[test]
    fn missing_types_are_zero() {
        let wide = Amounts::of(&[(ResourceId(9), 1)]);
        let narrow = Amounts::of(&[(GPU, 5)]);
        assert!(!wide.fits(&narrow));
        assert_eq!(wide.first_excess(&narrow), Some(ResourceId(9)));
        assert!(Amounts::default().fits(&narrow));
        // An overcommitted resource doesn't matter to a job that doesn't use it.
        assert!(narrow.fits(&Amounts::of(&[(GPU, 5), (CPU, -3)])));
        assert_eq!(narrow.dominant_share(&Amounts::of(&[(GPU, 10)])), 0.5);
        assert_eq!(wide.dominant_share(&narrow), f64::INFINITY);
    }
}
