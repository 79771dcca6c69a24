"""An unmodified script of PyTorch on Ray. Collected only with PyTorch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest

from trainmaster import Job, Role, TrainmasterError, guard
from trainmaster._proto import feed_pb2 as pb
from trainmaster._proto import feed_pb2_grpc
from trainmaster.channel import bearer
from trainmaster.errors import Interrupted
from trainmaster.ray import Torchrun
from trainmaster.ray.torchrun import _Feed
from trainmaster.testing import PATIENCE, Daemon, wait_for

from .conftest import Run, forget
from .local_cluster import Cluster, parent_of

PYTHON = Path(__file__).resolve().parents[2] / "python"
EPOCHS, BATCH = 20, 24
#: The loops of libraries, and what they need. `make test` runs the first, `make test-all` all.
NEEDS = {"plain": "torch", "fsdp": "torch", "hf": "transformers", "lightning": "lightning", "deepspeed": "deepspeed"}
STACKS = [
    pytest.param(stack, marks=pytest.mark.skipif(not find_spec(library), reason=f"needs {library}"))
    for stack, library in NEEDS.items()
]
#: The numbers of their examples: some train whole batches only.
EXAMPLES = dict.fromkeys(NEEDS, 500) | {"hf": 504, "deepspeed": 504}
#: How a worker's actor ends. `make test-all` tries all.
ENDS = ["worker", "cancel", "driver"]
if os.environ.get("TRAINMASTER_RELEASES") != "all":
    del STACKS[1:], ENDS[1:]
#: A driver as a user has it. `processes` is for GPUs that are none.
DRIVER = """
import json, sys
from trainmaster import Job, Role
from trainmaster.ray import Torchrun, connect

address, token_file, folder, script, path, examples = sys.argv[1:]
role = Role(cpu=0.5, gpu=1, min=1, max=3, requested=1)
end = {"delta": 0.0, "max_epochs": 20}
job = Job("net", worker=role, mode="allreduce", batch=24, examples=int(examples), convergence=end)
worker = Torchrun(script, processes=1, folder=folder, env={"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PACE": "2"})
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


def start(cluster: Cluster, daemon: Daemon, folder: Path, stack: str = "plain") -> subprocess.Popen[bytes]:
    """A driver whose job trains in the folder `net`."""
    net = folder / "net"
    net.mkdir()
    (folder / "driver.py").write_text(DRIVER)
    script = PYTHON / f"tests/stacks/train_{stack}.py"
    path = os.pathsep.join([str(PYTHON), cluster.env["PYTHONPATH"]])
    arguments = [daemon.address, str(daemon.token_file), str(net), str(script), path, str(EXAMPLES[stack])]
    return cluster.run(folder / "driver.py", *arguments)


@pytest.mark.cluster
@pytest.mark.parametrize("stack", STACKS)
def test_a_script_grows_when_another_job_ends_and_trains_each_example_once(
    cluster: Cluster, daemon: Daemon, tmp_path: Path, stack: str
) -> None:
    net, examples = tmp_path / "net", EXAMPLES[stack]
    steps = -(-examples // BATCH) * EPOCHS
    other = Run(cluster, daemon, tmp_path, "other", epochs=10, seconds=40.0, workers=(5, 5, 5), gpu=1)
    with contextlib.closing(daemon.jobs()) as jobs:
        wait_for("the other job", lambda: (status := jobs.find("other")) and status.step)
    driver = start(cluster, daemon, tmp_path, stack)

    def trains(*sizes: int) -> None:
        wait_for(f"{sizes}", lambda: begun(net) == list(sizes) or driver.poll() is not None)
        assert driver.poll() is None, f"the driver ended; see {cluster.folder}"
        before = len(trained(net))
        wait_for("steps", lambda: len(trained(net)) > before + 72)

    trains(1)
    other.hurry()
    other.result()
    trains(1, 3)
    other = Run(cluster, daemon, tmp_path, "another", epochs=10, seconds=40.0, workers=(5, 5, 5), gpu=1)
    trains(1, 3, 1)
    other.hurry()
    other.result()
    trains(1, 3, 1, 3)
    (net / "hurry").touch()
    assert driver.wait(PATIENCE) == 0
    assert (net / "complete").read_text() == str(steps)
    assert Counter(trained(net)) == dict.fromkeys(range(examples), EPOCHS)
    wait_for("the end of all processes", lambda: not of_job(net))
    with contextlib.closing(daemon.jobs()) as jobs:
        status = jobs.find("net")
    assert status
    assert (status.state, status.step, status.epoch) == ("completed", steps, EPOCHS)


@pytest.mark.cluster
@pytest.mark.parametrize("how", ENDS)
def test_no_process_survives_its_actor(cluster: Cluster, daemon: Daemon, tmp_path: Path, how: str) -> None:
    net = tmp_path / "net"
    # Its processes ask when to stop, and so survive SIGTERM.
    driver = start(cluster, daemon, tmp_path)
    wait_for("three ranks", lambda: begun(net)[-1:] == [3])
    wait_for("steps", lambda: len(trained(net)) > 72)
    before, starts = set(of_job(net)), len(begun(net))
    if how == "worker":
        actors = [pid for pid in map(parent_of, before) if pid and b"ray::WorkerHost" in command(pid)]
        os.kill(actors[0], signal.SIGKILL)
    elif how == "driver":
        driver.kill()
    else:
        with contextlib.closing(daemon.jobs()) as jobs:
            jobs.cancel("net")
    wait_for("the end of its processes", lambda: not before & set(of_job(net)))
    if how == "worker":
        # The job goes on without a process of the old shape.
        wait_for("another start", lambda: len(begun(net)) > starts)
        (net / "hurry").touch()
        assert driver.wait(PATIENCE) == 0
    driver.wait(PATIENCE)
    wait_for("the end of all processes", lambda: not of_job(net))


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


LEAVES = """
import os, signal, subprocess, sys, time
# In a session of its own, as PyTorch starts training processes.
left = subprocess.Popen(["sleep", "600"], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(os.getpid(), left.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["told", "victim", "closed"])
def test_the_guard_leaves_nothing(how: str) -> None:
    program = [sys.executable, "-I", guard.__file__, sys.executable, "-c", LEAVES]
    guarded = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert guarded.stdin
    assert guarded.stdout
    pids = [int(pid) for pid in guarded.stdout.readline().split()]
    assert len(pids) == 2
    if how == "told":
        guarded.terminate()
        assert guarded.wait(PATIENCE) == 7
    elif how == "victim":
        # As Ray does it: the actor's children, and then the actor.
        os.kill(guarded.pid, signal.SIGKILL)
    guarded.stdin.close()
    wait_for("the end of all processes", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    guarded.wait(PATIENCE)


def test_a_guard_passes_on_what_comes_before_its_command_runs() -> None:
    program = [sys.executable, "-I", guard.__file__, "sleep", "600"]
    for _ in range(10):
        guarded = subprocess.Popen(program, stdin=subprocess.PIPE)
        # From the first process below it on, it passes SIGTERM on.
        while not Path(f"/proc/{guarded.pid}/task/{guarded.pid}/children").read_text():
            time.sleep(0.001)
        guarded.terminate()
        assert guarded.wait(PATIENCE) == 128 + signal.SIGTERM
        assert guarded.stdin
        guarded.stdin.close()


class Told:
    """A context that only takes reports."""

    round, grace, converged = 1, 30.0, False

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.take: Callable[[Any], None] = self.reports.append


def test_only_the_jobs_processes_may_call_its_feed() -> None:
    told = Told()
    feed = _Feed(told, "secret", lambda _: None)  # type: ignore[arg-type]
    try:
        with grpc.insecure_channel(feed.place) as channel:
            stub = feed_pb2_grpc.FeedStub(channel)  # type: ignore[no-untyped-call]
            report = pb.ReportRequest(progress=[pb.Progress(seq=1, step=7, examples=3)])
            for token in ("", "other", "secret2"):
                for call in (stub.Report, stub.Acknowledge, lambda *a, **b: next(stub.Watch(*a, **b))):
                    request = report if call == stub.Report else pb.WatchRequest(address="1")
                    request = pb.AcknowledgeRequest() if call == stub.Acknowledge else request
                    with pytest.raises(grpc.RpcError) as refused:
                        call(request, metadata=bearer(token), timeout=10)
                    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
            # The second one is the first, sent again.
            for _ in range(2):
                assert stub.Report(report, metadata=bearer("secret")).accepted
            many = pb.ReportRequest(job="x" * (2 << 20))
            with pytest.raises(grpc.RpcError) as refused:
                stub.Report(many, metadata=bearer("secret"))
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        feed.close()
    assert [(report.step, report.examples) for report in told.reports] == [(7, 3)]


def test_what_cannot_run_is_refused(tmp_path: Path) -> None:
    job = Job("net", worker=Role(cpu=1), server=Role(cpu=1))
    with pytest.raises(TrainmasterError, match='mode: "sync" must be "allreduce"'):
        Torchrun("train.py").of(job)
    with pytest.raises(TrainmasterError, match=r"arguments: '--lr=0\.1' must be a list of words"):
        Torchrun("train.py", "--lr=0.1")  # type: ignore[arg-type]
    for processes in (0, -1, 1025):
        with pytest.raises(TrainmasterError, match=f"processes: {processes} must be from 1 to 1024"):
            Torchrun("train.py", processes=processes)
    with pytest.raises(TrainmasterError, match=r"missing\.py is no file on"):
        Torchrun("missing.py", folder=tmp_path)()
    with pytest.raises(TrainmasterError, match="env: PET_NNODES: Trainmaster or torchrun sets it"):
        Torchrun("train.py", env={"PET_NNODES": "1"})


def test_workers_follow_the_job_file() -> None:
    given = {"name": "net", "mode": "allreduce", "worker": {"cpu": 1}}
    # Not the driver's folder, wherever the actor is.
    assert Torchrun("train.py").of(Job.from_dict(given))[1].folder == Path.cwd()
    more = {"workdir": "/net", "checkpoints": "out", "nproc_per_node": 4, "env": {"A": "1", "B": "1"}}
    job, worker = Torchrun("train.py", env={"B": "2"}).of(Job.from_dict(given | more))
    assert dict(job.labels) == {"launcher": "torchrun", "nproc_per_node": "4"}
    assert (worker.place, worker.checkpoints, worker.processes) == (Path("/net"), Path("/net/out"), 4)
    assert worker.env == {"A": "1", "B": "2"}
    _, worker = Torchrun("train.py", processes=2, folder="/other", checkpoints="/there").of(job)
    assert (worker.place, worker.checkpoints, worker.processes) == (Path("/other"), "/there", 2)
    _, worker = Torchrun("train.py", folder="/other").of(job)
    assert (worker.place, worker.checkpoints) == (Path("/other"), Path("/net/out"))
    with pytest.raises(TrainmasterError, match="env: PET_NNODES"):
        Torchrun("train.py").of(Job.from_dict(given | {"env": {"PET_NNODES": "1"}}))
    Torchrun("train.py", env={"PET_LOG_DIR": "/logs"})


def test_a_round_that_ended_keeps_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()

    async def peers() -> None:
        agent = Torchrun("train.py", folder=tmp_path)()
        waiting = asyncio.ensure_future(agent.address(2))
        await asyncio.sleep(0)
        await agent._announce(3, "there:1")
        await agent._end(2)
        with pytest.raises(Interrupted, match="round 2 has ended"):
            await waiting
        with pytest.raises(Interrupted, match="round 1 has ended"):
            await agent.address(1)
        assert await agent.address(3) == "there:1"
        await agent._announce(2, "too late")
        assert agent._addresses.keys() == {3}

    asyncio.run(peers())
