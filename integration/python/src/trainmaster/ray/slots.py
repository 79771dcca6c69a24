"""Slots, and the names of placement groups. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

RoleName = Literal["worker", "server"]

_LETTER: dict[RoleName, str] = {"worker": "w", "server": "p"}
_ROLE: dict[str, RoleName] = {"w": "worker", "p": "server"}
_PIECE = re.compile(r"([wp])(\d+)(?:-(\d+))?")


@dataclass(frozen=True, order=True)
class Slot:
    """One worker or parameter server of a job. An unchanged slot keeps its index."""

    role: RoleName
    index: int

    def __str__(self) -> str:
        return f"{_LETTER[self.role]}{self.index}"


def ordered(slots: Iterable[Slot]) -> list[Slot]:
    """Sorts slots in the order of a group's bundles: workers first, then by index."""
    return sorted(slots, key=lambda slot: (slot.role != "worker", slot.index))


def write(slots: Iterable[Slot]) -> str:
    """Formats slots as ranges, such as "w0-3,p0-1".

    >>> write([Slot("server", 0), Slot("worker", 2), Slot("worker", 0), Slot("worker", 1)])
    'w0-2,p0'
    """
    ranges: list[tuple[RoleName, int, int]] = []
    for slot in ordered(set(slots)):
        role, index = slot.role, slot.index
        if ranges and ranges[-1][0] == role and ranges[-1][2] == index - 1:
            ranges[-1] = (role, ranges[-1][1], index)
        else:
            ranges.append((role, index, index))
    return ",".join(f"{_LETTER[role]}{first}" + (f"-{last}" if last > first else "") for role, first, last in ranges)


def read(text: str) -> list[Slot]:
    """The inverse of `write`."""
    slots: list[Slot] = []
    for piece in text.split(",") if text else []:
        match = _PIECE.fullmatch(piece)
        if not match or int(match[3] or match[2]) < int(match[2]):
            raise ValueError(f"slots: {piece!r} in {text!r} must be like w0, w0-3 or p1")
        first, last = int(match[2]), int(match[3] or match[2])
        slots += [Slot(_ROLE[match[1]], index) for index in range(first, last + 1)]
    return slots


def group_name(job: int, incarnation: int, revision: int, slots: Iterable[Slot]) -> str:
    return f"trainmaster/{job}/{incarnation}/{revision}/{write(slots)}"


def groups(slots: Iterable[Slot], fixed_workers: int) -> list[tuple[Slot, ...]]:
    """Divides slots into placement groups.

    Ray can't give back a single bundle of a group. So slots that can't be dropped alone share a group: the servers and
    the minimum number of workers. Every other worker has its own group.
    """
    every = ordered(slots)
    workers = [slot for slot in every if slot.role == "worker"]
    base = (*workers[:fixed_workers], *(slot for slot in every if slot.role == "server"))
    alone: Sequence[Slot] = workers[fixed_workers:]
    return ([base] if base else []) + [(slot,) for slot in alone]
