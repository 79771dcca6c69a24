"""Agents of `torchrun` under a feed whose plans the test writes."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from trainmaster._proto import feed_pb2 as pb
from trainmaster._proto import feed_pb2_grpc, job_pb2
from trainmaster.testing import PATIENCE, wait_for

WORKER = job_pb2.SLOT_ROLE_WORKER
SCRIPT = Path(__file__).with_name("ddp.py")


class Feed(feed_pb2_grpc.FeedServicer):
    """The feed of one job. Its plans name workers by their indices."""

    def __init__(self, port: int = 0, grace_ms: int = 0) -> None:
        self._lock = threading.Lock()
        self._watchers: list[queue.Queue[None]] = []
        # Each slot's address, and the stream that told it.
        self._addresses: dict[int, tuple[str, queue.Queue[None]]] = {}
        self._grace_ms = grace_ms
        self._batch: pb.Batch | None = None
        self.revision, self.planned, self.incarnation = 0, list[int](), 1
        # The last revision that each slot's watchers were sent.
        self.told: dict[int, int] = {}
        self.acknowledged: list[tuple[int, int, bool]] = []
        self.reported: list[pb.Progress] = []
        self.checkpoints_ms: list[float] = []
        self._serve(port)

    def _serve(self, port: int) -> None:
        # Each watching agent holds a thread.
        self._server = grpc.server(futures.ThreadPoolExecutor(32))
        feed_pb2_grpc.add_FeedServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    def plan(self, *indices: int) -> None:
        with self._lock:
            self.revision += 1
            self.planned = list(indices)
            self._tell()

    def choose(self, batch: pb.Batch) -> None:
        with self._lock:
            self._batch = batch
            self._tell()

    def pretend(self, index: int, there: bool) -> None:
        """Makes a slot's agent appear that isn't one, or vanish."""
        with self._lock:
            if there:
                self._addresses[index] = ("127.0.0.1:1", queue.Queue())
            else:
                del self._addresses[index]
            self._tell()

    def address(self, index: int) -> str:
        with self._lock:
            return self._address(index)

    def _address(self, index: int) -> str:
        return self._addresses[index][0] if index in self._addresses else ""

    def go_away(self) -> None:
        self._server.stop(0).wait()
        self._watchers.clear()
        self._addresses.clear()

    def come_back(self) -> None:
        self._serve(self.port)

    def _tell(self) -> None:
        for waiting in self._watchers:
            waiting.put(None)

    def Watch(self, request: pb.WatchRequest, context: Any) -> Iterator[pb.Assignment]:
        waiting: queue.Queue[None] = queue.Queue()
        waiting.put(None)
        with self._lock:
            self._watchers.append(waiting)
            # The training process of rank 0 only observes.
            if request.address:
                self._addresses[request.index] = (request.address, waiting)
            self._tell()

        def end() -> None:
            with self._lock:
                if waiting in self._watchers:
                    self._watchers.remove(waiting)
                if self._addresses.get(request.index, ("", None))[1] is waiting:
                    del self._addresses[request.index]
                    self._tell()
            waiting.put(None)

        context.add_callback(end)
        while context.is_active():
            waiting.get()
            with self._lock:
                peers = [
                    pb.Peer(
                        slot=job_pb2.Slot(role=WORKER, index=index, server="a"),
                        address=self._address(index),
                    )
                    for index in self.planned
                ]
                assignment = pb.Assignment(
                    job=7,
                    incarnation=self.incarnation,
                    revision=self.revision,
                    peers=peers,
                    grace_ms=self._grace_ms,
                    batch=self._batch,
                )
            if assignment.revision:
                yield assignment
                with self._lock:
                    self.told[request.index] = assignment.revision

    def Report(self, request: pb.ReportRequest, _: Any) -> pb.ReportReply:
        self.reported.extend(request.progress)
        return pb.ReportReply(accepted=True)

    def Acknowledge(self, request: pb.AcknowledgeRequest, _: Any) -> pb.AcknowledgeReply:
        if request.checkpoint_ms:
            self.checkpoints_ms.append(request.checkpoint_ms)
        self.acknowledged.append((request.index, request.revision, request.leaving))
        return pb.AcknowledgeReply()


class Agent:
    """A `torchrun` of an unmodified script."""

    def __init__(self, feed: Feed, folder: Path, index: int, *arguments: str, **environment: str) -> None:
        self.log = folder / f"agent-{index}.log"
        folder.mkdir(exist_ok=True)
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINMASTER_", "PET_"))}
        known = {
            "TRAINMASTER_FEED": f"127.0.0.1:{feed.port}",
            "TRAINMASTER_JOB": "7",
            "TRAINMASTER_JOB_NAME": "net",
            "TRAINMASTER_INDEX": str(index),
            "TRAINMASTER_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "TRAINMASTER_DONE_FILE": str(folder / f"done-{index}"),
            "PET_RDZV_BACKEND": "trainmaster",
            "PET_RDZV_ID": "net",
            "PET_NNODES": "1:4",
            "PET_NPROC_PER_NODE": "1",
            "PET_MAX_RESTARTS": "1000",
            "OMP_NUM_THREADS": "1",
        }
        command = [str(Path(sys.executable).with_name("torchrun")), *(arguments or (str(SCRIPT),))]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=plain | known | environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.log.read_text()

    def code(self) -> int:
        """The exit code, once the agent has ended."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it runs on:\n{self.text()}") from None

    def training(self) -> list[int]:
        """The training processes."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        return [int(pid) for pid in Path(path).read_text().split()] if self.process.poll() is None else []

    def end(self) -> None:
        for pid in [*self.training(), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def began(folder: Path) -> list[tuple[int, int, int]]:
    """The beginnings of training processes: rank, world size, and the step from which they continued."""
    lines = (folder / "began").read_text().splitlines() if (folder / "began").exists() else []
    return [(int(rank), int(world), int(step)) for rank, world, step in map(str.split, lines)]


def steps(folder: Path) -> list[tuple[int, int]]:
    """The steps of rank 0: number and world size."""
    lines = (folder / "steps").read_text().splitlines() if (folder / "steps").exists() else []
    return [(int(step), int(world)) for step, world in map(str.split, lines)]


def wait_for_world(folder: Path, world: int, after: int = 0) -> int:
    """Waits for a step of so many processes, after so many lines. Returns the number of lines."""

    def found() -> int:
        lines = steps(folder)
        return len(lines) if any(size == world for _, size in lines[after:]) else 0

    return int(wait_for(f"a step of {world} in {folder}", found))
