//! Identifies the slots of containers if YARN doesn't report them. The REST API reports a container's node and the
//! priority of its request, but not the allocation request.

use std::collections::{BTreeMap, BTreeSet};

use trainmaster_core::Role;
use trainmaster_manager::SlotId;

use super::super::{
    slots::{ALONE, AllocationRequest},
    wire,
};

/// The expected containers of an application.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Expected {
    /// 0 before the first plan.
    pub(super) incarnation: u32,
    /// The node of each slot.
    pub(super) nodes: BTreeMap<SlotId, String>,
    /// Whether YARN can also place them on other nodes.
    pub(super) anywhere: bool,
}

impl Expected {
    fn request(&self, slot: SlotId) -> Option<AllocationRequest> {
        let incarnation = if self.incarnation == 0 { ALONE } else { self.incarnation };
        AllocationRequest::new(incarnation, slot).ok()
    }

    /// Whether a container with the label of a slot is on the slot's planned node.
    fn fits(&self, request: AllocationRequest, node: &str) -> bool {
        request.incarnation() == self.incarnation
            && self.nodes.get(&request.slot()).is_some_and(|at| self.anywhere || at == node)
    }
}

/// Assigns a slot to each container, and keeps it in `labels` while the container exists. A new container gets a slot
/// that is expected on its node and has no container there; the oldest container gets the first slot. If a container's
/// slot is no longer expected, it gets another expected slot of its role and node, because the two can't be
/// distinguished. Other containers get no slot. Cost: O(containers × log + slots).
pub(super) fn assign(
    labels: &mut BTreeMap<String, i64>,
    containers: &mut [wire::Container],
    role: impl Fn(&str) -> Option<Role>,
    expected: &Expected,
) {
    let mut order: Vec<usize> = (0..containers.len()).collect();
    // By age. Numbers have the same width unless there are very many.
    order.sort_by(|a, b| {
        let key = |at: usize| (containers[at].id.len(), &containers[at].id);
        key(*a).cmp(&key(*b))
    });
    labels.retain(|id, _| containers.iter().any(|container| container.id == *id));
    // The assigned slots on each node.
    let mut taken: BTreeSet<(SlotId, &str)> = BTreeSet::new();
    for container in containers.iter() {
        let label = labels.get(&container.id).and_then(|label| AllocationRequest::from_id(*label));
        let unplanned = expected.incarnation == 0;
        if let Some(label) = label.filter(|label| unplanned || expected.fits(*label, &container.node)) {
            taken.insert((label.slot(), &container.node));
        }
    }
    let mut told = Vec::new();
    for at in order {
        let container = &containers[at];
        let label = labels.get(&container.id).and_then(|label| AllocationRequest::from_id(*label));
        // A container of a previous incarnation is leaving, and keeps its slot.
        let stays = label
            .is_some_and(|label| label.incarnation() != expected.incarnation || expected.fits(label, &container.node));
        if !stays && let Some(role) = role(&container.id) {
            let free = |slot: SlotId| {
                let is_taken = |node: &str| taken.contains(&(slot, node));
                !if expected.anywhere { expected_anywhere(&taken, slot) } else { is_taken(&container.node) }
            };
            let here = expected.nodes.iter().filter(|(slot, node)| slot.role == role && **node == container.node);
            let there = expected.nodes.iter().filter(|(slot, _)| slot.role == role && expected.anywhere);
            let slot = here.chain(there).map(|(slot, _)| *slot).find(|slot| free(*slot));
            // A job in standalone mode has slots without a plan.
            let alone = || (expected.incarnation == 0 && label.is_none()).then(|| next(&taken, role));
            if let Some(slot) = slot.or_else(alone)
                && let Some(request) = expected.request(slot)
            {
                taken.insert((slot, &container.node));
                labels.insert(container.id.clone(), request.id());
            }
        }
        told.push((at, labels.get(&container.id).copied().unwrap_or_default()));
    }
    for (at, label) in told {
        containers[at].allocation_request = label;
    }
}

fn expected_anywhere(taken: &BTreeSet<(SlotId, &str)>, slot: SlotId) -> bool {
    taken.iter().any(|(known, _)| *known == slot)
}

/// The first index that no container of the role has.
fn next(taken: &BTreeSet<(SlotId, &str)>, role: Role) -> SlotId {
    let index = (0..)
        .find(|index| !expected_anywhere(taken, SlotId::new(role, *index)))
        .expect("there are more than containers");
    SlotId::new(role, index)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const W: Role = Role::Worker;
    const P: Role = Role::Server;

    fn container(id: &str, node: &str) -> wire::Container {
        wire::Container { id: id.into(), node: node.into(), ..wire::Container::default() }
    }

    fn expected(incarnation: u32, slots: &[(Role, u32, &str)]) -> Expected {
        let nodes = slots.iter().map(|(role, index, node)| (SlotId::new(*role, *index), (*node).to_owned())).collect();
        Expected { incarnation, nodes, anywhere: false }
    }

    /// `s…` are parameter servers, `x…` other applications' containers, and others workers.
    fn role(id: &str) -> Option<Role> {
        match id.chars().next() {
            Some('s') => Some(P),
            Some('x') => None,
            _ => Some(W),
        }
    }

    /// The incarnation and slot of each container, in the order of the input.
    fn look(
        labels: &mut BTreeMap<String, i64>,
        expected: &Expected,
        containers: &[(&str, &str)],
    ) -> Vec<Option<(u32, Role, u32)>> {
        let mut rows: Vec<_> = containers.iter().map(|(id, node)| container(id, node)).collect();
        assign(labels, &mut rows, role, expected);
        let slot = |row: &wire::Container| {
            let request = AllocationRequest::from_id(row.allocation_request)?;
            Some((request.incarnation(), request.slot().role, request.slot().index))
        };
        rows.iter().map(slot).collect()
    }

    #[test]
    fn the_oldest_container_of_a_node_is_its_first_slot() {
        let labels = &mut BTreeMap::new();
        let plan = expected(1, &[(W, 0, "a"), (W, 1, "b"), (W, 2, "a"), (P, 0, "a")]);
        let told = [("c4", "a"), ("c2", "b"), ("c3", "a"), ("s5", "a"), ("c6", "a"), ("c7", "c"), ("x8", "a")];
        let first = [Some((1, W, 2)), Some((1, W, 1)), Some((1, W, 0)), Some((1, P, 0)), None, None, None];
        assert_eq!(look(labels, &plan, &told), first);
        assert_eq!(look(labels, &plan, &told), first, "and stays it");
        // One of them fails, and the surplus container takes its slot.
        assert_eq!(look(labels, &plan, &[("c4", "a"), ("c6", "a")]), [Some((1, W, 2)), Some((1, W, 0))]);
        assert_eq!(labels.len(), 2, "who is gone is forgotten");
    }

    #[test]
    fn who_is_left_of_several_that_look_the_same_is_who_is_wanted() {
        let labels = &mut BTreeMap::new();
        let both = expected(1, &[(W, 0, "a"), (W, 1, "a")]);
        assert_eq!(look(labels, &both, &[("c2", "a"), ("c3", "a")]), [Some((1, W, 0)), Some((1, W, 1))]);
        let one = expected(1, &[(W, 0, "a")]);
        assert_eq!(look(labels, &one, &[("c2", "a"), ("c3", "a")]), [Some((1, W, 0)), Some((1, W, 1))]);
        // YARN had allocated them in the other order.
        assert_eq!(look(labels, &one, &[("c3", "a")]), [Some((1, W, 0))]);
    }

    #[test]
    fn a_restart_shows_as_leaving_and_coming() {
        let labels = &mut BTreeMap::new();
        let slots = [(W, 0, "a"), (W, 1, "b")];
        look(labels, &expected(1, &slots), &[("c2", "a"), ("c3", "b")]);
        let again = look(labels, &expected(2, &slots), &[("c2", "a"), ("c3", "b"), ("c4", "a")]);
        assert_eq!(again, [Some((1, W, 0)), Some((1, W, 1)), Some((2, W, 0))]);
        // A slot that moves has two containers for a while.
        let moved = look(labels, &expected(2, &[(W, 0, "b")]), &[("c4", "a"), ("c5", "b")]);
        assert_eq!(moved, [Some((2, W, 0)), Some((2, W, 0))]);
    }

    #[test]
    fn who_nobody_planned_keeps_what_it_has() {
        let labels = &mut BTreeMap::new();
        let nobody = Expected::default();
        let alone = look(labels, &nobody, &[("c2", "a"), ("s3", "b"), ("c4", "b")]);
        assert_eq!(alone, [Some((ALONE, W, 0)), Some((ALONE, P, 0)), Some((ALONE, W, 1))]);
        assert_eq!(look(labels, &nobody, &[("c2", "a"), ("s3", "b"), ("c4", "b")]), alone);
        let planned = look(labels, &expected(1, &[(W, 0, "a")]), &[("c2", "a"), ("c5", "a")]);
        assert_eq!(planned, [Some((ALONE, W, 0)), Some((1, W, 0))]);
        // After a release, a missing slot's container may be on any node.
        let released = Expected { anywhere: true, ..expected(1, &[(W, 0, "a"), (W, 1, "b")]) };
        assert_eq!(look(labels, &released, &[("c5", "a"), ("c6", "c")]), [Some((1, W, 0)), Some((1, W, 1))]);
    }

    proptest! {
        #[test]
        fn whatever_is_told_no_two_containers_of_a_node_are_one_slot(
            rounds in vec(
                (0..4u32, vec((any::<bool>(), 0..3u32, 0..3usize), 0..6), vec(0..9u32, 0..8), any::<bool>()),
                1..8,
            ),
        ) {
            const NODES: [&str; 3] = ["a", "b", "c"];
            let mut labels = BTreeMap::new();
            for (incarnation, slots, containers, anywhere) in rounds {
                let slots: Vec<_> =
                    slots.iter().map(|(server, at, node)| (if *server { P } else { W }, *at, NODES[*node])).collect();
                let expected = Expected { anywhere, ..expected(incarnation, &slots) };
                // A container never changes its node.
                let named = |number: u32| ["c", "s", "x"][number as usize % 3].to_owned() + &number.to_string();
                let told: BTreeMap<_, _> =
                    containers.iter().map(|number| (named(*number), NODES[*number as usize / 3])).collect();
                let mut rows: Vec<_> = told.iter().map(|(id, node)| container(id, node)).collect();
                assign(&mut labels, &mut rows, role, &expected);
                let mut seen = BTreeSet::new();
                for row in &rows {
                    let Some(request) = AllocationRequest::from_id(row.allocation_request) else { continue };
                    prop_assert_eq!(Some(request.slot().role), role(&row.id));
                    let is_new = seen.insert((request, row.node.clone()));
                    prop_assert!(is_new, "{:?} is twice on a node: {:?}", request, rows);
                }
                // A repetition changes nothing.
                let mut again = rows.clone();
                assign(&mut labels, &mut again, role, &expected);
                prop_assert_eq!(again, rows);
            }
        }
    }
}
