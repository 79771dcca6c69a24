"""An unmodified script of Ray Train. Collected only with PyTorch and Ray Train."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.config import ScalingConfig
from ray.train.v2.api.exceptions import ControllerError

from trainmaster import TrainmasterError
from trainmaster.channel import Jobs
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


class Script:
    """The script in a process, with a folder for its output. It ends with the test."""

    def __init__(self, cluster: Cluster, daemon: Daemon, folder: Path, workers: str, *saves: str) -> None:
        folder.mkdir()
        self.folder = folder
        before = cluster.env
        cluster.env = {
            **before,
            "RAY_TRAIN_CALLBACKS": "trainmaster.ray.train.Callback",
            "TRAINMASTER_SERVER": daemon.address,
            "TRAINMASTER_TOKEN_FILE": str(daemon.token_file),
            "OMP_NUM_THREADS": "1",
            # How often the controller takes reports, which block the script.
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
        }
        try:
            self.process = cluster.run(SCRIPT, cluster.address, str(folder), workers, *saves)
        finally:
            cluster.env = before

    def _lines(self) -> list[list[int]]:
        path = self.folder / "began"
        return [[int(word) for word in line.split()] for line in path.read_text().splitlines()] if path.exists() else []

    def began(self, *sizes: int) -> None:
        """Waits until rank 0 has started with these numbers of workers, one after the other."""

        def begun() -> bool:
            assert self.process.poll() is None, "the driver ended"
            return [world for rank, world, *_ in self._lines() if rank == 0] == list(sizes)

        wait_for(f"{sizes}", begun)

    def present(self) -> list[int]:
        """The workers that exist."""
        return [pid for *_, pid in self._lines() if Path(f"/proc/{pid}").exists()]

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()


def step(jobs: Jobs) -> int:
    status = jobs.find("net")
    return status.step if status else 0


def trains(jobs: Jobs) -> None:
    before = step(jobs)
    wait_for("steps", lambda: step(jobs) > before)


@pytest.mark.cluster
def test_a_script_of_ray_train_follows_the_plan(cluster: Cluster, daemon: Daemon, tmp_path: Path) -> None:
    other = Run(cluster, daemon, tmp_path, "other", epochs=10, seconds=40.0, workers=(5, 5, 5), gpu=1)
    with contextlib.closing(daemon.jobs()) as jobs:
        wait_for("the other job", lambda: (status := jobs.find("other")) and status.step)
        with Script(cluster, daemon, tmp_path / "net", "(1, 3)", "saves") as net:
            net.began(1)
            trains(jobs)
            other.hurry()
            other.result()
            net.began(1, 3)
            trains(jobs)
            # A killed worker: all start again with the last checkpoint.
            os.kill(net.present()[-1], signal.SIGKILL)
            net.began(1, 3, 3)
            trains(jobs)
            daemon.kill()
            daemon.start()
            other = Run(cluster, daemon, tmp_path, "another", epochs=10, seconds=40.0, workers=(5, 5, 5), gpu=1)
            net.began(1, 3, 3, 1)
            trains(jobs)
            (net.folder / "hurry").touch()
            assert net.process.wait(PATIENCE) == 0
        other.hurry()
        other.result()
        assert torch.load(net.folder / "seen.pt").tolist() == [EPOCHS] * EXAMPLES
        status = wait_for("its end", lambda: (status := jobs.find("net")) and status.state == "completed" and status)
        assert status.step == EPOCHS


@pytest.mark.cluster
def test_a_paused_run_holds_nothing(cluster: Cluster, daemon: Daemon, tmp_path: Path) -> None:
    with (
        contextlib.closing(daemon.jobs()) as jobs,
        Script(cluster, daemon, tmp_path / "net", "2") as net,
    ):
        net.began(2)
        trains(jobs)
        jobs.pause("net")
        wait_for("the workers' end", lambda: not net.present())
        jobs.pause("net", resume=True)
        net.began(2, 2)
        trains(jobs)
        # Ray Train would keep the others while it waits for a place of the lost one.
        jobs.pause("net")
        os.kill(net.present()[-1], signal.SIGKILL)
        wait_for("the workers' end", lambda: not net.present())
        jobs.pause("net", resume=True)
        net.began(2, 2, 2)
        # It never saved a checkpoint, so that it trains from its beginning.
        (net.folder / "hurry").touch()
        assert net.process.wait(PATIENCE) == 0
        status = wait_for("its end", lambda: (status := jobs.find("net")) and status.state == "completed" and status)
        assert status.step == EPOCHS


@pytest.mark.cluster
def test_a_run_that_is_cancelled_or_interrupted_ends(cluster: Cluster, daemon: Daemon, tmp_path: Path) -> None:
    with contextlib.closing(daemon.jobs()) as jobs:
        with Script(cluster, daemon, tmp_path / "first", "2") as net:
            net.began(2)
            jobs.cancel("net")
            assert net.process.wait(PATIENCE) == 1
            wait_for("the workers' end", lambda: not net.present())
            wait_for("its end", lambda: (status := jobs.find("net")) and status.state == "cancelled")
        with Script(cluster, daemon, tmp_path / "second", "2") as net:
            net.began(2)
            jobs.pause("net")
            wait_for("the workers' end", lambda: not net.present())
            # Nothing runs, and it waits for the plan.
            net.process.send_signal(signal.SIGINT)
            assert net.process.wait(PATIENCE) != 0
            ended = wait_for("its end", lambda: (status := jobs.find("net")) and status.state == "failed" and status)
            assert "interrupted" in ended.reason


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


def test_the_reason_of_an_end_is_the_last_line() -> None:
    failed = ControllerError(TrainmasterError("net: stop: cancelled"))
    assert train._last_line(failed) == "net: stop: cancelled"
    assert train._last_line(ValueError("many\nlines\n\n")) == "lines"
    assert train._last_line(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_metrics_that_are_numbers_are_reported() -> None:
    assert [train._number(value) for value in (1, 0.5, torch.tensor(0.25))] == [1.0, 0.5, 0.25]
