"""Nodes start and end as jobs need them, on a real Ray with its v2 autoscaler."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainmaster.testing import PATIENCE, Daemon, wait_for

from .autoscaling import AutoscalingCluster, NodeType
from .conftest import LONG, Run

pytestmark = pytest.mark.cluster

EDGE = NodeType(cpus=2, gpus=2, labels={"tier": "edge"}, most=1)
CLOUD = NodeType(cpus=4, gpus=0, labels={"tier": "cloud"}, most=1)
TYPES = {"edge": EDGE, "cloud": CLOUD}

FALLBACK = "Ray's own scheduler decides, because the target is invalid"

# Another user's program.
OTHER = """
import ray
from ray.autoscaler.sdk import request_resources

ray.init()
request_resources(bundles=[{"CPU": 1}])
"""


def slot(*asked: NodeType) -> Counter[Any]:
    """A request for whole nodes."""
    return Counter(
        (frozenset(node_type.resources().items()), frozenset(node_type.labels.items())) for node_type in asked
    )


def target(**nodes: int) -> bytes:
    """The adapter's document for strict mode."""
    return json.dumps({"v": 1, "nodes": nodes, "at_ms": time.time_ns() // 1_000_000}).encode()


def has(cluster: AutoscalingCluster, **nodes: int) -> bool:
    """Whether the cluster has the nodes of this target, which is written anew as the daemon does, or it grows stale."""
    cluster.put_key("request", target(**nodes))
    return cluster.added() == +Counter(nodes)


def test_strict_mode_has_exactly_the_planned_nodes(binary: str, tmp_path: Path) -> None:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with AutoscalingCluster(TYPES, strict=True) as cluster:
        wait_for("Ray's own scheduler", lambda: "there is none" in cluster.monitor_log.read_text())
        wait_for("the node", lambda: has(cluster, edge=1, cloud=0), PATIENCE)
        cluster.ask({"CPU": 4})
        wait_for("the demand to be refused", lambda: has(cluster, edge=1, cloud=0) and cluster.infeasible())
        assert cluster.added() == {"edge": 1}
        wait_for("the other node", lambda: has(cluster, edge=0, cloud=1), PATIENCE)
        # Without a valid target, Ray decides: nothing requests the node.
        cluster.ask()
        cluster.put_key("request", b"{")
        wait_for("the node to go", lambda: not cluster.added())
        assert logged(cluster) == [FALLBACK, "target", "target", FALLBACK]

        # The same with the daemon's document.
        daemon = cluster.serve()
        run = Run(cluster, daemon, tmp_path, "strict", gpu=1, workers=(1, 1, 1), epochs=8, seconds=0.1)
        assert wait_for("the job to end", run.document, PATIENCE)["result"]["epoch"] == 8
        wait_for("the node to go", lambda: not cluster.added())
        assert set(logged(cluster)[4:]) == {"target"}
        daemon.end()


def logged(cluster: AutoscalingCluster) -> list[str]:
    """The beginnings of the monitor's log lines about its target."""
    lines = [line for line in cluster.monitor_log.read_text().splitlines() if "trainmaster.ray.scheduler" in line]
    return [line.partition(" -- ")[2].partition(":")[0] for line in lines]


@pytest.fixture(scope="module")
def scaling(binary: str) -> Iterator[AutoscalingCluster]:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with AutoscalingCluster(TYPES) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def daemon(scaling: AutoscalingCluster) -> Iterator[Daemon]:
    daemon = scaling.serve()
    yield daemon
    daemon.end()


def test_three_jobs_share_the_request(scaling: AutoscalingCluster, daemon: Daemon, tmp_path: Path) -> None:
    options: dict[str, Any] = {"workers": (1, 1, 1), "epochs": 8, "seconds": LONG}
    runs = [
        Run(scaling, daemon, tmp_path, "sync", gpu=1, **options),
        Run(scaling, daemon, tmp_path, "async", gpu=1, mode="async", **options),
        Run(scaling, daemon, tmp_path, "reduce", gpu=0, cpu=3, mode="allreduce", **options),
    ]
    wait_for("a request for all", lambda: scaling.slot() == slot(EDGE, CLOUD))
    wait_for("nodes for all", lambda: set(scaling.added()) == {"edge", "cloud"}, PATIENCE)
    for run in runs:
        run.hurry(0.05)

    def ends() -> list[dict[str, Any]]:
        found = [document for run in runs if (document := run.document())]
        return found if len(found) == len(runs) else []

    documents = wait_for("the jobs to end", ends, PATIENCE)
    assert [document.get("result", document).get("epoch") for document in documents] == [8, 8, 8], documents
    wait_for("the nodes to go", lambda: not scaling.added())
    assert not scaling.slot()


def test_an_overwritten_request_of_the_adapter_is_restored(
    scaling: AutoscalingCluster, daemon: Daemon, tmp_path: Path
) -> None:
    run = Run(scaling, daemon, tmp_path, "steady", gpu=0, cpu=3, mode="allreduce", workers=(1, 1, 1), epochs=10_000)
    wait_for("training", lambda: list(tmp_path.glob("steady/*/checkpoint-*")), PATIENCE)
    assert scaling.slot() == slot(CLOUD)
    node = scaling.added_ids()
    assert scaling.script(OTHER).wait() == 0
    wait_for("the warning", lambda: "somebody else asked the autoscaler" in daemon.log.read_text())
    wait_for("the request", lambda: scaling.slot() == slot(CLOUD))
    assert scaling.added_ids() == node
    daemon.jobs().cancel("steady")
    assert "cancelled" in wait_for("its end", run.document)["error"]
    wait_for("the node to go", lambda: not scaling.added() and not scaling.slot())
