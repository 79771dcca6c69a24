"""What the adapter says and what that means for a job that runs. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from .slots import Slot

VERSION = 1
ACTIONS = ("run", "wait", "stop", "reject", "release")


@dataclass(frozen=True)
class Plan:
    """The document `plan/<number>`."""

    name: str
    decision: int
    action: str
    incarnation: int
    revision: int
    reason: str
    placed: Mapping[Slot, str]  # → name of its server
    refused: str = ""

    @classmethod
    def read(cls, text: str | bytes) -> Plan:
        document = json.loads(text)
        if document.get("v") != VERSION:
            raise ValueError(f"plan: version {document.get('v')!r} must be {VERSION}; package and daemon don't fit")
        if document.get("action") not in ACTIONS:
            raise ValueError(f"plan: action {document.get('action')!r} must be one of {', '.join(ACTIONS)}")
        return cls(
            name=document.get("name", ""),
            decision=document.get("decision", 0),
            action=document["action"],
            incarnation=document.get("incarnation", 0),
            revision=document.get("revision", 0),
            reason=document.get("reason", ""),
            placed={Slot(slot["role"], slot["index"]): slot["server"] for slot in document.get("slots", [])},
            refused=document.get("refused") or "",
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(workers, servers)."""
        workers = sum(slot.role == "worker" for slot in self.placed)
        return workers, len(self.placed) - workers


@dataclass(frozen=True)
class Running:
    """What a job has."""

    incarnation: int
    revision: int
    placed: Mapping[Slot, str]
    groups: Collection[tuple[Slot, ...]]


class Kind(Enum):
    """What to do."""

    KEEP = "keep"
    START = "start"
    # Workers come or go; the rest trains on.
    RESIZE = "resize"
    # The same incarnation in new groups.
    REBUILD = "rebuild"
    # Checkpoint, acknowledge, give everything back.
    LEAVE = "leave"
    END = "end"


@dataclass(frozen=True)
class Step:
    """What to do next."""

    kind: Kind
    add: frozenset[Slot] = frozenset()
    drop: frozenset[Slot] = frozenset()


def step(running: Running | None, plan: Plan) -> Step:
    """What brings a job from what it has to what is planned."""
    if plan.action in ("stop", "reject"):
        return Step(Kind.END)
    if plan.action == "release":
        return Step(Kind.KEEP)
    if plan.action == "wait":
        return Step(Kind.LEAVE if running else Kind.KEEP)
    if not running:
        return Step(Kind.KEEP if plan.refused else Kind.START)
    if plan.incarnation != running.incarnation:
        # Leave even if the next is refused: the charge is for what is planned, not for what was.
        return Step(Kind.LEAVE)
    if plan.revision == running.revision or plan.refused:
        return Step(Kind.KEEP)
    add = frozenset(plan.placed.keys() - running.placed.keys())
    drop = frozenset(running.placed.keys() - plan.placed.keys())
    moved = any(running.placed[slot] != server for slot, server in plan.placed.items() if slot in running.placed)
    servers = any(slot.role == "server" for slot in add | drop)
    # A dropped slot must have its group for itself, or the group with all in it has to go.
    stuck = any(drop & set(group) and not set(group) <= drop for group in running.groups)
    if moved or servers or stuck or not plan.placed:
        return Step(Kind.REBUILD)
    return Step(Kind.RESIZE, add, drop)
