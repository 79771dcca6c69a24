"""An unmodified script of Ray Train. Collected only with PyTorch and Ray Train."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.config import ScalingConfig

from trainmaster import TrainmasterError
from trainmaster.ray import train
from trainmaster.testing import PATIENCE, Daemon, wait_for

from .conftest import Run, forget
from .local_cluster import Cluster
from .raytrain import EPOCHS, EXAMPLES

SCRIPT = Path(__file__).with_name("raytrain.py")


@pytest.fixture
def daemon(cluster: Cluster) -> Iterator[Daemon]:
    # Shares change with each arriving or leaving job, independent of the machine's speed.
    daemon = cluster.serve("--engine=drf", "--set=interval=3s")
    yield daemon
    daemon.end()
    forget()


def began(folder: Path) -> list[int]:
    """The numbers of workers with which rank 0 has started."""
    path = folder / "began"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [int(world) for rank, world, *_ in lines if rank == "0"]


def present(folder: Path) -> list[int]:
    """The workers that still exist."""
    pids = [int(line.split()[3]) for line in (folder / "began").read_text().splitlines()]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def script(cluster: Cluster, daemon: Daemon, folder: Path, workers: str) -> subprocess.Popen[bytes]:
    folder.mkdir()
    env = {
        "RAY_TRAIN_CALLBACKS": "trainmaster.ray.train.Callback",
        "TRAINMASTER_SERVER": daemon.address,
        "TRAINMASTER_TOKEN_FILE": str(daemon.token_file),
        "OMP_NUM_THREADS": "1",
    }
    before = cluster.env
    cluster.env = {**before, **env}
    try:
        return cluster.run(SCRIPT, cluster.address, str(folder), workers)
    finally:
        cluster.env = before


@pytest.mark.cluster
def test_a_script_of_ray_train_follows_the_plan(cluster: Cluster, daemon: Daemon, tmp_path: Path) -> None:
    net = tmp_path / "net"
    other = Run(cluster, daemon, tmp_path, "other", epochs=10, seconds=40.0, workers=(5, 5, 5), gpu=1)
    with contextlib.closing(daemon.jobs()) as jobs:
        wait_for("the other job", lambda: (status := jobs.find("other")) and status.step)
        driver = script(cluster, daemon, net, "(1, 3)")

        def trains(*sizes: int) -> None:
            wait_for(f"{sizes}", lambda: began(net) == list(sizes) or driver.poll() is not None)
            assert driver.poll() is None, f"the driver ended; see {cluster.folder}"
            status = jobs.find("net")
            assert status
            step = status.step
            wait_for("steps", lambda: (status := jobs.find("net")) and status.step > step)

        trains(1)
        other.hurry()
        other.result()
        trains(1, 3)
        # A killed worker: the others start again with the last checkpoint.
        pid = [int(line.split()[3]) for line in (net / "began").read_text().splitlines()][-1]
        os.kill(pid, signal.SIGKILL)
        trains(1, 3, 3)
        other = Run(cluster, daemon, tmp_path, "another", epochs=10, seconds=40.0, workers=(5, 5, 5), gpu=1)
        trains(1, 3, 3, 1)
        (net / "hurry").touch()
        assert driver.wait(PATIENCE) == 0
        other.hurry()
        other.result()
        assert torch.load(net / "seen.pt").tolist() == [EPOCHS] * EXAMPLES
        status = jobs.find("net")
        assert status
        assert (status.state, status.step) == ("completed", EPOCHS)


@pytest.mark.cluster
def test_a_fixed_run_is_paused_and_cancelled(cluster: Cluster, daemon: Daemon, tmp_path: Path) -> None:
    net = tmp_path / "net"
    driver = script(cluster, daemon, net, "2")
    wait_for("two workers", lambda: began(net) == [2] or driver.poll() is not None)
    with contextlib.closing(daemon.jobs()) as jobs:
        jobs.pause("net")
        wait_for("the workers' end", lambda: not present(net))
        jobs.pause("net", resume=True)
        wait_for("two workers again", lambda: began(net) == [2, 2] or driver.poll() is not None)
        jobs.cancel("net")
        assert driver.wait(PATIENCE) != 0
        wait_for("its end", lambda: (status := jobs.find("net")) and status.state == "cancelled")
    wait_for("the workers' end", lambda: not present(net))


def test_this_ray_train_is_the_tested_one() -> None:
    assert train.differences() == []
    assert train.differences("2.61.0") == [f"Ray is 2.61.0; tested: {', '.join(train.TESTED)}"]


def test_another_ray_train_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(WorkerGroup, "_create_placement_group")
    assert train.differences() == ["WorkerGroup has no _create_placement_group"]
    monkeypatch.setattr(WorkerGroup, "_create_placement_group", lambda self: None, raising=False)
    with pytest.raises(
        TrainmasterError, match=r"_create_placement_group takes other arguments; without RAY_TRAIN_CALL"
    ):
        train.Callback()


def test_without_a_daemon_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINMASTER_SERVER", "127.0.0.1:1")
    with pytest.raises(TrainmasterError, match=r"no daemon answers at 127\.0\.0\.1:1"):
        train.Callback()


def test_a_run_is_a_job() -> None:
    resources = {"CPU": 2, "GPU": 0.5, "memory": 3 * 2**20 + 1, "license": 1}
    job = train.job_of("net", ScalingConfig(num_workers=(2, 8), use_gpu=True, resources_per_worker=resources))
    assert job.worker.demand("worker") == {"cpu": 2000, "gpu": 500, "memory": 4, "license": 1000}
    assert (job.worker.min, job.worker.max, job.resize, dict(job.labels)) == (2, 8, "any", {"elastic": "restart"})
    fixed = train.job_of("net", ScalingConfig(num_workers=3))
    assert (fixed.worker.min, fixed.worker.max, fixed.resize, fixed.labels) == (3, 3, "fixed", {})


@pytest.mark.parametrize("option", [{"label_selector": {"a": "b"}}, {"accelerator_type": "A100", "use_gpu": True}])
def test_placements_of_a_script_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(TrainmasterError, match=r"ScalingConfig\((label_selector|accelerator_type)="):
        train.job_of("net", ScalingConfig(num_workers=2, **option))


@pytest.mark.parametrize("value", [None, True, "1.5", b"1", float("nan"), float("inf"), [1.0], 10**400, object()])
def test_metrics_that_are_no_numbers_are_left_out(value: object) -> None:
    assert train._number(value) is None


def test_metrics_that_are_numbers_are_reported() -> None:
    assert [train._number(value) for value in (1, 0.5, torch.tensor(0.25))] == [1.0, 0.5, 0.25]
