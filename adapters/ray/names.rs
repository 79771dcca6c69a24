//! Names of placement groups and slots.

use trainmaster_core::Role;
pub(crate) use trainmaster_manager::SlotId;

/// The name of a placement group of a job: `trainmaster/<job>/<incarnation>/<revision>/<slots>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupName {
    pub(crate) job: u64,
    pub(crate) incarnation: u32,
    pub(crate) revision: u32,
    /// In the order of the group's bundles.
    pub(crate) slots: Vec<SlotId>,
}

impl GroupName {
    /// Parses the name of a group with the given number of bundles. `None`: the group isn't Trainmaster's.
    pub(crate) fn parse(name: &str, bundles: usize) -> Option<Self> {
        let mut parts = name.strip_prefix("trainmaster/")?.split('/');
        let mut part = || parts.next();
        let (job, incarnation, revision) = (part()?.parse().ok()?, part()?.parse().ok()?, part()?.parse().ok()?);
        let ranges = SlotRanges::parse(part()?)?;
        // A short name can list more slots than fit in memory, but the number of bundles is limited.
        let slots = if ranges.len() == bundles as u64 { ranges.slots().collect::<Vec<_>>() } else { return None };
        (!slots.is_empty() && part().is_none()).then_some(Self { job, incarnation, revision, slots })
    }
}

/// A list of slots, such as `w0-3,w5,p0`: `w` for workers, then `p` for parameter servers. Both ends of a range are
/// included. Its size in memory is that of its text, not of the listed slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotRanges {
    /// Sorted, without duplicates.
    ranges: Vec<(SlotId, SlotId)>,
}

impl SlotRanges {
    /// Returns `None` if the text is invalid or not sorted.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut ranges = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (role, range) = match part.split_at_checked(1)? {
                ("w", range) => (Role::Worker, range),
                ("p", range) => (Role::Server, range),
                _ => return None,
            };
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            if first > last {
                return None;
            }
            ranges.push((SlotId::new(role, first), SlotId::new(role, last)));
        }
        ranges.windows(2).all(|two| two[0].1 < two[1].0).then_some(Self { ranges })
    }

    /// The number of slots.
    pub(crate) fn len(&self) -> u64 {
        self.ranges.iter().map(|(first, last)| u64::from(last.index - first.index) + 1).sum()
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = SlotId> {
        self.ranges
            .iter()
            .flat_map(|(first, last)| (first.index..=last.index).map(|index| SlotId::new(first.role, index)))
    }

    /// Cost: O(log(ranges)).
    pub(crate) fn contains(&self, slot: SlotId) -> bool {
        let before = self.ranges.partition_point(|(first, _)| *first <= slot);
        self.ranges[..before].last().is_some_and(|(_, last)| slot <= *last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_groups_are_read() {
        let name = GroupName::parse("trainmaster/7/2/5/w0-2,w4,p0-1", 6).unwrap();
        assert_eq!((name.job, name.incarnation, name.revision), (7, 2, 5));
        let workers = [0, 1, 2, 4].map(|index| SlotId::new(Role::Worker, index));
        assert_eq!(name.slots, [&workers[..], &[SlotId::new(Role::Server, 0), SlotId::new(Role::Server, 1)]].concat());
        for foreign in [
            "",
            "trainmaster",
            "trainmaster/7/2/5",
            "trainmaster/7/2/5/",
            "trainmaster/7/2/5/w0/x",
            "trainmaster/x/2/5/w0",
            "trainmaster/7/2/5/w",
            "trainmaster/7/2/5/w2-1",
            "trainmaster/7/2/5/w0-4294967295",
            "trainmaster/7/2/5/é0",
            "trainmaster/7/2/5/w0,w0",
            "trainmaster/7/2/5/w0-3,w3",
            "trainmaster/7/2/5/p0,w0",
            "other/7/2/5/w0",
        ] {
            assert!((0..8).all(|bundles| GroupName::parse(foreign, bundles).is_none()), "{foreign}");
        }
    }

    #[test]
    fn a_group_has_a_bundle_for_each_slot() {
        for bundles in [0, 1, 3, 65_536] {
            assert_eq!(GroupName::parse("trainmaster/7/2/5/w0-1", bundles), None);
            // As lists, these wouldn't fit in memory.
            assert_eq!(GroupName::parse("trainmaster/7/2/5/w0-4294967295,p0-4294967295", bundles), None);
        }
    }

    #[test]
    fn lists_of_slots_tell_what_is_in_them() {
        assert_eq!(SlotRanges::parse(""), Some(SlotRanges::default()), "none of them runs");
        let all = SlotRanges::parse("w0-4294967295,p0-4294967295").unwrap();
        assert!(all.len() == 1 << 33 && all.contains(SlotId::new(Role::Server, u32::MAX)));
    }

    proptest! {
        #[test]
        fn any_list_of_slots_is_read(text in "[wp0-9,+ -]{0,24}", any in ".{0,24}") {
            for text in [text, any] {
                let _ = GroupName::parse(&format!("trainmaster/1/1/0/{text}"), 3);
                let Some(ranges) = SlotRanges::parse(&text) else { continue };
                let count = ranges.slots().take(1000).filter(|slot| ranges.contains(*slot)).count();
                prop_assert_eq!(count as u64, ranges.len().min(1000));
            }
        }

        #[test]
        fn what_is_in_no_range_is_not_there(slots in proptest::collection::btree_set((0..2u8, 0..40u32), 0..20)) {
            let slots: Vec<SlotId> = slots
                .into_iter()
                .map(|(role, index)| SlotId::new(if role == 0 { Role::Worker } else { Role::Server }, index))
                .collect();
            let letter = |role| if role == Role::Worker { "w" } else { "p" };
            let text: Vec<_> = slots.iter().map(|slot| format!("{}{}", letter(slot.role), slot.index)).collect();
            let ranges = SlotRanges::parse(&text.join(",")).unwrap();
            for role in [Role::Worker, Role::Server] {
                for index in 0..41 {
                    let slot = SlotId::new(role, index);
                    prop_assert_eq!(ranges.contains(slot), slots.contains(&slot));
                }
            }
            prop_assert_eq!(ranges.slots().collect::<Vec<_>>(), slots);
        }
    }
}
