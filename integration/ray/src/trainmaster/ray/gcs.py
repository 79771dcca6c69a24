"""What the driver reads and writes in Ray's control store. All use of Ray beyond its public interface is here."""

from __future__ import annotations

import json
import re
from typing import Any

import ray
from ray._private.state import state as cluster_state
from ray.exceptions import RayError
from ray.experimental import internal_kv

from ..errors import Refused
from .plan import Plan

NAMESPACE = "trainmaster"
# The adapter deletes what it doesn't know in the other.
CLAIMS = "trainmaster-claims"
# Drivers that claim a job in the same moment are few.
_TRIES = 100
_CLAIM = re.compile(rb"[1-9][0-9]{0,8}")
_LAST_CLAIM = 999_999_999
# How it shows that the control store doesn't answer.
AWAY = (RayError, OSError, TimeoutError)


def plan(job: int) -> Plan | None:
    """Raises `BadDocument`."""
    text = _get(f"plan/{job}")
    return Plan.read(text) if text else None


def server_node(name: str) -> str | None:
    """The Ray node of a server, by its id; None while it has none."""
    text = _get(f"server/{name}")
    return text.decode(errors="replace") if text else None


def live_nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def put_job_document(job: int, document: dict[str, Any]) -> None:
    internal_kv._internal_kv_put(f"job/{job}", json.dumps(document), True, namespace=NAMESPACE)


def driver_id() -> str:
    return str(ray.get_runtime_context().get_job_id())


def claim(job: str) -> str:
    """Makes this driver the one of a job, until it says `release` or dies. Returns what that takes.

    Each claim has a number. Where the owner of the last is dead or has let go, the next is of whoever is the first to
    write it: that the control store lets only one do. The last is never deleted, or its number could be had twice.

    Raises `Refused` while another driver has the job.
    """
    for _ in range(_TRIES):
        numbers = _numbers(job)
        last = numbers[-1] if numbers else 0
        owner = (internal_kv._internal_kv_get(f"{job}/{last}", namespace=CLAIMS) or b"").decode(errors="replace")
        # Of this very process, but no longer its own: letting go didn't reach the store.
        stale = owner == driver_id() and f"{job}/{last}" not in _claims
        if owner and not stale and _lives(owner):
            raise Refused(f"its driver (Ray job {owner}) is still alive")
        if last >= _LAST_CLAIM:
            raise Refused(f"somebody has written the claim {job}/{last}; delete it (namespace {CLAIMS})")
        mine = f"{job}/{last + 1}"
        existed = internal_kv._internal_kv_put(mine, driver_id(), False, namespace=CLAIMS)
        if not existed:
            _claims.add(mine)
            for number in numbers[-_TRIES:]:
                internal_kv._internal_kv_del(f"{job}/{number}", namespace=CLAIMS)
            return mine
    raise Refused("others claim it again and again")


def _numbers(job: str) -> list[int]:
    """Of the claims on a job; other keys that somebody wrote are none."""
    prefix = f"{job}/".encode()
    held = (bytes(key) for key in internal_kv._internal_kv_list(prefix, namespace=CLAIMS))
    return sorted(int(key.removeprefix(prefix)) for key in held if _CLAIM.fullmatch(key.removeprefix(prefix)))


def release(claim: str) -> None:
    """Lets go of a claim."""
    _claims.discard(claim)
    internal_kv._internal_kv_put(claim, "", True, namespace=CLAIMS)


# Those of this process.
_claims: set[str] = set()


def _lives(driver: str) -> bool:
    """Whether a driver, by its Ray job, still runs."""
    return any(entry["JobID"] == driver and not entry["IsDead"] for entry in cluster_state.job_table())


def _get(key: str) -> bytes | None:
    value: bytes | None = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
    return value
