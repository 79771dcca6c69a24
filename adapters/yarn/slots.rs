//! Slots of jobs as allocation requests.

use trainmaster_core::Role;
use trainmaster_manager::SlotId;

/// Number of bits of a slot's index. The next higher bit is the role.
const INDEX_BITS: u32 = 31;
const LARGEST: u32 = (1 << INDEX_BITS) - 1;
/// The incarnation of containers that a job got in standalone mode. The daemon never reaches it.
pub(crate) const ALONE: u32 = LARGEST;

/// The slot of a job's container. In an allocation request ID, the upper 32 bits are the incarnation, bit 31 is set for
/// parameter servers, and the rest is the index. Incarnations begin with 1, so it is never negative, and never 0, which
/// is YARN's ID of requests without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AllocationRequest {
    incarnation: u32,
    slot: SlotId,
}

impl AllocationRequest {
    /// # Errors
    /// The number that is too large or 0, and the allowed range.
    pub(crate) fn new(incarnation: u32, slot: SlotId) -> Result<Self, String> {
        if !(1..=LARGEST).contains(&incarnation) {
            return Err(format!("incarnation {incarnation} has no allocation request; allowed are 1 to {LARGEST}"));
        }
        if slot.index > LARGEST {
            return Err(format!("{} has no allocation request; allowed are indices up to {LARGEST}", slot));
        }
        Ok(Self { incarnation, slot })
    }

    /// Returns `None` if no container of Trainmaster's can have this id.
    pub(crate) fn from_id(id: i64) -> Option<Self> {
        let incarnation = u32::try_from(id >> 32).ok()?;
        let low = id as u32;
        let role = if low > LARGEST { Role::Server } else { Role::Worker };
        Self::new(incarnation, SlotId::new(role, low & LARGEST)).ok()
    }

    pub(crate) fn id(self) -> i64 {
        let role = i64::from(self.slot.role == Role::Server) << INDEX_BITS;
        i64::from(self.incarnation) << 32 | role | i64::from(self.slot.index)
    }

    pub(crate) fn incarnation(self) -> u32 {
        self.incarnation
    }

    pub(crate) fn slot(self) -> SlotId {
        self.slot
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_are_as_documented() {
        let id = |incarnation, slot| AllocationRequest::new(incarnation, slot).map(AllocationRequest::id);
        assert_eq!(id(1, SlotId::new(Role::Worker, 0)), Ok(0x1_0000_0000));
        assert_eq!(id(2, SlotId::new(Role::Server, 3)), Ok(0x2_8000_0003));
        assert_eq!(id(LARGEST, SlotId::new(Role::Server, LARGEST)), Ok(i64::MAX));
        assert!(id(0, SlotId::new(Role::Worker, 0)).unwrap_err().contains("incarnation 0"));
        assert!(id(1, SlotId::new(Role::Server, 1 << 31)).unwrap_err().contains("server 2147483648"));
        for foreign in [0, -1, 7, u32::MAX.into(), i64::MIN] {
            assert_eq!(AllocationRequest::from_id(foreign), None, "{foreign}");
        }
    }

    proptest! {
        #[test]
        fn ids_are_read_back(incarnation in 1..=LARGEST, server: bool, index in 0..=LARGEST) {
            let slot = SlotId::new(if server { Role::Server } else { Role::Worker }, index);
            let request = AllocationRequest::new(incarnation, slot).unwrap();
            prop_assert!(request.id() > 0);
            prop_assert_eq!(AllocationRequest::from_id(request.id()), Some(request));
        }
    }
}
