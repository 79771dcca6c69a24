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
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
from ray.exceptions import RayError
from ray.util import get_node_ip_address

from .. import guard, torchrun
from .._proto import feed_pb2 as pb
from .._proto import feed_pb2_grpc, job_pb2
from ..errors import TrainmasterError
from ..job import Job
from ..tally import Report
from .context import Context

_TURN = 0.1
# Maximum bytes of a call. A batch of reports is smaller.
_LONGEST = 1 << 20
# Each agent and each training process that watches holds a thread.
_THREADS = 64


@dataclass(frozen=True)
class Torchrun:
    """Workers that run a script of PyTorch: `tm.fit(job, worker=Torchrun("train.py", ("--lr=0.1",)))`.

    All nodes need the script and PyTorch. It has to continue from its own checkpoints, on any number of processes, and
    can use `trainmaster.report` and `trainmaster.should_stop`.

    `processes` is the number of training processes of a worker, by default one for each of its GPUs. `folder` is where
    the script runs, by default the driver's folder, and `checkpoints` where it writes checkpoints, from `folder` on.
    """

    script: str | Path
    arguments: tuple[str, ...] = ()
    processes: int | None = None
    folder: str | Path = field(default_factory=Path.cwd)
    checkpoints: str | Path = "checkpoints"
    env: Mapping[str, str] = field(default_factory=dict)
    # Known to all processes of the job, and to no others.
    secret: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)

    def launched(self, job: Job) -> Job:
        """The job with the label that says what a change costs it."""
        if job.mode != "allreduce":
            raise TrainmasterError(f'{job.name}: mode: "{job.mode}" must be "allreduce" for processes of torchrun')
        return replace(job, labels={"launcher": "torchrun", **job.labels})

    def __call__(self) -> Agent:
        return Agent(self)


class Agent:
    """A worker: in each round, an agent of `torchrun` that trains with those of the other workers."""

    def __init__(self, job: Torchrun) -> None:
        self._job = job
        self._loop = asyncio.get_event_loop()
        # The addresses of this worker's agents, by round.
        self._addresses: dict[int, asyncio.Future[str]] = {}

    async def address(self, round: int) -> str:
        """The address of the agent of a round, once it is there. Peers call this."""
        return await self._address(round)

    def _address(self, round: int) -> asyncio.Future[str]:
        return self._addresses.setdefault(round, self._loop.create_future())

    def run(self, ctx: Context) -> None:
        def announce(address: str) -> None:
            self._loop.call_soon_threadsafe(self._announce, ctx.round, address)

        feed = _Feed(ctx, self._job.secret, announce)
        threading.Thread(target=feed.meet, daemon=True).start()
        try:
            # Its stdin is closed at the latest when this actor ends.
            stdin, env = subprocess.PIPE, self._env(ctx, feed)
            with subprocess.Popen(self._command(), cwd=self._job.folder, env=env, stdin=stdin) as agent:
                code = self._wait(ctx, agent)
        finally:
            feed.close()
        if not ctx.left and code:
            raise TrainmasterError(f"{self._job.script}: torchrun ended with code {code}; see the worker's output")

    def _announce(self, round: int, address: str) -> None:
        known = self._address(round)
        if not known.done():
            known.set_result(address)
        self._addresses = {at: address for at, address in self._addresses.items() if at >= round}

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
        return [sys.executable, guard.__file__, *agent]

    def _env(self, ctx: Context, feed: _Feed) -> dict[str, str]:
        demand = ctx.job.worker.demand("worker")
        gpus = max((amount // 1000 for name, amount in demand.items() if name.startswith("gpu")), default=0)
        return {
            **os.environ,
            **self._job.env,
            "TRAINMASTER_FEED": feed.place,
            "TRAINMASTER_TOKEN": self._job.secret,
            "TRAINMASTER_ADDRESS": get_node_ip_address(),
            "TRAINMASTER_JOB": ctx.job.name,
            "TRAINMASTER_JOB_NAME": ctx.job.name,
            "TRAINMASTER_ROLE": "worker",
            "TRAINMASTER_INDEX": str(ctx.index),
            # Each round has agents of its own.
            "TRAINMASTER_INCARNATION": str(ctx.round),
            "TRAINMASTER_CHECKPOINT_DIR": str(Path(self._job.folder, self._job.checkpoints)),
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
        self._bearer = f"Bearer {secret}"
        self._announce = announce
        self._lock = threading.Condition()
        self._assignment: pb.Assignment | None = None
        self._closed = False
        options = [("grpc.max_receive_message_length", _LONGEST)]
        self._server = grpc.server(futures.ThreadPoolExecutor(_THREADS), options=options)
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
            return  # The driver knows.
        peers = [
            pb.Peer(
                slot=job_pb2.Slot(role=job_pb2.SLOT_ROLE_WORKER, index=worker.index, server=worker.server),
                address=address,
            )
            for worker, address in zip(ctx.workers, addresses, strict=True)
        ]
        with self._lock:
            self._assignment = pb.Assignment(incarnation=ctx.round, revision=1, peers=peers)
            self._lock.notify_all()

    def _check(self, context: Any) -> None:
        given = dict(context.invocation_metadata()).get("authorization", "")
        if not secrets.compare_digest(str(given).encode(), self._bearer.encode()):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not this job's")

    def Watch(self, request: pb.WatchRequest, context: Any) -> Iterator[pb.Assignment]:
        self._check(context)
        if request.address:
            self._announce(request.address)
        context.add_callback(self._wake)
        with self._lock:
            self._lock.wait_for(lambda: self._closed or self._assignment or not context.is_active())
            assignment = self._assignment
        if assignment:
            yield assignment
        with self._lock:
            self._lock.wait_for(lambda: self._closed or not context.is_active())

    def _wake(self) -> None:
        with self._lock:
            self._lock.notify_all()

    def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportReply:
        self._check(context)
        for progress in request.progress:
            self._ctx.converged = progress.converged
            self._ctx.take(
                Report(
                    progress.step,
                    progress.loss if progress.HasField("loss") else None,
                    progress.examples,
                    progress.epoch,
                    progress.accuracy if progress.HasField("accuracy") else None,
                    progress.steps_per_epoch,
                )
            )
        return pb.ReportReply(accepted=True)

    def Acknowledge(self, request: pb.AcknowledgeRequest, context: Any) -> pb.AcknowledgeReply:
        self._check(context)
        if request.checkpoint_ms:
            self._ctx.checkpoint_step, self._ctx.checkpoint_ms = request.checkpoint_step, request.checkpoint_ms
        return pb.AcknowledgeReply()
