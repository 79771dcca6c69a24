//! What placement groups and slots are called.

use trainmaster_core::Role;

/// A slot within an incarnation of a job.
pub(crate) type SlotId = (Role, u32);

/// All that a name may list: more slots than one placement group should ever hold.
const MOST_SLOTS: u32 = 65_536;

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
    /// `None`: it is somebody else's.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix("trainmaster/")?.split('/');
        let mut part = || parts.next();
        let (job, incarnation, revision) = (part()?.parse().ok()?, part()?.parse().ok()?, part()?.parse().ok()?);
        let slots = parse_slots(part()?)?;
        (!slots.is_empty() && part().is_none()).then_some(Self { job, incarnation, revision, slots })
    }
}

/// Reads a list of slots, such as `w0-3,w5,p0`: `w` for workers, `p` for parameter servers, both ends of a range
/// included.
pub(crate) fn parse_slots(text: &str) -> Option<Vec<SlotId>> {
    let mut slots = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (role, range) = match part.split_at_checked(1)? {
            ("w", range) => (Role::Worker, range),
            ("p", range) => (Role::Server, range),
            _ => return None,
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let room = MOST_SLOTS - slots.len() as u32;
        if first > last || last - first >= room {
            return None;
        }
        slots.extend((first..=last).map(|index| (role, index)));
    }
    Some(slots)
}

/// A slot, in words.
pub(crate) fn slot_name((role, index): SlotId) -> String {
    match role {
        Role::Worker => format!("worker {index}"),
        Role::Server => format!("server {index}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_groups_are_read() {
        let name = GroupName::parse("trainmaster/7/2/5/w0-2,w4,p0-1").unwrap();
        assert_eq!((name.job, name.incarnation, name.revision), (7, 2, 5));
        let workers = [0, 1, 2, 4].map(|index| (Role::Worker, index));
        assert_eq!(name.slots, [&workers[..], &[(Role::Server, 0), (Role::Server, 1)]].concat());
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
            "other/7/2/5/w0",
        ] {
            assert_eq!(GroupName::parse(foreign), None, "{foreign}");
        }
        assert_eq!(parse_slots(""), Some(Vec::new()), "none of them runs");
    }
}
