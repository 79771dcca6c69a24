"""A ready trainer with parameter servers, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from . import training
from .context import Context
from .training import EXHAUSTED, GO, LEAVE, Epochs, Floats, Gather, Optimizer, Part, Trainer


@dataclass(frozen=True)
class Reply:
    """A parameter server's answer to a gradient."""

    step: int
    params: Floats
    loss: float
    flag: int


class PSServer:
    """Holds one part of the parameters. Override `update` for another optimiser.

    In synchronous mode, a step is done when all workers' gradients have arrived. In asynchronous mode, each gradient is
    a step.
    """

    def __init__(self, learning_rate: float = 0.1, momentum: float = 0.0) -> None:
        self._optimizer = Optimizer(learning_rate, momentum)
        self._gather = Gather()
        self._step = 0
        self._state: dict[str, Floats] | None = None
        self._loaded = asyncio.Event()
        self._flag = GO

    def begin(self, ctx: Context) -> None:
        self._async = ctx.job.mode == "async"
        # The first server's steps count: workers' gradients come in another order at each.
        last = ctx.job.convergence.max_epochs * training.steps_per_epoch(ctx.job)
        self._last = last if ctx.rank == 0 else math.inf
        self._world = ctx.world
        self._round = ctx.round
        self._flag = GO
        self._gather.forget()

    def update(self, state: dict[str, Floats], gradient: Floats) -> None:
        """Changes `state["params"]`, and the optimiser's other arrays in `state`, which have the same length."""
        self._optimizer.apply(state, gradient)

    def load(self, step: int, state: dict[str, Floats]) -> None:
        self._step, self._state = step, state
        self._loaded.set()

    def loaded(self) -> bool:
        return self._state is not None

    async def pull(self) -> Reply:
        await self._loaded.wait()
        assert self._state is not None, "loaded"
        return Reply(self._step, self._state["params"], 0.0, self._flag)

    def state(self) -> dict[str, Floats]:
        assert self._state is not None, "asked for by a worker that has pulled it"
        return self._state

    def end(self, flag: int) -> None:
        """Ends the training. Asynchronous workers get the flag with the answer to their next gradient."""
        self._flag = max(self._flag, flag)

    async def push(self, rank: int, part: Part) -> Reply:
        if self._async:
            # Workers don't wait for each other, so only here it is known which gradient is the last one.
            reply = self._apply([part]) if self._step < self._last else await self.pull()
            return replace(reply, flag=max(reply.flag, EXHAUSTED)) if reply.step >= self._last else reply
        return await self._gather.join((self._round, self._step), rank, self._world, part, self._apply)

    def _apply(self, parts: Sequence[Part]) -> Reply:
        assert self._state is not None, "workers pull before they push"
        whole = training.combine(parts)
        self.update(self._state, whole.gradient)
        self._step += 1
        return Reply(self._step, self._state["params"], whole.loss, max(whole.flag, self._flag))


class PSWorker(Trainer):
    """Trains with parameter servers. A subclass implements `init` and `gradient`."""

    def run(self, ctx: Context) -> None:
        training.check(ctx.job)
        self.setup(ctx)
        epochs = self._begin(ctx)
        if ctx.job.mode == "async":
            self._train_async(ctx, epochs)
        else:
            self._train_sync(ctx, epochs)

    def _begin(self, ctx: Context) -> Epochs:
        """Loads the state into the servers of a new incarnation. After a change of workers, the servers have it
        already.
        """
        step, state, epochs = training.load(ctx.checkpoint)
        if ctx.rank == 0 and not all(ctx.get([server.loaded.remote() for server in ctx.servers])):
            state = state or {"params": np.asarray(self.init(), np.float32)}
            parts = {name: np.array_split(array, len(ctx.servers)) for name, array in state.items()}
            loads = [
                server.load.remote(step, {name: split[at] for name, split in parts.items()})
                for at, server in enumerate(ctx.servers)
            ]
            ctx.get(loads)
        return epochs

    def _train_sync(self, ctx: Context, epochs: Epochs) -> None:
        job = ctx.job
        steps = training.steps_per_epoch(job)
        step, params, _, _ = _whole(ctx.get([server.pull.remote() for server in ctx.servers]))
        # All workers have the same losses, so that they need to agree only on leaving.
        done, flag = training.finished(job.convergence, epochs.losses), GO
        while done == flag == GO:
            flag = LEAVE if ctx.stopping else GO
            start = time.monotonic()
            indices = training.share(job, step, ctx.rank, ctx.world)
            loss, gradient = self._measure(params, indices)
            took = (time.monotonic() - start) * 1000
            step, params, loss, flag = _push(ctx, gradient, len(indices), loss, flag)
            ends = step % steps == 0
            epochs.add(loss, ends)
            done = training.finished(job.convergence, epochs.losses)
            if ctx.rank == 0:
                size = min(job.batch, job.examples - (step - 1) % steps * job.batch)
                self._say(ctx, step, loss, size, self.accuracy(params) if ends else None, took)
                if done or flag or step % self.checkpoint_steps == 0:
                    self._save(ctx, step, epochs)
            else:
                ctx.report(step=step, step_ms=took)
        self._leave(ctx, max(done, flag))

    def _train_async(self, ctx: Context, epochs: Epochs) -> None:
        job, flag = ctx.job, GO
        steps = training.steps_per_epoch(job)
        step, params, _, flag = _whole(ctx.get([server.pull.remote() for server in ctx.servers]))
        pushed = 0
        while flag == GO and not ctx.stopping:
            if ctx.rank == 0 and (done := training.finished(job.convergence, epochs.losses)):
                ctx.get([server.end.remote(done) for server in ctx.servers])
            start, before = time.monotonic(), step
            indices = training.draw(job, step + pushed, ctx.index)
            loss, gradient = self._measure(params, indices)
            took = (time.monotonic() - start) * 1000
            step, params, _, flag = _push(ctx, gradient, len(indices), loss, GO)
            pushed += 1
            ends = step // steps > before // steps
            epochs.add(loss, ends)
            accuracy = self.accuracy(params) if ends and ctx.rank == 0 else None
            self._say(ctx, step, loss, len(indices), accuracy, took)
            if ctx.rank == 0 and step // self.checkpoint_steps > before // self.checkpoint_steps:
                self._save(ctx, step, epochs)
        if ctx.rank == 0:
            self._save(ctx, step, epochs)
        self._leave(ctx, flag if flag > LEAVE else LEAVE)

    def _say(self, ctx: Context, step: int, loss: float, examples: int, accuracy: float | None, step_ms: float) -> None:
        steps = training.steps_per_epoch(ctx.job)
        ctx.report(
            step=step,
            loss=loss,
            examples=examples,
            epoch=step // steps,
            accuracy=accuracy,
            steps_per_epoch=steps,
            step_ms=step_ms,
        )

    def _save(self, ctx: Context, step: int, epochs: Epochs) -> None:
        states = ctx.get([server.state.remote() for server in ctx.servers])
        whole = {name: np.concatenate([state[name] for state in states]) for name in states[0]}
        training.save(ctx, step, whole, epochs)

    def _leave(self, ctx: Context, flag: int) -> None:
        if flag < EXHAUSTED:
            ctx.leave()
        ctx.converged = flag == training.CONVERGED


def _push(ctx: Context, gradient: Floats, weight: int, loss: float, flag: int) -> tuple[int, Floats, float, int]:
    parts = np.array_split(gradient, len(ctx.servers))
    pushes = [
        server.push.remote(ctx.rank, Part(part, weight, loss, flag))
        for server, part in zip(ctx.servers, parts, strict=True)
    ]
    return _whole(ctx.get(pushes))


def _whole(replies: Sequence[Reply]) -> tuple[int, Floats, float, int]:
    params = np.concatenate([reply.params for reply in replies])
    return replies[0].step, params, replies[0].loss, max(reply.flag for reply in replies)
