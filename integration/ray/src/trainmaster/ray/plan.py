"""What the adapter says and what that means for a job that runs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..text import is_name, printable
from .document import BadDocument, brief, decode, is_count
from .slots import Slot

VERSION = 1
# Bytes of a plan.
LONGEST = 16 << 20
# As the adapter has it.
_MOST_SLOTS = 65_536
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
    def read(cls, text: bytes) -> Plan:
        """Raises `BadDocument`: anybody on the cluster may have written it."""
        document = decode(text, LONGEST)
        if document.get("v") != VERSION:
            version = brief(document.get("v"))
            raise BadDocument(f"version {version} must be {VERSION}; package and daemon don't fit")
        if document.get("action") not in ACTIONS:
            raise BadDocument(f"action: {brief(document.get('action'))} must be one of {', '.join(ACTIONS)}")
        plan = cls(
            name=_text(document, "name"),
            decision=_count(document, "decision", 2**64 - 1),
            action=document["action"],
            incarnation=_count(document, "incarnation"),
            revision=_count(document, "revision"),
            reason=_text(document, "reason"),
            placed=_placed(document.get("slots", [])),
            refused=_text(document, "refused"),
        )
        if plan.action == "run" and not plan.shape[0]:
            raise BadDocument("slots: a run needs a worker")
        return plan

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


def _text(document: Mapping[str, Any], key: str) -> str:
    """For people; nothing where it is null."""
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        raise BadDocument(f"{key}: {brief(value)} must be text")
    return printable(value or "")


def _count(document: Mapping[str, Any], key: str, most: int = 2**32 - 1) -> int:
    value = document.get(key, 0)
    if not is_count(value, most):
        raise BadDocument(f"{key}: {brief(value)} must be a whole number from 0 to {most}")
    return value


def _placed(slots: object) -> dict[Slot, str]:
    if not isinstance(slots, list) or len(slots) > _MOST_SLOTS:
        raise BadDocument(f"slots: {brief(slots)} must be a list of at most {_MOST_SLOTS}")
    placed: dict[Slot, str] = {}
    for slot in slots:
        match slot:
            case {"role": "worker" | "server" as role, "index": index, "server": server} if is_count(index) and is_name(
                server
            ):
                placed[Slot(role, index)] = server
            case _:
                raise BadDocument(
                    f"slots: {brief(slot)} must have role (worker or server), index, and server (a node's name)"
                )
    return placed


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
