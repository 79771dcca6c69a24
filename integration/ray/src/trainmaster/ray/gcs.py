"""What the driver reads and writes in Ray's control store. All use of Ray beyond its public interface is here."""

from __future__ import annotations

import json
from typing import Any

import ray
from ray._private.state import state as cluster_state
from ray.experimental import internal_kv

from .plan import Plan

NAMESPACE = "trainmaster"


def plan(job: int) -> Plan | None:
    text = _get(f"plan/{job}")
    return Plan.read(text) if text else None


def server_node(name: str) -> str | None:
    """The Ray node of a server, by its id; None while it has none."""
    text = _get(f"server/{name}")
    return text.decode() if text else None


def live_nodes() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def job_document(job: int) -> dict[str, Any] | None:
    text = _get(f"job/{job}")
    return json.loads(text) if text else None


def put_job_document(job: int, document: dict[str, Any]) -> None:
    internal_kv._internal_kv_put(f"job/{job}", json.dumps(document), True, namespace=NAMESPACE)


def driver_id() -> str:
    return str(ray.get_runtime_context().get_job_id())


def driver_lives(driver: str) -> bool:
    """Whether a driver, by its Ray job, still runs."""
    return any(entry["JobID"] == driver and not entry["IsDead"] for entry in cluster_state.job_table())


def _get(key: str) -> bytes | None:
    value: bytes | None = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
    return value
