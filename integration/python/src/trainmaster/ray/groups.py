"""Placement groups: one for the slots that stay together, and one for each worker that can be dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ..job import Job
from .slots import RoleName, Slot, group_name

# Ray doesn't count these resources. The daemon does.
_NOT_RAYS = ("disk", "bandwidth")


def bundle(job: Job, role: RoleName) -> dict[str, float]:
    """A slot's demand as Ray's resources."""
    spec = job.worker if role == "worker" else job.server
    assert spec, "a plan has servers only for jobs with servers"
    resources: dict[str, float] = {}
    for name, value in spec.demand(role).items():
        if not value or name in _NOT_RAYS:
            continue
        if name == "memory":
            resources["memory"] = float(value << 20)
        else:
            ray_name = "GPU" if name.startswith("gpu") else "CPU" if name == "cpu" else name
            resources[ray_name] = value / 1000
    return resources


def actor_options(job: Job, role: RoleName) -> dict[str, Any]:
    """A slot's demand as options of its actor, which takes no resources outside its bundle."""
    resources = bundle(job, role)
    options: dict[str, Any] = {"num_cpus": resources.pop("CPU", 0), "num_gpus": resources.pop("GPU", 0)}
    if memory := resources.pop("memory", 0):
        options["memory"] = memory
    return {**options, "resources": resources}


@dataclass(frozen=True)
class Group:
    """A placement group with its slots, in the order of its bundles."""

    slots: tuple[Slot, ...]
    handle: PlacementGroup

    @classmethod
    def make(
        cls, job: Job, number: int, incarnation: int, revision: int, slots: tuple[Slot, ...], nodes: Mapping[Slot, str]
    ) -> Group:
        handle = placement_group(
            [bundle(job, slot.role) for slot in slots],
            name=group_name(number, incarnation, revision, slots),
            bundle_label_selector=[{"ray.io/node-id": nodes[slot]} for slot in slots],
        )
        return cls(slots, handle)

    @property
    def state(self) -> str:
        """PENDING, PREPARED, CREATED, RESCHEDULING or REMOVED."""
        return str(placement_group_table(self.handle).get("state", "REMOVED"))

    def actor(self, slot: Slot, kind: type, job: Job, factory: Callable[[], Any], env: dict[str, Any] | None) -> Any:
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self.handle, placement_group_bundle_index=self.slots.index(slot)
        )
        options = actor_options(job, slot.role) | {"scheduling_strategy": strategy, "max_restarts": 0}
        if env:
            options["runtime_env"] = env
        return ray.remote(kind).options(**options).remote(factory)

    def remove(self) -> None:
        """Removes the group, which ends its actors."""
        remove_placement_group(self.handle)
