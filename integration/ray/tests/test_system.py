"""The whole system: drivers, Ray, and the daemon with its decisions."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from trainmaster.channel import Jobs
from trainmaster.testing import PATIENCE, Daemon, wait_for

from .conftest import LONG, Run, forget
from .local_cluster import Cluster

pytestmark = pytest.mark.cluster


@pytest.fixture
def daemon(cluster: Cluster) -> Iterator[Daemon]:
    daemon = cluster.serve()
    yield daemon
    daemon.end()
    forget()


@pytest.fixture
def jobs(daemon: Daemon) -> Iterator[Jobs]:
    jobs = daemon.jobs()
    yield jobs
    # The daemon waits for open connections.
    jobs.close()


def running(jobs: Jobs, name: str) -> Any:
    status = jobs.find(name)
    return status if status and status.state == "running" and status.step else None


def ended(jobs: Jobs, name: str) -> Any:
    status = jobs.find(name)
    return status if status and status.HasField("ended_ms") else None


def groups(name: str, jobs: Jobs) -> list[dict[str, Any]]:
    status = jobs.find(name)
    assert status
    return [
        entry
        for entry in placement_group_table().values()
        if entry["name"].startswith(f"trainmaster/{status.job}/") and entry["state"] == "CREATED"
    ]


@pytest.mark.minimum
def test_the_doctor_accepts_a_suitable_cluster(cluster: Cluster) -> None:
    lines = [line.split() for line in cluster.doctor().splitlines()]
    found = {check: (verdict, text) for part, check, verdict, *text in lines if part == "ray"}
    assert found["version"] == ("good", [ray.__version__])
    assert {check for check, (verdict, _) in found.items() if verdict != "good"} == {"token"}
    assert {"head", "nodes", "labels", "autoscaler"} <= found.keys()


@pytest.mark.minimum
def test_a_job_trains_to_its_loss(cluster: Cluster, daemon: Daemon, jobs: Jobs, tmp_path: Path) -> None:
    run = Run(cluster, daemon, tmp_path, "simple", epochs=20, workers=(2, 2, 2))
    end = run.result()
    assert (end["epoch"], end["step"]) == (20, 160)
    assert end["loss"] < 0.3
    status = wait_for("its end", lambda: ended(jobs, "simple"))
    assert (status.state, status.step, status.epoch) == ("completed", 160, 20)
    assert not groups("simple", jobs)


@pytest.mark.minimum
def test_a_job_grows_in_place_when_another_job_ends(
    cluster: Cluster, daemon: Daemon, jobs: Jobs, tmp_path: Path
) -> None:
    # On a slow machine, too, it trains until the other job does.
    short = Run(cluster, daemon, tmp_path, "short", epochs=10, seconds=40.0, workers=(4, 4, 4), gpu=1)
    wait_for("training", lambda: running(jobs, "short"))
    grows = Run(cluster, daemon, tmp_path, "grows", epochs=20, seconds=8.0, workers=(1, 4, 1), gpu=1)
    wait_for("both", lambda: running(jobs, "grows"))
    short.hurry()
    short.result()

    def grown() -> bool:
        return any(now["how"] == "live" and now["workers"] > grows.changes[0]["workers"] for now in grows.changes)

    wait_for("a growth", grown)
    grows.hurry()
    end = grows.result()
    live = [change for change in end["history"] if change["how"] == "live"]
    assert live, end["history"]
    assert max(change["workers"] for change in live) > end["history"][0]["workers"]
    assert end["loss"] < 0.3


def test_a_failed_growth_is_refused_and_the_job_continues(
    cluster: Cluster, daemon: Daemon, jobs: Jobs, tmp_path: Path
) -> None:
    # On a slow machine, too, it trains until the other job does.
    short = Run(cluster, daemon, tmp_path, "short", epochs=10, seconds=40.0, workers=(4, 4, 4), gpu=1)
    wait_for("training", lambda: running(jobs, "short"))
    missing = tmp_path / "missing"
    options = {"epochs": 20, "seconds": 8.0, "workers": (1, 4, 1), "gpu": 1, "broken": str(missing)}
    picky = Run(cluster, daemon, tmp_path, "picky", **options)
    first = wait_for("both", lambda: running(jobs, "picky"))
    missing.touch()
    short.hurry()
    short.result()

    def refused() -> bool:
        status = jobs.find("picky")
        assert status
        return "there is no data" in status.reason

    wait_for("a refusal that the daemon knows", refused)
    now = jobs.find("picky")
    assert now
    assert (now.state, now.incarnation) == ("running", first.incarnation)
    missing.unlink()
    picky.hurry()
    end = picky.result()
    assert end["epoch"] == 20
    assert any("there is no data" in cause for cause in end["refusals"])
    assert {change["incarnation"] for change in end["history"]} == {first.incarnation}


@pytest.mark.parametrize("mode", ["sync", pytest.param("allreduce", marks=pytest.mark.minimum)])
def test_a_held_job_resumes_from_its_checkpoint_later(
    cluster: Cluster, daemon: Daemon, jobs: Jobs, tmp_path: Path, mode: str
) -> None:
    run = Run(cluster, daemon, tmp_path, "held", mode=mode, epochs=10, seconds=LONG, resize="fixed")
    wait_for("training", lambda: list(tmp_path.glob("held/*/checkpoint-*")))
    jobs.pause("held")
    wait_for("the release", lambda: not groups("held", jobs))
    run.hurry()
    jobs.pause("held", resume=True)
    end = run.result()
    assert [change["how"] for change in end["history"]] == ["start", "restart"]
    assert end["history"][1]["incarnation"] > end["history"][0]["incarnation"]
    assert end["epoch"] == 10
    status = jobs.find("held")
    assert status
    assert status.restart_ms > 0


def test_a_driver_dies_between_checkpoint_and_recreation(
    cluster: Cluster, daemon: Daemon, jobs: Jobs, tmp_path: Path
) -> None:
    run = Run(cluster, daemon, tmp_path, "mortal", epochs=15, seconds=LONG, on_driver_death="resume")
    wait_for("training", lambda: list(tmp_path.glob("mortal/*/checkpoint-*")))
    rival = Run(cluster, daemon, tmp_path / "rival", "mortal")
    assert "mortal" in wait_for("a refusal", rival.document)["error"]
    jobs.pause("mortal")
    wait_for("the release", lambda: not groups("mortal", jobs))
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    (number,) = (status.job for status in jobs.list() if status.name == "mortal")
    run.hurry()
    run.start(resume=True)
    jobs.pause("mortal", resume=True)
    end = run.result()
    assert (end["job"], end["epoch"]) == (number, 15)


def test_a_drivers_death_fails_its_job_unless_it_is_resumable(
    cluster: Cluster, daemon: Daemon, jobs: Jobs, tmp_path: Path
) -> None:
    run = Run(cluster, daemon, tmp_path, "lonely", epochs=1000, seconds=0.1)
    wait_for("training", lambda: running(jobs, "lonely"))
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    status = wait_for(
        "its end", lambda: next((s for s in jobs.list(all=True) if s.name == "lonely" and s.ended_ms), None)
    )
    assert (status.state, "driver" in status.reason) == ("failed", True), status.reason
    assert not groups("lonely", jobs)


def test_a_job_resumes_elsewhere_after_a_raylets_death(
    cluster: Cluster, daemon: Daemon, jobs: Jobs, tmp_path: Path
) -> None:
    run = Run(cluster, daemon, tmp_path, "homeless", epochs=15, seconds=LONG, gpu=1, resize="fixed")
    wait_for("training", lambda: list(tmp_path.glob("homeless/*/checkpoint-*")))
    (group,) = groups("homeless", jobs)
    node = next(node for node in ray.nodes() if node["NodeID"] == group["bundles_to_node_id"][0])
    cluster.kill_node(node["Labels"]["name"])
    wait_for("the loss to be seen", lambda: not groups("homeless", jobs))
    run.hurry()
    end = run.result()
    assert [change["how"] for change in end["history"]][:2] == ["start", "failure"]
    assert end["epoch"] == 15


def test_a_job_survives_the_daemons_restart(cluster: Cluster, daemon: Daemon, jobs: Jobs, tmp_path: Path) -> None:
    run = Run(cluster, daemon, tmp_path, "steady", epochs=20, seconds=LONG, resize="fixed")
    wait_for("training", lambda: list(tmp_path.glob("steady/*/checkpoint-*")))
    daemon.kill()
    before = _steps(tmp_path)
    wait_for("training to continue", lambda: _steps(tmp_path) > before)
    daemon.start()
    run.hurry()
    end = run.result()
    assert len(end["history"]) == 1, end["history"]
    ended = wait_for(
        "its end", lambda: next((s for s in jobs.list(all=True) if s.name == "steady" and s.ended_ms), None)
    )
    assert (ended.state, ended.step) == ("completed", 160)


def _steps(folder: Path) -> int:
    return max((int(path.name.rpartition("-")[2]) for path in folder.glob("steady/*/checkpoint-*")), default=0)


def test_an_impossible_demand_is_refused_with_its_numbers(cluster: Cluster, daemon: Daemon, tmp_path: Path) -> None:
    run = Run(cluster, daemon, tmp_path, "huge", gpu=3)
    document = wait_for("a refusal", run.document)
    assert document["kind"] == "Refused"
    assert "needs 3 gpu on one server; the largest has 2" in document["error"]


def test_a_placement_that_others_block_is_retried_later(
    cluster: Cluster, daemon: Daemon, jobs: Jobs, tmp_path: Path
) -> None:
    run = Run(cluster, daemon, tmp_path, "crowded", gpu=1, epochs=15, seconds=LONG, resize="fixed")
    wait_for("training", lambda: list(tmp_path.glob("crowded/*/checkpoint-*")))
    jobs.pause("crowded")
    wait_for("the release", lambda: not groups("crowded", jobs))
    others = [placement_group([{"GPU": 1}]) for _ in range(2 * len(cluster.nodes))]
    assert all(group.wait(PATIENCE) for group in others)
    run.hurry()
    jobs.pause("crowded", resume=True)

    def has_reason() -> bool:
        """The plan was refused, or, if the daemon saw the other groups first, the job waits."""
        status = jobs.find("crowded")
        return bool(status and status.state == "waiting" and status.reason)

    wait_for("a reason", has_reason)
    for group in others:
        remove_placement_group(group)
    end = run.result()
    assert [change["how"] for change in end["history"]] == ["start", "restart"]
    assert end["epoch"] == 15
