"""The context that a user's class gets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..job import Job
from ..tally import Report
from . import checkpoint
from .slots import RoleName


@dataclass(frozen=True)
class Peer:
    """Another slot of the job. Call its class's methods like those of an actor: `peer.push.remote(gradient)`."""

    role: RoleName
    index: int
    server: str
    handle: Any

    def __getattr__(self, name: str) -> Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return Method(self.handle, name)


@dataclass(frozen=True)
class Method:
    """A method of a peer."""

    handle: Any
    name: str

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the method. Returns an ObjectRef of its result."""
        return self.handle.call.remote(self.name, *args, **kwargs)


@dataclass(frozen=True)
class Assignment:
    """A slot's part in a round. During a round, the job's workers and servers stay the same."""

    job: Job
    round: int
    incarnation: int
    revision: int
    role: RoleName
    index: int
    rank: int
    server: str
    workers: tuple[Peer, ...]
    servers: tuple[Peer, ...]
    folder: str
    # Seconds that a worker has from `stop` to its return.
    grace: float


class Context:
    """A slot's place in the job, and its way to report progress.

    `rank` (from 0, without gaps) and `world` are a worker's place among the current workers. `index` is the number of
    its slot, which doesn't change. `workers` and `servers` are the peers in the order of rank. `server` is the machine.
    After `should_stop` is true, there are `grace` seconds to return. `loop` is the actor's event loop.
    """

    def __init__(self, assignment: Assignment, sink: Callable[[Report], None], loop: asyncio.AbstractEventLoop) -> None:
        self.job = assignment.job
        self.round = assignment.round
        self.incarnation = assignment.incarnation
        self.revision = assignment.revision
        self.role = assignment.role
        self.index = assignment.index
        self.rank = assignment.rank
        self.world = len(assignment.workers)
        self.server = assignment.server
        self.workers = assignment.workers
        self.servers = assignment.servers
        self.step = 0
        self.checkpoint_step = 0
        self.checkpoint_ms = 0.0
        self.left = False
        self.converged = False
        self._folder = Path(assignment.folder)
        self._stop = threading.Event()
        self._sink = sink
        self.grace = assignment.grace
        self.loop = loop

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the newest complete checkpoint. None before the first."""
        return checkpoint.newest(self._folder)

    @contextmanager
    def save(self, step: int) -> Iterator[Path]:
        """Writes a checkpoint: `with ctx.save(step) as folder: …`. Only one worker saves, usually rank 0."""
        start = time.monotonic()
        with checkpoint.saving(self._folder, step) as folder:
            yield folder
        self.checkpoint_step, self.checkpoint_ms = step, (time.monotonic() - start) * 1000

    def report(
        self,
        *,
        step: int,
        loss: float | None = None,
        examples: int = 0,
        epoch: int | None = None,
        accuracy: float | None = None,
        steps_per_epoch: int = 0,
        step_ms: float | None = None,
    ) -> None:
        """Reports the progress of training. Never blocks.

        `step` counts from the start of the job. `examples` is the number of examples that this worker trained since its
        last report. `step_ms` is the time of a step in this worker alone; it serves to find stragglers.
        """
        times = {} if step_ms is None else {self.index: step_ms}
        self.take(Report(step, loss, examples, epoch, accuracy, steps_per_epoch, times))

    def take(self, report: Report) -> None:
        self.step = report.step
        self._sink(report)

    def get(self, refs: Sequence[Any]) -> list[Any]:
        """The results of peers' methods. Unlike `ray.get`, it doesn't warn about blocking the actor's event loop."""
        return asyncio.run_coroutine_threadsafe(_all(refs), self.loop).result()

    @property
    def stopping(self) -> bool:
        """The same as `should_stop`, without a commitment to leave."""
        return self._stop.is_set()

    def should_stop(self) -> bool:
        """Whether to save a checkpoint and return now. A worker that does is called again in the new shape.

        Workers that wait for each other have to leave after the same step. They have to agree on it, as the ready
        trainers do.
        """
        if self._stop.is_set():
            self.left = True
        return self.left

    def leave(self) -> None:
        """Marks that this worker is about to return because a peer has to stop."""
        self.left = True

    def stop(self) -> None:
        self._stop.set()


async def _all(refs: Sequence[Any]) -> list[Any]:
    return list(await asyncio.gather(*refs))
