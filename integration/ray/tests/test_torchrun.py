"""An unmodified script of PyTorch on Ray. Collected only with PyTorch."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from trainmaster import Job, Role, TrainmasterError
from trainmaster._proto import feed_pb2 as pb
from trainmaster._proto import feed_pb2_grpc
from trainmaster.channel import bearer
from trainmaster.ray import Torchrun
from trainmaster.ray.torchrun import _Feed
from trainmaster.testing import Daemon, wait_for

from .conftest import Run, forget
from .local_cluster import Cluster

PYTHON = Path(__file__).resolve().parents[2] / "python"
EPOCHS, EXAMPLES, STEPS = 20, 500, 420
#: A driver as a user has it. `processes` is for GPUs that are none.
DRIVER = """
import json, sys
from trainmaster import Job, Role
from trainmaster.ray import Torchrun, connect

address, token_file, folder, script, path = sys.argv[1:]
role = Role(cpu=0.5, gpu=1, min=1, max=3, requested=1)
job = Job("net", worker=role, mode="allreduce", batch=24, examples=500, convergence={"delta": 0.0, "max_epochs": 20})
worker = Torchrun(script, processes=1, folder=folder, env={"OMP_NUM_THREADS": "1", "PYTHONPATH": path})
with connect(address, token_file=token_file, checkpoint_dir=folder + "/trainmaster") as tm:
    result = tm.fit(job, worker=worker)
print(json.dumps([[change.how, change.workers] for change in result.history] + [result.step, result.epoch]))
"""


@pytest.fixture
def daemon(cluster: Cluster) -> Iterator[Daemon]:
    # Shares change with each arriving or leaving job, independent of the machine's speed.
    daemon = cluster.serve("--engine=drf", "--set=interval=3s")
    yield daemon
    daemon.end()
    forget()


def begun(folder: Path) -> list[int]:
    """The numbers of processes with which rank 0 has started."""
    path = folder / "began"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [int(world) for rank, world, _ in lines if rank == "0"]


def trained(folder: Path) -> list[int]:
    return [int(line) for path in folder.glob("trained-*") for line in path.read_text().splitlines()]


def of_job(folder: Path) -> list[int]:
    """The processes that run in the job's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:
            continue  # gone
    return found


@pytest.mark.cluster
def test_a_script_grows_when_another_job_ends_and_trains_each_example_once(
    cluster: Cluster, daemon: Daemon, tmp_path: Path
) -> None:
    net = tmp_path / "net"
    net.mkdir()
    script = PYTHON / "tests/stacks/train_plain.py"
    path = os.pathsep.join([str(PYTHON), cluster.env["PYTHONPATH"]])
    other = Run(cluster, daemon, tmp_path, "other", epochs=10, seconds=40.0, workers=(5, 5, 5), gpu=1)
    with contextlib.closing(daemon.jobs()) as jobs:
        wait_for("the other job", lambda: (status := jobs.find("other")) and status.step)
    (tmp_path / "driver.py").write_text(DRIVER)
    arguments = [daemon.address, str(daemon.token_file), str(net), str(script), path]
    driver = cluster.run(tmp_path / "driver.py", *arguments)

    def trains(*sizes: int) -> None:
        wait_for(f"{sizes}", lambda: begun(net) == list(sizes) or driver.poll() is not None)
        assert driver.poll() is None, f"the driver ended; see {cluster.folder}"
        before = len(trained(net))
        wait_for("steps", lambda: len(trained(net)) > before + 72)

    trains(1)
    other.hurry()
    other.result()
    trains(1, 3)
    (net / "hurry").touch()
    assert driver.wait(200) == 0
    assert (net / "complete").read_text() == str(STEPS)
    assert Counter(trained(net)) == dict.fromkeys(range(EXAMPLES), EPOCHS)
    wait_for("the end of all processes", lambda: not of_job(net))
    with contextlib.closing(daemon.jobs()) as jobs:
        status = jobs.find("net")
    assert status
    assert (status.state, status.step, status.epoch) == ("completed", STEPS, EPOCHS)


@pytest.mark.cluster
def test_no_process_survives_its_actor(cluster: Cluster, daemon: Daemon, tmp_path: Path) -> None:
    net = tmp_path / "net"
    net.mkdir()
    (tmp_path / "driver.py").write_text(DRIVER)
    script = PYTHON / "tests/ddp.py"
    arguments = [daemon.address, str(daemon.token_file), str(net), str(script), ""]
    driver = cluster.run(tmp_path / "driver.py", *arguments)
    wait_for("three ranks", lambda: begun(net)[-1:] == [3])
    before = set(of_job(net))
    actors = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in before}
    actor = next(pid for pid in actors if "ray::" in Path(f"/proc/{pid}/cmdline").read_text())
    os.kill(actor, signal.SIGKILL)
    wait_for("the end of its processes", lambda: not before & set(of_job(net)))
    # The job goes on without a process of the old shape.
    starts = len(begun(net))
    wait_for("another start", lambda: len(begun(net)) > starts)
    driver.send_signal(signal.SIGINT)
    driver.wait(100)
    wait_for("the end of all processes", lambda: not of_job(net))


class Told:
    """A context that only takes reports."""

    round, job = 1, Job("net", worker=Role(cpu=1), mode="allreduce")
    converged = False

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.take: Callable[[Any], None] = self.reports.append


def test_only_the_jobs_processes_may_call_its_feed() -> None:
    told = Told()
    feed = _Feed(told, "secret", lambda _: None)  # type: ignore[arg-type]
    try:
        with grpc.insecure_channel(feed.place) as channel:
            stub = feed_pb2_grpc.FeedStub(channel)  # type: ignore[no-untyped-call]
            report = pb.ReportRequest(progress=[pb.Progress(step=7, examples=3)])
            for token in ("", "other", "secret2"):
                for call in (stub.Report, stub.Acknowledge, lambda *a, **b: next(stub.Watch(*a, **b))):
                    request = report if call == stub.Report else pb.WatchRequest(address="1")
                    request = pb.AcknowledgeRequest() if call == stub.Acknowledge else request
                    with pytest.raises(grpc.RpcError) as refused:
                        call(request, metadata=bearer(token), timeout=10)
                    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert stub.Report(report, metadata=bearer("secret")).accepted
            many = pb.ReportRequest(job="x" * (2 << 20))
            with pytest.raises(grpc.RpcError) as refused:
                stub.Report(many, metadata=bearer("secret"))
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        feed.close()
    assert [(report.step, report.examples) for report in told.reports] == [(7, 3)]


def test_a_job_with_servers_is_refused() -> None:
    job = Job("net", worker=Role(cpu=1), server=Role(cpu=1))
    with pytest.raises(TrainmasterError, match='mode: "sync" must be "allreduce"'):
        Torchrun("train.py").launched(job)
