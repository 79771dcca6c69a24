"""The driver's access to Ray's control store. All uses of Ray's private interface are here, except strict mode's."""

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
# A separate namespace, because the adapter deletes unknown keys from the other one.
CLAIMS = "trainmaster-claims"
# The maximum of attempts. Few drivers claim the same job at once.
_TRIES = 100
_CLAIM = re.compile(rb"[1-9][0-9]{0,8}")
_LAST_CLAIM = 999_999_999
# The exceptions raised if the control store doesn't answer.
AWAY = (RayError, OSError, TimeoutError)


def plan(job: int) -> Plan | None:
    """Reads a job's plan. Raises `BadDocument`."""
    text = _get(f"plan/{job}")
    return Plan.read(text) if text else None


def server_node(name: str) -> str | None:
    """The id of a server's Ray node. None if there is no such node."""
    text = _get(f"server/{name}")
    return text.decode(errors="replace") if text else None


def live_nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def put_job_document(job: int, document: dict[str, Any]) -> None:
    internal_kv._internal_kv_put(f"job/{job}", json.dumps(document), True, namespace=NAMESPACE)


def driver_id() -> str:
    return str(ray.get_runtime_context().get_job_id())


def claim(job: str) -> str:
    """Makes this process the driver of a job until `release`, or until its end. Returns the claim for `release`.

    Claims are numbered. If the owner of the last claim has released it or is dead, the first writer of the next number
    owns it: the control store accepts only one. The last claim is never deleted, so that no number is used twice.

    Raises `Refused` while another process is the job's driver.
    """
    for _ in range(_TRIES):
        numbers = _numbers(job)
        last = numbers[-1] if numbers else 0
        owner = (internal_kv._internal_kv_get(f"{job}/{last}", namespace=CLAIMS) or b"").decode(errors="replace")
        # A claim of this process whose release didn't reach the store.
        stale = owner == driver_id() and f"{job}/{last}" not in _claims
        if owner and not stale and _lives(owner):
            raise Refused(f"its driver (Ray job {owner}) is still alive")
        if last >= _LAST_CLAIM:
            raise Refused(f"the claim {job}/{last} has the last number; delete it (namespace {CLAIMS})")
        mine = f"{job}/{last + 1}"
        existed = internal_kv._internal_kv_put(mine, driver_id(), False, namespace=CLAIMS)
        if not existed:
            _claims.add(mine)
            for number in numbers[-_TRIES:]:
                internal_kv._internal_kv_del(f"{job}/{number}", namespace=CLAIMS)
            return mine
    raise Refused(f"{_TRIES} other claims were faster")


def _numbers(job: str) -> list[int]:
    """The numbers of a job's claims, sorted. Other keys are ignored."""
    prefix = f"{job}/".encode()
    held = (bytes(key) for key in internal_kv._internal_kv_list(prefix, namespace=CLAIMS))
    return sorted(int(key.removeprefix(prefix)) for key in held if _CLAIM.fullmatch(key.removeprefix(prefix)))


def release(claim: str) -> None:
    """Releases a claim."""
    _claims.discard(claim)
    internal_kv._internal_kv_put(claim, "", True, namespace=CLAIMS)


# The claims of this process.
_claims: set[str] = set()


def _lives(driver: str) -> bool:
    """Whether the driver with this Ray job id runs."""
    return any(entry["JobID"] == driver and not entry["IsDead"] for entry in cluster_state.job_table())


def _get(key: str) -> bytes | None:
    value: bytes | None = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
    return value
