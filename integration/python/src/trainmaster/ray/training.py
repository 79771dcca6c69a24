"""Common parts of the ready trainers: the examples of a step, the end of training, optimisers. Pure."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..job import Convergence, Job
from .context import Context

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
_T = TypeVar("_T")

# A worker's flag at a step boundary. The largest flag of all workers decides.
GO, LEAVE, EXHAUSTED, CONVERGED = range(4)


def share(job: Job, step: int, rank: int, world: int) -> Indices:
    """The examples of one of `world` workers in a synchronous step: its part of the global batch.

    The global batch depends on the step alone, so that a job trains each example once per epoch in any shape.
    """
    steps = steps_per_epoch(job)
    order = np.random.default_rng(step // steps).permutation(job.examples)
    at = step % steps * job.batch
    batch: Indices = order[at : at + job.batch]
    return np.array_split(batch, world)[rank]


def draw(job: Job, step: int, index: int) -> Indices:
    """The batch of an asynchronous worker."""
    generator = np.random.default_rng((step, index))
    return generator.integers(0, job.examples, min(job.batch, job.examples))


def steps_per_epoch(job: Job) -> int:
    return math.ceil(job.examples / job.batch)


def finished(rule: Convergence, losses: Sequence[float]) -> int:
    """GO, EXHAUSTED or CONVERGED, from the mean losses of all epochs so far."""
    if rule.delta > 0 and len(losses) > rule.patience:
        last = losses[-rule.patience - 1 :]
        if all(a - b < rule.delta * losses[0] for a, b in itertools.pairwise(last)):
            return CONVERGED
    return EXHAUSTED if len(losses) >= rule.max_epochs else GO


@dataclass
class Epochs:
    """The mean losses of the epochs so far, and the sum of the current one."""

    losses: list[float] = field(default_factory=list)
    total: float = 0.0
    count: int = 0

    def add(self, loss: float, ends_epoch: bool) -> None:
        self.total += loss
        self.count += 1
        if ends_epoch:
            self.losses.append(self.total / self.count)
            self.total, self.count = 0.0, 0


class Optimizer:
    """Stochastic gradient descent, optionally with momentum."""

    def __init__(self, learning_rate: float, momentum: float) -> None:
        if not learning_rate > 0:
            raise ValueError(f"learning_rate: {learning_rate} must be above 0")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum: {momentum} must be from 0 up to 1")
        self.learning_rate = learning_rate
        self.momentum = momentum

    def apply(self, state: dict[str, Floats], gradient: Floats) -> None:
        if self.momentum:
            velocity = state.get("velocity", np.zeros_like(gradient))
            state["velocity"] = (self.momentum * velocity + gradient).astype(np.float32)
            gradient = state["velocity"]
        state["params"] = (state["params"] - self.learning_rate * gradient).astype(np.float32)


@dataclass(frozen=True)
class Part:
    """A worker's contribution to a step."""

    gradient: Floats
    weight: int
    loss: float
    flag: int


def combine(parts: Sequence[Part]) -> Part:
    """The mean of the parts over examples, with the largest flag."""
    weight = sum(part.weight for part in parts)
    scale = [part.weight / weight if weight else 1 / len(parts) for part in parts]
    gradient = np.zeros_like(parts[0].gradient)
    for part, factor in zip(parts, scale, strict=True):
        gradient += np.float32(factor) * part.gradient
    loss = sum(part.loss * factor for part, factor in zip(parts, scale, strict=True))
    return Part(gradient, weight, loss, max(part.flag for part in parts))


class Gather:
    """Lets workers that wait for each other in a step continue together."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], tuple[dict[int, Part], asyncio.Future[Any]]] = {}

    async def join(
        self, key: tuple[int, int], rank: int, world: int, part: Part, complete: Callable[[Sequence[Part]], _T]
    ) -> _T:
        """Adds a part for `key` (round and step). The last part completes the step. All callers get its result."""
        parts, done = self._open.setdefault(key, ({}, asyncio.get_running_loop().create_future()))
        parts[rank] = part
        if len(parts) == world:
            del self._open[key]
            # In the order of rank, so that the sum doesn't depend on the order of arrival.
            done.set_result(complete([parts[rank] for rank in sorted(parts)]))
        result: _T = await done
        return result

    def forget(self) -> None:
        """Forgets incomplete steps; workers that still wait in one are cancelled."""
        for _, done in self._open.values():
            done.cancel()
        self._open.clear()


class Trainer:
    """A user's model, which `PSWorker` or `AllReduceWorker` trains.

    Parameters are one flat float32 array. Every worker calls `setup` at the start of each round.
    """

    # Rank 0 saves a checkpoint after every such number of steps, and before it leaves.
    checkpoint_steps = 100

    def setup(self, ctx: Context) -> None:
        """Loads data. Called again after each change of the job's workers."""

    def init(self) -> Floats:
        """The initial parameters."""
        raise NotImplementedError

    def gradient(self, params: Floats, indices: Indices) -> tuple[float, Floats]:
        """The mean loss over these examples (numbers below `job.examples`), and its gradient."""
        raise NotImplementedError

    def accuracy(self, params: Floats) -> float | None:
        """The accuracy at the end of each epoch. None if it isn't measured."""
        return None

    def _measure(self, params: Floats, indices: Indices) -> tuple[float, Floats]:
        if not len(indices):  # more workers than examples in the step
            return 0.0, np.zeros_like(params)
        loss, gradient = self.gradient(params, indices)
        return float(loss), np.asarray(gradient, np.float32)


def check(job: Job) -> None:
    """Checks the job's values that only the ready trainers need."""
    if job.examples < 1:
        raise ValueError("examples: 0 must be at least 1: the ready trainers divide the examples of an epoch")


def save(ctx: Context, step: int, state: dict[str, Floats], epochs: Epochs) -> None:
    with ctx.save(step) as folder:
        np.savez(folder / "state.npz", **state)  # type: ignore[arg-type]
        record = {"step": step, "losses": epochs.losses, "total": epochs.total, "count": epochs.count}
        (folder / "progress.json").write_text(json.dumps(record))


def load(folder: Path | None) -> tuple[int, dict[str, Floats] | None, Epochs]:
    """Loads step, state and epochs. Without a checkpoint: 0, None and empty."""
    if folder is None:
        return 0, None, Epochs()
    with np.load(folder / "state.npz", allow_pickle=False) as archive:
        state = {name: archive[name] for name in archive.files}
    record = json.loads((folder / "progress.json").read_text())
    return record["step"], state, Epochs(record["losses"], record["total"], record["count"])
