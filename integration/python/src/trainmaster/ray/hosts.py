"""The actors. Each has one object of a user's class."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import loop
from ..tally import Report
from .context import Assignment, Context

# The minimum interval in seconds between two fetches of a worker's reports.
_PACE = 0.2
_MOST_REPORTS = 10_000


@dataclass(frozen=True)
class RoundEnd:
    """The result of a worker's `run`."""

    left: bool
    converged: bool
    step: int
    checkpoint_step: int
    checkpoint_ms: float


class Host:
    """Base class of the actors. It runs on the actor's event loop; the user's training loop runs in a thread."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._user = factory()

    async def ready(self) -> None:
        """Returns once the actor runs."""

    async def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self._user, name)(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result


class WorkerHost(Host):
    """The actor of a worker."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        super().__init__(factory)
        self._context: Context | None = None
        self._over = asyncio.Event()
        # The user's thread appends. Without a driver, nothing is fetched, and the oldest reports are dropped.
        self._reports: deque[Report] = deque(maxlen=_MOST_REPORTS)

    async def run(self, assignment: Assignment) -> RoundEnd:
        context = self._context = Context(assignment, self._reports.append, asyncio.get_running_loop())
        loop.sink, loop.stopping = context.take, context.should_stop
        self._over.clear()
        await asyncio.to_thread(self._user.run, context)
        self._over.set()
        return RoundEnd(context.left, context.converged, context.step, context.checkpoint_step, context.checkpoint_ms)

    async def stop(self) -> None:
        if self._context:
            self._context.stop()

    async def reports(self) -> list[Report]:
        """Returns the reports since the last call. During training, it waits a little for more."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._over.wait(), _PACE)
        return [self._reports.popleft() for _ in range(len(self._reports))]


class ServerHost(Host):
    """The actor of a parameter server."""

    async def begin(self, assignment: Assignment) -> None:
        """Starts a round. No worker of the last round waits any more."""
        self._user.begin(Context(assignment, lambda report: None, asyncio.get_running_loop()))
