"""What a user's class is given."""

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
    """Another slot of the job. Its class's methods are called as an actor's are: `peer.push.remote(gradient)`."""

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
        """An ObjectRef of what it returns."""
        return self.handle.call.remote(self.name, *args, **kwargs)


@dataclass(frozen=True)
class Assignment:
    """One slot's part in a round: the time in which the job's workers and servers stay the same."""

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


class Context:
    """What a slot is part of, and how it tells how training goes.

    `rank` (from 0 on, without gaps) and `world` are a worker's place among the workers now; `index` is its slot, which
    it keeps. `workers` and `servers` are the peers, in the order of rank; `server` is the machine.
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
        self._loop = loop

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the last complete checkpoint; None before the first."""
        return checkpoint.newest(self._folder)

    @contextmanager
    def save(self, step: int) -> Iterator[Path]:
        """Writes a checkpoint: `with ctx.save(step) as folder: …`. One worker does, usually that of rank 0."""
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
        """Says how far training is; never waits.

        `step` counts from the job's begin; `examples` are those this worker trained since its last report; `step_ms` is
        what a step takes this worker by itself, to find stragglers.
        """
        times = {} if step_ms is None else {self.index: step_ms}
        self.take(Report(step, loss, examples, epoch, accuracy, steps_per_epoch, times))

    def take(self, report: Report) -> None:
        self.step = report.step
        self._sink(report)

    def get(self, refs: Sequence[Any]) -> list[Any]:
        """What peers' methods returned. As `ray.get`, which takes the thread of `run` for the actor's and warns."""
        return asyncio.run_coroutine_threadsafe(_all(refs), self._loop).result()

    @property
    def stopping(self) -> bool:
        """Whether `should_stop` would say so, without promising to leave."""
        return self._stop.is_set()

    def should_stop(self) -> bool:
        """Whether to save a checkpoint and return now. Who is told so and returns is called again in the new shape.

        Workers that wait for each other must leave after the same step: let them agree on it, as the ready trainers do.
        """
        if self._stop.is_set():
            self.left = True
        return self.left

    def leave(self) -> None:
        """This worker is about to return because a peer was told to stop."""
        self.left = True

    def stop(self) -> None:
        self._stop.set()


async def _all(refs: Sequence[Any]) -> list[Any]:
    return list(await asyncio.gather(*refs))
