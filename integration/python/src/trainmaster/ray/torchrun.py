"""Unmodified scripts of PyTorch on Ray: each worker is an agent of `torchrun`.

An agent and its training processes talk to their actor as they talk to the daemon's feed elsewhere, so that they need
neither the daemon's address nor the job's token. At each change, the training stops and starts again in the new shape.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
from ray.exceptions import RayError
from ray.util import get_node_ip_address

from .. import guard, torchrun
from .._proto import feed_pb2 as pb
from .._proto import feed_pb2_grpc, job_pb2
from ..errors import Interrupted, TrainmasterError
from ..job import Job
from ..tally import Report
from .context import Context

_TURN = 0.1
# Maximum bytes of a call. A batch of reports is smaller.
_LONGEST = 1 << 20
# An agent and the process of rank 0 watch, each with a thread. Their other calls are short.
_THREADS = 8
_MOST_CALLS = 32
# Variables of an outer job, if Ray was started in one.
_OUTER = ("TRAINMASTER_", "PET_", "TORCHELASTIC_")
# Variables of the job itself.
_OWN = {"PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_NNODES", "PET_NPROC_PER_NODE", "PET_MAX_RESTARTS"}
_OUTER_NAMES = {
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
}


@dataclass(frozen=True)
class Torchrun:
    """Workers that run a script of PyTorch: `tm.fit(job, worker=Torchrun("train.py", ["--lr=0.1"]))`.

    All nodes need the script and PyTorch. It has to continue from its own checkpoints, on any number of processes, and
    can use `trainmaster.report` and `trainmaster.should_stop`.

    `processes` is the number of training processes of a worker. `folder` is where the script runs, and `checkpoints`
    where it writes checkpoints, from `folder` on. Without them, the job's `nproc_per_node`, `workdir` and `checkpoints`
    apply, and otherwise one process for each GPU, the driver's folder and `checkpoints`. `env` is added to the job's.

    Raises `TrainmasterError` if an argument isn't allowed.
    """

    script: str | Path
    arguments: list[str] | tuple[str, ...] = ()
    processes: int | None = None
    folder: str | Path | None = None
    checkpoints: str | Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    # Known to all processes of the job, and to no others.
    secret: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.arguments, str):
            raise TrainmasterError(f"arguments: {self.arguments!r} must be a list of words")
        if self.processes is not None and not 1 <= self.processes <= 1024:
            raise TrainmasterError(f"processes: {self.processes} must be from 1 to 1024")
        for name in self.env:
            if name.startswith("TRAINMASTER_") or name in _OWN or name in _OUTER_NAMES:
                raise TrainmasterError(f"env: {name}: Trainmaster or torchrun sets it")

    def of(self, job: Job) -> tuple[Job, Torchrun]:
        """The job with the label that says what a change costs it, and its workers with what the job says of them.

        Raises `TrainmasterError` if the job can't be one of torchrun.
        """
        if job.mode != "allreduce":
            raise TrainmasterError(f'{job.name}: mode: "{job.mode}" must be "allreduce" for processes of torchrun')
        # A wrong number is the daemon's to refuse.
        said = job.labels.get("nproc_per_node", "")
        worker = replace(
            self,
            processes=self.processes or (int(said) if said.isdecimal() else None) or None,
            folder=Path(self.folder or job.workdir or ".").expanduser().absolute(),
            checkpoints=self.checkpoints or (Path(job.workdir or "", job.checkpoints) if job.checkpoints else None),
            env={**job.env, **self.env},
        )
        return replace(job, labels={"launcher": "torchrun", **job.labels}), worker

    @property
    def place(self) -> Path:
        """The folder where the script runs."""
        return Path(self.folder or ".").expanduser().absolute()

    def __call__(self) -> Agent:
        return Agent(self)


class Agent:
    """A worker: in each round, an agent of `torchrun` that trains with those of the other workers."""

    def __init__(self, job: Torchrun) -> None:
        here = get_node_ip_address()
        if not find_spec("torch"):
            raise TrainmasterError(f"{sys.executable} on {here} has no PyTorch")
        if not Path(job.place, job.script).is_file():
            raise TrainmasterError(f"{Path(job.place, job.script)} is no file on {here}")
        self._job = job
        self._host = here
        # The addresses of this worker's agents, by round, and the last round that has ended. Of the event loop.
        self._addresses: dict[int, asyncio.Future[str]] = {}
        self._ended = 0

    async def address(self, round: int) -> str:
        """The address of the agent of a round, once it is there. Peers call this.

        Raises `Interrupted` if the round has ended.
        """
        return await self._address(round)

    def _address(self, round: int) -> asyncio.Future[str]:
        if round <= self._ended:
            raise Interrupted(f"round {round} has ended")
        return self._addresses.setdefault(round, asyncio.get_running_loop().create_future())

    async def _announce(self, round: int, address: str) -> None:
        if round > self._ended and not (known := self._address(round)).done():
            known.set_result(address)

    async def _end(self, round: int) -> None:
        self._ended = round
        for at in [at for at in self._addresses if at <= round]:
            if not (known := self._addresses.pop(at)).done():
                known.set_exception(Interrupted(f"round {at} has ended"))
                known.exception()  # nobody has to ask for it

    def run(self, ctx: Context) -> None:
        def announce(address: str) -> None:
            asyncio.run_coroutine_threadsafe(self._announce(ctx.round, address), ctx.loop)

        feed = _Feed(ctx, self._job.secret, announce)
        threading.Thread(target=feed.meet, name="trainmaster-meet", daemon=True).start()
        try:
            with tempfile.TemporaryDirectory(prefix="trainmaster-") as scratch:
                # An agent that is stopped at the end of its training says here that it was done before.
                done = Path(scratch, "done")
                env = self._env(ctx, feed) | {"TRAINMASTER_DONE_FILE": str(done)}
                # Its stdin is closed at the latest when this actor ends.
                with subprocess.Popen(self._command(), cwd=self._job.place, env=env, stdin=subprocess.PIPE) as agent:
                    code = self._wait(ctx, agent)
                complete = code == 0 or done.exists()
        finally:
            feed.close()
            asyncio.run_coroutine_threadsafe(self._end(ctx.round), ctx.loop).result()
        if complete:
            ctx.left = False
        elif not ctx.left:
            where = f"worker {ctx.index} on {self._host}"
            raise Interrupted(f"{self._job.script}: torchrun ended with code {code} in {where}; see its output")

    def _wait(self, ctx: Context, agent: subprocess.Popen[bytes]) -> int:
        """Waits for the agent's end. If the worker has to stop, the agent is told once, and its script may save."""
        while True:
            try:
                return agent.wait(_TURN)
            except subprocess.TimeoutExpired:
                if ctx.stopping and not ctx.left:
                    ctx.leave()
                    agent.terminate()

    def _command(self) -> list[str]:
        agent = [sys.executable, "-m", torchrun.__name__, str(self._job.script), *self._job.arguments]
        # Isolated, because the folder of a program would be searched for modules first.
        return [sys.executable, "-I", guard.__file__, *agent]

    def _env(self, ctx: Context, feed: _Feed) -> dict[str, str]:
        demand = ctx.job.worker.demand("worker")
        gpus = max((amount // 1000 for name, amount in demand.items() if name.startswith("gpu")), default=0)
        outer = {name for name in os.environ if name.startswith(_OUTER) or name in _OUTER_NAMES}
        return {
            **{name: value for name, value in os.environ.items() if name not in outer},
            **self._job.env,
            "TRAINMASTER_FEED": feed.place,
            "TRAINMASTER_TOKEN": self._job.secret,
            "TRAINMASTER_ADDRESS": self._host,
            "TRAINMASTER_JOB": ctx.job.name,
            "TRAINMASTER_JOB_NAME": ctx.job.name,
            "TRAINMASTER_ROLE": "worker",
            "TRAINMASTER_INDEX": str(ctx.index),
            # Each round has agents of its own.
            "TRAINMASTER_INCARNATION": str(ctx.round),
            "TRAINMASTER_CHECKPOINT_DIR": str(Path(self._job.place, self._job.checkpoints or "checkpoints")),
            "PET_RDZV_BACKEND": "trainmaster",
            "PET_RDZV_ENDPOINT": "trainmaster",
            "PET_RDZV_ID": ctx.job.name,
            "PET_NNODES": f"{ctx.world}:{ctx.world}",
            "PET_NPROC_PER_NODE": str(self._job.processes or max(gpus, 1)),
            "PET_MAX_RESTARTS": "1000000",
        }


class _Feed(feed_pb2_grpc.FeedServicer):
    """The feed of one round for the processes of one worker."""

    def __init__(self, ctx: Context, secret: str, announce: Callable[[str], None]) -> None:
        self._ctx = ctx
        self._bearer = f"Bearer {secret}".encode()
        self._announce = announce
        self._lock = threading.Condition()
        self._peers: list[pb.Peer] = []
        self._seq = 0
        self._closed = False
        pool = futures.ThreadPoolExecutor(_THREADS)
        options = [("grpc.max_receive_message_length", _LONGEST), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(pool, options=options, maximum_concurrent_rpcs=_MOST_CALLS)
        feed_pb2_grpc.add_FeedServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.place = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._server.stop(0)

    def meet(self) -> None:
        """Waits for the agents of all workers, and tells them of each other. A lost worker ends the round."""
        ctx = self._ctx
        try:
            addresses = ctx.get([worker.address.remote(ctx.round) for worker in ctx.workers])
        except RayError:
            return  # The driver ends the round, or has done it.
        worker = job_pb2.SLOT_ROLE_WORKER
        with self._lock:
            self._peers = [
                pb.Peer(slot=job_pb2.Slot(role=worker, index=peer.index, server=peer.server), address=address)
                for peer, address in zip(ctx.workers, addresses, strict=True)
            ]
            self._lock.notify_all()

    def _check(self, context: Any) -> None:
        given = dict(context.invocation_metadata()).get("authorization", "")
        if not secrets.compare_digest(str(given).encode(), self._bearer):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not this job's")

    def Watch(self, request: pb.WatchRequest, context: Any) -> Iterator[pb.Assignment]:
        self._check(context)
        if request.address:
            self._announce(request.address)
        context.add_callback(self._wake)
        with self._lock:
            self._lock.wait_for(lambda: self._closed or self._peers or not context.is_active())
            peers, last = self._peers, self._seq
        if peers:
            grace = int(self._ctx.grace * 1000)
            yield pb.Assignment(incarnation=self._ctx.round, revision=1, peers=peers, grace_ms=grace, last_seq=last)
        with self._lock:
            self._lock.wait_for(lambda: self._closed or not context.is_active())

    def _wake(self) -> None:
        with self._lock:
            self._lock.notify_all()

    def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportReply:
        self._check(context)
        with self._lock:
            for progress in request.progress:
                # A message that is sent again after a lost answer.
                if progress.seq > self._seq:
                    self._seq = progress.seq
                    self._take(progress)
        return pb.ReportReply(accepted=True)

    def _take(self, progress: pb.Progress) -> None:
        self._ctx.converged = progress.converged
        loss = progress.loss if progress.HasField("loss") else None
        accuracy = progress.accuracy if progress.HasField("accuracy") else None
        epochs = progress.epoch, accuracy, progress.steps_per_epoch
        self._ctx.take(Report(progress.step, loss, progress.examples, *epochs))

    def Acknowledge(self, request: pb.AcknowledgeRequest, context: Any) -> pb.AcknowledgeReply:
        self._check(context)
        if request.checkpoint_ms:
            self._ctx.checkpoint_step, self._ctx.checkpoint_ms = request.checkpoint_step, request.checkpoint_ms
        return pb.AcknowledgeReply()
