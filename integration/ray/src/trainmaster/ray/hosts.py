"""The actors: each holds one object of a user's class."""

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

# A worker's reports are fetched at most so often.
_PACE = 0.2
_MOST_REPORTS = 10_000


@dataclass(frozen=True)
class RoundEnd:
    """How a worker's `run` returned."""

    left: bool
    converged: bool
    step: int
    checkpoint_step: int
    checkpoint_ms: float


class Host:
    """Runs on the actor's event loop; a user's own loop has a thread."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._user = factory()

    async def ready(self) -> None:
        """Answered once the actor is there."""

    async def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self._user, name)(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result


class WorkerHost(Host):
    """A worker."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        super().__init__(factory)
        self._context: Context | None = None
        self._over = asyncio.Event()
        # Filled by the user's thread. Nobody fetches them while the driver is away: the oldest go.
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
        """What was reported since the last call; waits a little for more, as long as there is more to come."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._over.wait(), _PACE)
        return [self._reports.popleft() for _ in range(len(self._reports))]


class ServerHost(Host):
    """A parameter server."""

    async def begin(self, assignment: Assignment) -> None:
        """Another round starts: no worker of the last one is waiting any more."""
        self._user.begin(Context(assignment, lambda report: None, asyncio.get_running_loop()))
