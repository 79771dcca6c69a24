"""The steps that follow from a plan, and the names of groups, for all small cases."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from trainmaster.ray.plan import Kind, Plan, Running, step
from trainmaster.ray.slots import Slot, group_name, groups, ordered, read, write

pytestmark = pytest.mark.minimum

WORKERS = [Slot("worker", index) for index in range(4)]
SERVERS = [Slot("server", index) for index in range(2)]


def subsets(slots: list[Slot]) -> Iterator[tuple[Slot, ...]]:
    for size in range(len(slots) + 1):
        yield from itertools.combinations(slots, size)


def test_names_read_back_as_written() -> None:
    for workers, servers in itertools.product(subsets(WORKERS), subsets(SERVERS)):
        text = write(reversed(workers + servers))
        assert read(text) == ordered(workers + servers), text
        assert len(text.split(",")) <= len(workers + servers) or not text
    assert write([*WORKERS, *SERVERS]) == "w0-3,p0-1"
    assert write([WORKERS[0], WORKERS[2], SERVERS[1]]) == "w0,w2,p1"
    assert group_name(7, 2, 1, WORKERS[1:2]) == "trainmaster/7/2/1/w1"


@pytest.mark.parametrize("text", ["x0", "w", "w3-1", "w0,,p1", "w0-"])
def test_bad_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be like w0"):
        read(text)


def test_groups_have_each_slot_once_and_droppable_workers_alone() -> None:
    for workers, servers, fixed in itertools.product(subsets(WORKERS), subsets(SERVERS), range(1, 5)):
        made = groups(workers + servers, fixed)
        assert sorted(slot for group in made for slot in group) == sorted(workers + servers)
        for slot in workers[fixed:]:
            assert (slot,) in made
        assert len(made) == bool(servers or workers) + len(workers[fixed:])


def plan(placed: dict[Slot, str], incarnation: int = 1, revision: int = 1, action: str = "run", **other: str) -> Plan:
    return Plan("a", 1, action, incarnation, revision, other.get("reason", ""), placed, other.get("refused", ""))


def place(slots: tuple[Slot, ...], server: str = "n0") -> dict[Slot, str]:
    return dict.fromkeys(slots, server)


def test_every_change_of_shape_leads_to_the_plan() -> None:
    shapes = [w + s for w, s in itertools.product(subsets(WORKERS[:3]), subsets(SERVERS)) if w]
    seen = set()
    for before, after, fixed in itertools.product(shapes, shapes, (1, 2)):
        made = groups(before, fixed)
        todo = step(Running(1, 0, place(before), made), plan(place(after)))
        seen.add(todo.kind)
        if todo.kind is Kind.RESIZE:
            assert (set(before) | todo.add) - todo.drop == set(after)
            assert not todo.add & set(before)
            assert all(slot.role == "worker" for slot in todo.add | todo.drop)
            # A dropped slot gives its own group back, and no other slot's.
            assert all(set(group) <= todo.drop or not set(group) & todo.drop for group in made)
        else:
            assert todo.kind is Kind.REBUILD
            of_servers = [slot for slot in before if slot.role == "server"] != [s for s in after if s.role == "server"]
            of_base = not set(ordered(before)[:fixed]) <= set(after)
            assert of_servers or of_base, (before, after)
    assert seen == {Kind.RESIZE, Kind.REBUILD}


def test_a_moved_slot_needs_new_groups() -> None:
    before = (WORKERS[0], WORKERS[1], SERVERS[0])
    moved = place(before) | {WORKERS[1]: "n1"}
    assert step(Running(1, 0, place(before), groups(before, 1)), plan(moved)).kind is Kind.REBUILD


@pytest.mark.parametrize(
    ("runs", "wanted", "kind"),
    [
        (False, plan(place(tuple(WORKERS))), Kind.START),
        (False, plan(place(tuple(WORKERS)), refused="no room"), Kind.KEEP),
        (False, plan({}, action="wait"), Kind.KEEP),
        (False, plan({}, action="release"), Kind.KEEP),
        (False, plan({}, action="reject"), Kind.END),
        (True, plan(place(tuple(WORKERS)), revision=0), Kind.KEEP),
        (True, plan(place(tuple(WORKERS)), refused="no room"), Kind.KEEP),
        (True, plan(place(tuple(WORKERS)), incarnation=2), Kind.LEAVE),
        (True, plan(place(tuple(WORKERS)), incarnation=2, refused="no room"), Kind.LEAVE),
        (True, plan({}, action="wait"), Kind.LEAVE),
        (True, plan({}, action="release"), Kind.KEEP),
        (True, plan({}, action="stop"), Kind.END),
    ],
)
def test_other_plans(runs: bool, wanted: Plan, kind: Kind) -> None:
    slots = (WORKERS[0], SERVERS[0])
    running = Running(1, 0, place(slots), groups(slots, 1)) if runs else None
    assert step(running, wanted).kind is kind


def test_a_plan_is_read() -> None:
    slots = [{"role": "worker", "index": 3, "server": "n1", "devices": [[0, 500]]}]
    document: dict[str, object] = {
        "v": 1,
        "name": "a",
        "decision": 4,
        "action": "run",
        "incarnation": 2,
        "revision": 1,
        "slots": slots,
    }
    found = Plan.read(json.dumps(document).encode())
    assert found == Plan("a", 4, "run", 2, 1, "", {Slot("worker", 3): "n1"})
    assert found.shape == (1, 0)
    changes: list[tuple[dict[str, object], str]] = [({"v": 2}, "version 2"), ({"action": "dance"}, "'dance'")]
    for change, message in changes:
        with pytest.raises(ValueError, match=message):
            Plan.read(json.dumps(document | change).encode())
