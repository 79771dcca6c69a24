"""Strict mode's scheduler: of the planned node types, the cluster has exactly the nodes that Trainmaster's plans need.

Ray's own scheduler still decides which nodes start and end, in its order and after its idle timeouts. It gets narrower
limits: at least the planned number of nodes of a type, and at most that number or the existing one. So other demand
adds no such nodes, and no node in use or in a plan is ended. Ray decides on other types alone.

The scheduler uses Ray's private interface. `differences` lists the differences between the installed Ray and the tested
one.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import ray
from ray.autoscaler.v2.instance_manager.common import InstanceUtil
from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import IResourceScheduler, SchedulingReply, SchedulingRequest
from ray.autoscaler.v2.schema import AutoscalerInstance
from ray.core.generated.autoscaler_pb2 import NodeState
from ray.core.generated.instance_manager_pb2 import Instance

from ..text import is_name, printable
from .document import BadDocument, brief, decode, is_count

# Four times the interval at which the adapter writes the target.
STALE_MS = 120_000
TESTED = ("2.60",)

_VERSION = 1
# The maximum of bytes of the document `request`: room for the ids of 70,000 nodes.
_LONGEST = 4 << 20
_MOST_TYPES = 1000
_LOG = logging.getLogger(__name__)


class BadTarget(ValueError):
    """There is no valid target. Equal faults have equal messages."""


@dataclass(frozen=True)
class Target:
    """The nodes that all jobs' plans need, from the adapter's document `request`."""

    # The target number of nodes, by type, for all types that Trainmaster plans with.
    nodes: Mapping[str, int]
    # Ray's ids (hex) of planned nodes. They stay even if they are idle.
    keep: frozenset[str]

    @classmethod
    def read(cls, text: bytes | None, now_ms: int) -> Target:
        """Reads the target. Raises `BadTarget` if it is missing, invalid or stale: any user of the cluster can write
        it.
        """
        if not text:
            raise BadTarget("there is none; is the daemon running, with an adapter for this cluster?")
        try:
            document = decode(text, _LONGEST)
        except BadDocument as fault:
            raise BadTarget(str(fault)) from None
        if document.get("v") != _VERSION:
            raise BadTarget(f"version {brief(document.get('v'))} must be {_VERSION}; package and daemon must match")
        nodes, keep, at = document.get("nodes"), document.get("keep", []), document.get("at_ms")
        if not isinstance(nodes, dict) or len(nodes) > _MOST_TYPES or not all(map(is_count, nodes.values())):
            raise BadTarget(
                f"nodes: {brief(nodes)} must have a count of nodes, 0 or more, for each of at most {_MOST_TYPES} types"
            )
        if not all(map(is_name, nodes)):
            raise BadTarget(f"nodes: {brief(nodes)} must have the names of node types")
        if not isinstance(keep, list) or not all(isinstance(node, str) for node in keep):
            raise BadTarget(f"keep: {brief(keep)} must be a list of node ids")
        if not is_count(at, 2**63):
            raise BadTarget(f"at_ms: {brief(at)} must be the time of writing, in milliseconds since 1970")
        if abs(now_ms - at) > STALE_MS:
            raise BadTarget(
                f"at_ms: {at} is more than {STALE_MS // 1000} s from this machine's time; "
                "is the daemon alive, and do the clocks agree?"
            )
        return cls(nodes, frozenset(keep))

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in sorted(self.nodes.items())) or "no node types"


@dataclass(frozen=True)
class Limits:
    """The bounds of the number of nodes of a type."""

    least: int
    most: int


def narrow(site: Mapping[str, Limits], live: Mapping[str, int], room: int | None, target: Target) -> dict[str, Limits]:
    """Limits that bring about the target, for its node types.

    `site` has the limits of the cluster's configuration, which stay in force. `live` is the number of running and
    starting nodes. `room` is the number of nodes that can be added over all types. Only the target can increase the
    nodes of a type. A surplus node stays within the limits, because Ray would end it at once even if it were in use. It
    ends when it is idle.

    >>> target = Target({"edge": 2, "cloud": 9}, frozenset())
    >>> narrow({"edge": Limits(0, 8), "cloud": Limits(1, 2)}, {"edge": 3}, None, target)
    {'edge': Limits(least=2, most=3), 'cloud': Limits(least=2, most=2)}
    """
    narrowed = {}
    for name, limits in site.items():
        if name not in target.nodes:
            continue
        have = live.get(name, 0)
        least = min(max(target.nodes[name], limits.least), limits.most)
        if room is not None and least > have:
            least = min(least, have + max(room, 0))
            room -= least - have
        narrowed[name] = Limits(least, min(max(least, have), limits.most))
    return narrowed


class StrictScheduler(IResourceScheduler):  # type: ignore[misc]
    """Follows the target while it is valid. Otherwise it logs the reason, and Ray's scheduler decides."""

    def __init__(self, rays: Any, fetch: Callable[[], bytes | None]) -> None:
        """`rays` is Ray's own scheduler. `fetch` reads the document `request`."""
        self._rays = rays
        self._fetch = fetch
        self._logged = ""

    def schedule(self, request: SchedulingRequest) -> SchedulingReply:
        try:
            target = Target.read(self._read(), time.time_ns() // 1_000_000)
        except BadTarget as fault:
            self._log_once(logging.WARNING, f"Ray's own scheduler decides, because the target is invalid: {fault}")
            return self._rays.schedule(request)
        limits = limits_for(request, target)
        short = [
            f"{limits[name].least} of {count} {name}" if name in limits else f"{name}: not in available_node_types"
            for name, count in sorted(target.nodes.items())
            if name not in limits or limits[name].least < count
        ]
        if short:
            self._log_once(
                logging.WARNING, f"target: {target}; the cluster's configuration allows less: {', '.join(short)}"
            )
        else:
            self._log_once(logging.INFO, f"target: {target}")
        return self._rays.schedule(narrowed(request, limits, target.keep))

    def _read(self) -> bytes | None:
        try:
            return self._fetch()
        # Without a target, Ray decides, so that any exception of Ray is caught.
        except Exception as error:
            raise BadTarget(f"Ray's key-value store doesn't answer ({type(error).__name__})") from error

    def _log_once(self, level: int, text: str) -> None:
        """Logs a text if it differs from the last one, because this runs every second."""
        if text != self._logged:
            self._logged = text
            _LOG.log(level, "%s", printable(text))


def limits_for(request: SchedulingRequest, target: Target) -> dict[str, Limits]:
    """The limits of `narrow` for a request of Ray."""
    configs = request.node_type_configs
    site = {name: Limits(config.min_worker_nodes, config.max_worker_nodes) for name, config in configs.items()}
    live = Counter(
        entry.im_instance.instance_type
        for entry in request.current_instances
        # Counts as Ray does. The list also has nodes that end or have ended.
        if entry.im_instance is not None and InstanceUtil.is_ray_running_reachable(entry.im_instance.status)
    )
    # Both numbers include the head.
    room = None if request.max_num_nodes is None else request.max_num_nodes - live.total()
    return narrow(site, live, room, target)


def narrowed(request: SchedulingRequest, limits: Mapping[str, Limits], keep: Set[str]) -> SchedulingRequest:
    """The request with these limits, in which the nodes in `keep` are not idle."""
    configs = {
        name: dataclasses.replace(config, min_worker_nodes=limits[name].least, max_worker_nodes=limits[name].most)
        if name in limits
        else config
        for name, config in request.node_type_configs.items()
    }
    instances = [
        _busy(entry) if entry.ray_node is not None and entry.ray_node.node_id.hex() in keep else entry
        for entry in request.current_instances
    ]
    return dataclasses.replace(request, node_type_configs=configs, current_instances=instances)


def _busy(instance: AutoscalerInstance) -> AutoscalerInstance:
    node = NodeState()
    node.CopyFrom(instance.ray_node)
    node.idle_duration_ms = 0
    return dataclasses.replace(instance, ray_node=node)


# The used fields of Ray's data classes and messages.
_CLASSES: Mapping[Any, Set[str]] = {
    SchedulingRequest: {"node_type_configs", "current_instances", "max_num_nodes"},
    NodeTypeConfig: {"min_worker_nodes", "max_worker_nodes"},
    AutoscalerInstance: {"im_instance", "ray_node"},
}
_MESSAGES: Mapping[Any, Set[str]] = {
    Instance: {"instance_type", "status"},
    NodeState: {"node_id", "idle_duration_ms"},
}
# Whether Ray counts a node in this state.
_COUNTED = {
    "QUEUED": True,
    "REQUESTED": True,
    "ALLOCATED": True,
    "RAY_INSTALLING": True,
    "RAY_RUNNING": True,
    "RAY_STOPPED": False,
    "TERMINATING": False,
    "TERMINATED": False,
}


def differences(version: str = ray.__version__) -> list[str]:
    """The differences from the tested Ray. Empty if this Ray's scheduler can be replaced."""
    found = []
    if version.split(".")[:2] not in [tested.split(".") for tested in TESTED]:
        found.append(f"Ray is {version}; tested: {', '.join(TESTED)}")
    if IResourceScheduler.__abstractmethods__ != {"schedule"}:
        found.append(f"IResourceScheduler has {sorted(IResourceScheduler.__abstractmethods__)}, not only schedule")
    for kind, names in _CLASSES.items():
        has = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
        found += [f"{kind.__name__} has no field {name}" for name in sorted(names - has)]
    for kind, names in _MESSAGES.items():
        found += [
            f"{kind.__name__} has no field {name}" for name in sorted(names - set(kind.DESCRIPTOR.fields_by_name))
        ]
    for name, counted in _COUNTED.items():
        status = getattr(Instance, name, None)
        if status is None or InstanceUtil.is_ray_running_reachable(status) != counted:
            found.append(f"instances that are {name} " + ("aren't counted any more" if counted else "are counted"))
    return found
