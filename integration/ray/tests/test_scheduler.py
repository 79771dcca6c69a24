"""Strict mode's decisions and its assumptions about Ray, with Ray's own scheduler and without a cluster."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.autoscaler.v2.instance_manager.common import InstanceUtil
from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import IResourceScheduler, ResourceDemandScheduler, SchedulingReply, SchedulingRequest
from ray.autoscaler.v2.schema import AutoscalerInstance
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import NodeState, NodeStatus
from ray.core.generated.instance_manager_pb2 import Instance, NodeKind, TerminationRequest

from trainmaster.ray import monitor, scheduler
from trainmaster.ray.scheduler import STALE_MS, BadTarget, Limits, StrictScheduler, Target, differences, narrow

NOW = 1_700_000_000_000


def document(**fields: Any) -> bytes:
    return json.dumps({"v": 1, "nodes": {"edge": 2, "cloud": 0}, "keep": [], "at_ms": NOW, **fields}).encode()


def target(**nodes: int) -> Target:
    return Target(nodes, frozenset())


# Reading the target


def test_a_target_is_read() -> None:
    assert Target.read(document(keep=["ab"]), NOW) == Target({"edge": 2, "cloud": 0}, frozenset({"ab"}))
    assert str(Target.read(document(), NOW)) == "0 cloud, 2 edge"


@pytest.mark.parametrize("late", [STALE_MS, -STALE_MS])
def test_a_target_at_the_age_limit_is_read(late: int) -> None:
    assert Target.read(document(), NOW + late).nodes == {"edge": 2, "cloud": 0}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (None, ["there is none"]),
        (b"", ["there is none"]),
        (b"{", ["not JSON"]),
        (b"\xff", ["not JSON"]),
        (b"[]", ["[]", "must be an object"]),
        (document(v=2), ["version 2", "must be 1"]),
        (document(nodes=None), ["nodes: None", "count"]),
        (document(nodes={"edge": -1}), ["nodes", "-1", "0 or more"]),
        (document(nodes={"edge": 1.5}), ["nodes", "1.5"]),
        (document(nodes={"edge": True}), ["nodes", "True"]),
        (document(nodes={f"t{at}": 1 for at in range(1001)}), ["nodes", "for each of at most 1000 types"]),
        (document(nodes={"\x1b[2J": 1}), ["nodes", "names of node types"]),
        (document(keep="ab"), ["keep: 'ab'", "list"]),
        (document(keep=[1]), ["keep: [1]", "list"]),
        (document(at_ms="now"), ["at_ms: 'now'", "milliseconds"]),
        (document(at_ms=NOW - STALE_MS - 1), ["at_ms", "120 s", "daemon"]),
        (document(at_ms=NOW + STALE_MS + 1), ["at_ms", "120 s", "clocks"]),
    ],
)
def test_a_bad_target_is_refused_with_its_fault(text: bytes | None, parts: list[str]) -> None:
    with pytest.raises(BadTarget) as error:
        Target.read(text, NOW)
    assert not [word for word in parts if word not in str(error.value)], str(error.value)


# Limits from the target


@pytest.mark.parametrize(
    ("want", "live", "expected"),
    [
        (2, 0, (2, 2)),  # launch
        (2, 1, (2, 2)),
        (2, 2, (2, 2)),
        (1, 3, (1, 3)),  # a surplus node can end, but need not
        (0, 0, (0, 0)),  # other demand adds none
        (9, 1, (5, 5)),  # the site's limit stays in force
    ],
)
def test_limits_follow_the_target(want: int, live: int, expected: tuple[int, int]) -> None:
    assert narrow({"edge": Limits(0, 5)}, {"edge": live}, None, target(edge=want)) == {"edge": Limits(*expected)}


def test_the_sites_minimum_stays_in_force() -> None:
    assert narrow({"edge": Limits(2, 5)}, {}, None, target(edge=0)) == {"edge": Limits(2, 2)}


def test_a_target_cannot_exceed_the_sites_maximum() -> None:
    assert narrow({"edge": Limits(0, 2)}, {"edge": 3}, None, target(edge=3)) == {"edge": Limits(2, 2)}


def test_types_without_a_target_are_left_alone() -> None:
    assert narrow({"edge": Limits(0, 5), "other": Limits(0, 5)}, {}, None, target(edge=1, gone=3)) == {
        "edge": Limits(1, 1)
    }


def test_all_types_share_the_remaining_room() -> None:
    site = {"cloud": Limits(0, 5), "edge": Limits(0, 5)}
    assert narrow(site, {"cloud": 1}, 3, target(cloud=3, edge=3)) == {"cloud": Limits(3, 3), "edge": Limits(1, 1)}
    assert narrow(site, {"cloud": 1}, -1, target(cloud=3, edge=3)) == {"cloud": Limits(1, 1), "edge": Limits(0, 0)}


# Limits in Ray's scheduler

_TYPES = {
    "head": NodeTypeConfig(name="head", min_worker_nodes=0, max_worker_nodes=1, resources={"CPU": 0}),
    "edge": NodeTypeConfig(name="edge", min_worker_nodes=0, max_worker_nodes=4, resources={"CPU": 2, "GPU": 1}),
    "cloud": NodeTypeConfig(name="cloud", min_worker_nodes=0, max_worker_nodes=4, resources={"CPU": 4}),
    "other": NodeTypeConfig(name="other", min_worker_nodes=0, max_worker_nodes=4, resources={"CPU": 1, "disk": 1}),
}


def instance(
    number: int, node_type: str, status: int, *, idle_s: int = 0, kind: int = NodeKind.WORKER
) -> AutoscalerInstance:
    known = Instance(instance_id=f"i{number}", instance_type=node_type, status=status)
    if status in (Instance.QUEUED, Instance.REQUESTED):
        # Ray doesn't know the kind of such a node yet.
        return AutoscalerInstance(im_instance=known)
    known.cloud_instance_id, known.node_kind = f"c{number}", kind
    if status != Instance.RAY_RUNNING:
        return AutoscalerInstance(im_instance=known, cloud_instance_id=known.cloud_instance_id)
    node = NodeState(
        node_id=bytes([number]),
        instance_id=known.cloud_instance_id,
        ray_node_type_name=node_type,
        status=NodeStatus.IDLE if idle_s else NodeStatus.RUNNING,
        idle_duration_ms=idle_s * 1000,
        total_resources=_TYPES[node_type].resources,
        available_resources=_TYPES[node_type].resources,
    )
    known.node_id = node.node_id.hex()
    return AutoscalerInstance(im_instance=known, cloud_instance_id=known.cloud_instance_id, ray_node=node)


HEAD = instance(0, "head", Instance.RAY_RUNNING, kind=NodeKind.HEAD)


def schedule(
    written: bytes | None,
    *instances: AutoscalerInstance,
    demand: dict[str, float] | None = None,
    most: int | None = 9,
) -> tuple[dict[str, int], set[str], SchedulingReply]:
    """Runs the scheduler once. Returns the numbers of launched nodes by type, the ended instances, and the reply."""
    requests = [ResourceRequestUtil.make(demand)] if demand else []
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=_TYPES,
        max_num_nodes=most,
        idle_timeout_s=60,
        resource_requests=ResourceRequestUtil.group_by_count(requests),
        current_instances=[HEAD, *instances],
    )
    before = dataclasses.replace(request)
    reply = StrictScheduler(ResourceDemandScheduler(), lambda: written).schedule(request)
    assert request == before, "Ray's own objects must not change"
    launched = {entry.instance_type: entry.count for entry in reply.to_launch}
    return launched, {entry.instance_id for entry in reply.to_terminate}, reply


def now(**fields: Any) -> bytes:
    return document(at_ms=time.time_ns() // 1_000_000, **fields)


def test_planned_nodes_are_launched() -> None:
    launched, ended, _ = schedule(now(nodes={"edge": 2, "cloud": 1}))
    assert (launched, ended) == ({"edge": 2, "cloud": 1}, set())


@pytest.mark.parametrize(
    "status", [Instance.QUEUED, Instance.REQUESTED, Instance.ALLOCATED, Instance.RAY_INSTALLING, Instance.RAY_RUNNING]
)
def test_starting_nodes_are_not_launched_again(status: int) -> None:
    launched, ended, _ = schedule(now(), instance(1, "edge", status), instance(2, "edge", status))
    assert (launched, ended) == ({}, set())


@pytest.mark.parametrize(
    "status", [Instance.RAY_STOPPED, Instance.TERMINATING, Instance.TERMINATED, Instance.ALLOCATION_FAILED]
)
def test_ended_nodes_are_replaced_and_not_ended_again(status: int) -> None:
    launched, ended, _ = schedule(now(), instance(1, "edge", status), instance(2, "edge", Instance.RAY_RUNNING))
    assert (launched, ended) == ({"edge": 1}, set())


def test_unplanned_idle_nodes_end() -> None:
    idle, fresh = instance(1, "edge", Instance.RAY_RUNNING, idle_s=61), instance(2, "edge", Instance.RAY_RUNNING)
    launched, ended, reply = schedule(now(nodes={"edge": 1, "cloud": 0}), idle, fresh)
    assert (launched, ended) == ({}, {"i1"})
    # By a drain, which Ray refuses if new work has started.
    assert [entry.cause for entry in reply.to_terminate] == [TerminationRequest.Cause.IDLE]


def test_nodes_in_use_stay() -> None:
    nodes = [instance(number, "edge", Instance.RAY_RUNNING) for number in (1, 2, 3)]
    launched, ended, _ = schedule(now(nodes={"edge": 0}), *nodes)
    assert (launched, ended) == ({}, set())


def test_a_planned_node_does_not_end() -> None:
    longest, other = (
        instance(number, "edge", Instance.RAY_RUNNING, idle_s=idle) for number, idle in ((1, 500), (2, 100))
    )
    assert schedule(now(nodes={"edge": 1}), longest, other)[1] == {"i1"}
    assert schedule(now(nodes={"edge": 1}, keep=["01"]), longest, other)[1] == {"i2"}


def test_other_demand_adds_no_planned_types() -> None:
    written = now(nodes={"edge": 0, "cloud": 0})
    launched, _, reply = schedule(written, demand={"GPU": 1})
    assert launched == {}
    assert [dict(request.resources_bundle) for request in reply.infeasible_resource_requests] == [{"GPU": 1.0}]
    assert schedule(written, demand={"disk": 1})[0] == {"other": 1}


def test_the_clusters_limit_stays_in_force(caplog: pytest.LogCaptureFixture) -> None:
    launched, ended, _ = schedule(now(nodes={"edge": 3, "cloud": 2}), instance(1, "edge", Instance.QUEUED), most=4)
    assert (launched, ended) == ({"edge": 2}, set())
    assert "the cluster's configuration allows less: 0 of 2 cloud" in caplog.text


def test_an_unknown_type_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert schedule(now(nodes={"edge": 1, "egde": 1}))[0] == {"edge": 1}
    assert "egde: not in available_node_types" in caplog.text


@pytest.mark.parametrize("written", [None, b"{", document()])
def test_without_a_good_target_ray_decides(written: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    assert schedule(written, demand={"GPU": 1})[0] == {"edge": 1}
    assert "Ray's own scheduler decides" in caplog.text


def test_an_unreachable_store_counts_as_a_bad_target(caplog: pytest.LogCaptureFixture) -> None:
    def fetch() -> bytes:
        raise TimeoutError

    request = SchedulingRequest(disable_launch_config_check=True, node_type_configs=_TYPES, current_instances=[HEAD])
    StrictScheduler(ResourceDemandScheduler(), fetch).schedule(request)
    assert "doesn't answer (TimeoutError)" in caplog.text


def test_each_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    written = [None, None, now(nodes={"edge": 1}), now(nodes={"edge": 1}), now(nodes={"edge": 2}), None]
    strict = StrictScheduler(ResourceDemandScheduler(), lambda: written.pop(0))
    request = SchedulingRequest(disable_launch_config_check=True, node_type_configs=_TYPES, current_instances=[HEAD])
    while written:
        strict.schedule(request)
    messages = [record.getMessage() for record in caplog.records if record.name == scheduler.__name__]
    assert [text.partition(" ")[0] for text in messages] == ["Ray's", "target:", "target:", "Ray's"], messages


# Assumptions about Ray


def test_this_ray_has_no_differences() -> None:
    assert differences() == []


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (
            SchedulingRequest,
            "disable_launch_config_check node_type_configs max_num_nodes idle_timeout_s pending_idle_timeout_s "
            "resource_requests gang_resource_requests cluster_resource_constraints current_instances "
            "cloud_resource_availabilities recoverable_resource_availabilities ippr_specs ippr_statuses",
        ),
        (
            SchedulingReply,
            "to_launch to_ippr to_terminate cluster_resources infeasible_resource_requests "
            "infeasible_gang_resource_requests infeasible_cluster_resource_constraints",
        ),
        (
            NodeTypeConfig,
            "name min_worker_nodes max_worker_nodes idle_timeout_s priority resources labels launch_config_hash",
        ),
        (AutoscalerInstance, "cloud_instance_id ray_node im_instance"),
    ],
)
def test_rays_classes_have_the_known_fields(kind: Any, fields: str) -> None:
    """A new field may be a limit that strict mode has to respect: check it, then add it here."""
    assert [field.name for field in dataclasses.fields(kind)] == fields.split()


def test_the_states_of_instances_are_the_known_ones() -> None:
    """Each state counts as a node or doesn't. A new state needs a decision."""
    counted = {
        name
        for name, number in Instance.InstanceStatus.items()
        if number != Instance.UNKNOWN and InstanceUtil.is_ray_running_reachable(number)
    }
    starting = {"QUEUED", "REQUESTED", "ALLOCATED", "RAY_INSTALLING"}
    assert counted == starting | {"RAY_RUNNING", "RAY_STOP_REQUESTED"}
    ending = {"RAY_STOPPING", "RAY_STOPPED", "TERMINATING", "TERMINATED", "TERMINATION_FAILED"}
    failed = {"ALLOCATION_FAILED", "ALLOCATION_TIMEOUT", "RAY_INSTALL_FAILED"}
    assert set(Instance.InstanceStatus.keys()) - counted == ending | failed | {"UNKNOWN"}


@pytest.mark.parametrize("version", ["2.59.0", "2.61.0", "3.0.0.dev0"])
def test_another_version_is_a_difference(version: str) -> None:
    assert [version in text and "2.60" in text for text in differences(version)] == [True]


def test_a_changed_interface_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Renamed:
        min_workers: int

    monkeypatch.setattr(scheduler, "_CLASSES", {Renamed: {"min_worker_nodes"}, int: {"status"}})
    monkeypatch.setattr(scheduler, "_MESSAGES", {NodeState: {"node_id", "name"}})
    monkeypatch.setattr(scheduler, "_COUNTED", {"QUEUED": False, "ASLEEP": True})
    monkeypatch.setattr(IResourceScheduler, "__abstractmethods__", frozenset({"schedule", "plan"}))
    assert differences() == [
        "IResourceScheduler has ['plan', 'schedule'], not only schedule",
        "Renamed has no field min_worker_nodes",
        "int has no field status",
        "NodeState has no field name",
        "instances that are QUEUED are counted",
        "instances that are ASLEEP aren't counted any more",
    ]


def test_the_monitor_gets_the_strict_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(rays: Any) -> Any:
        client = SimpleNamespace(internal_kv_get=lambda key, namespace, timeout: (key, namespace))
        return SimpleNamespace(autoscaler=SimpleNamespace(_scheduler=rays), gcs_client=client)

    rays = ResourceDemandScheduler()
    one = made(rays)
    assert monitor.replace_scheduler(one) == []
    assert one.autoscaler._scheduler._rays is rays
    assert one.autoscaler._scheduler._fetch() == (b"request", b"trainmaster")

    assert monitor.replace_scheduler(made(None)) == ["Autoscaler has no _scheduler"]
    monkeypatch.setattr(scheduler, "TESTED", ("1.0",))
    other = made(rays)
    assert "tested: 1.0" in monitor.replace_scheduler(other)[0]
    assert other.autoscaler._scheduler is rays


def test_the_monitor_names_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        monitor.main([f"--autoscaling-config={tmp_path}/none.yaml"])
    assert f"--autoscaling-config: '{tmp_path}/none.yaml' must be a file" in capsys.readouterr().err
