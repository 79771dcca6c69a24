"""The adapter's plan for a job, the next step of a running job towards it, and the answer to it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..text import is_name, printable
from .document import BadDocument, brief, decode, is_count
from .slots import Slot, write

VERSION = 1
# The maximum of bytes of a plan.
LONGEST = 16 << 20
# The adapter's limit.
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
    placed: Mapping[Slot, str]  # the name of each slot's server
    refused: str = ""

    @classmethod
    def read(cls, text: bytes) -> Plan:
        """Reads a plan. Raises `BadDocument`: any user of the cluster can write the document."""
        document = decode(text, LONGEST)
        if document.get("v") != VERSION:
            version = brief(document.get("v"))
            raise BadDocument(f"version {version} must be {VERSION}; install matching versions of package and daemon")
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
            raise BadDocument("slots: must have a worker to run")
        return plan

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of workers and parameter servers."""
        workers = sum(slot.role == "worker" for slot in self.placed)
        return workers, len(self.placed) - workers


@dataclass(frozen=True)
class Running:
    """The current state of a job."""

    incarnation: int
    revision: int
    placed: Mapping[Slot, str]
    groups: Collection[tuple[Slot, ...]]


def job_document(
    name: str,
    driver: str,
    phase: str,
    message: str,
    running: Running | None,
    incarnation: int,
    *,
    on_driver_death: str = "cancel",
    refused: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document `job/<number>`, for the adapter. `incarnation` is the last one that ran, if nothing runs."""
    return {
        "v": VERSION,
        "name": name,
        "driver": driver,
        "on_driver_death": on_driver_death,
        "phase": phase,
        "message": message,
        "running": {
            "incarnation": running.incarnation if running else incarnation,
            "revision": running.revision if running else 0,
            "slots": write(running.placed) if running else "",
        },
        "refused": refused,
    }


def _text(document: Mapping[str, Any], key: str) -> str:
    """A text for users; empty if it is null."""
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
    """The kind of a step."""

    KEEP = "keep"
    START = "start"
    # Adds or drops workers, while the others train on.
    RESIZE = "resize"
    # Starts the same incarnation in new groups.
    REBUILD = "rebuild"
    # Saves a checkpoint, acknowledges and gives all slots back.
    LEAVE = "leave"
    END = "end"


@dataclass(frozen=True)
class Step:
    """A step, with the slots to add and to drop."""

    kind: Kind
    add: frozenset[Slot] = frozenset()
    drop: frozenset[Slot] = frozenset()


def step(running: Running | None, plan: Plan) -> Step:
    """The next step of a job from its current state to the plan."""
    if plan.action in ("stop", "reject"):
        return Step(Kind.END)
    if plan.action == "release":
        return Step(Kind.KEEP)
    if plan.action == "wait":
        return Step(Kind.LEAVE if running else Kind.KEEP)
    if not running:
        return Step(Kind.KEEP if plan.refused else Kind.START)
    if plan.incarnation != running.incarnation:
        # The job leaves even if the next incarnation is refused: it is charged for the planned one, not for the old
        # one.
        return Step(Kind.LEAVE)
    if plan.revision == running.revision or plan.refused:
        return Step(Kind.KEEP)
    add = frozenset(plan.placed.keys() - running.placed.keys())
    drop = frozenset(running.placed.keys() - plan.placed.keys())
    moved = any(running.placed[slot] != server for slot, server in plan.placed.items() if slot in running.placed)
    servers = any(slot.role == "server" for slot in add | drop)
    # A dropped slot needs a group that contains only dropped slots. Otherwise the job needs new groups.
    stuck = any(drop & set(group) and not set(group) <= drop for group in running.groups)
    if moved or servers or stuck or not plan.placed:
        return Step(Kind.REBUILD)
    return Step(Kind.RESIZE, add, drop)
