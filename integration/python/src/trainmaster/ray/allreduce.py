"""A ready all-reduce trainer: every worker has all parameters, and averages one part of the gradients."""

from __future__ import annotations

import time

import numpy as np

from . import training
from .context import Context
from .training import GO, LEAVE, Gather, Optimizer, Part, Trainer


class AllReduceWorker(Trainer):
    """Trains without parameter servers. A subclass implements `init` and `gradient`.

    Each worker sends its part of the gradient to each other worker and receives the mean: as many bytes as in a ring.
    When the workers change, all leave after the same step, and continue from its checkpoint in the existing processes.
    """

    def __init__(self, learning_rate: float = 0.1, momentum: float = 0.0) -> None:
        self._optimizer = Optimizer(learning_rate, momentum)
        self._gather = Gather()

    def run(self, ctx: Context) -> None:
        training.check(ctx.job)
        self.setup(ctx)
        job = ctx.job
        steps = training.steps_per_epoch(job)
        step, state, epochs = training.load(ctx.checkpoint)
        state = state or {"params": np.asarray(self.init(), np.float32)}
        # All workers have the same losses, so that they need to agree only on leaving.
        done, flag = training.finished(job.convergence, epochs.losses), GO
        while done == flag == GO:
            flag = LEAVE if ctx.stopping else GO
            start = time.monotonic()
            indices = training.share(job, step, ctx.rank, ctx.world)
            loss, gradient = self._measure(state["params"], indices)
            took = (time.monotonic() - start) * 1000
            mean = self._reduce(ctx, step, Part(gradient, len(indices), loss, flag))
            self._optimizer.apply(state, mean.gradient)
            step, flag = step + 1, mean.flag
            ends = step % steps == 0
            epochs.add(mean.loss, ends)
            done = training.finished(job.convergence, epochs.losses)
            if ctx.rank == 0:
                ctx.report(
                    step=step,
                    loss=mean.loss,
                    examples=mean.weight,
                    epoch=step // steps,
                    accuracy=self.accuracy(state["params"]) if ends else None,
                    steps_per_epoch=steps,
                    step_ms=took,
                )
                if done or flag or step % self.checkpoint_steps == 0:
                    training.save(ctx, step, state, epochs)
            else:
                ctx.report(step=step, step_ms=took)
        if not done:
            ctx.leave()
        ctx.converged = done == training.CONVERGED

    def _reduce(self, ctx: Context, step: int, part: Part) -> Part:
        pieces = np.array_split(part.gradient, ctx.world)
        means = ctx.get(
            [
                peer.average.remote(
                    (ctx.round, step), ctx.rank, ctx.world, Part(piece, part.weight, part.loss, part.flag)
                )
                for peer, piece in zip(ctx.workers, pieces, strict=True)
            ]
        )
        whole = np.concatenate([mean.gradient for mean in means])
        return Part(whole, means[0].weight, means[0].loss, means[0].flag)

    async def average(self, key: tuple[int, int], rank: int, world: int, part: Part) -> Part:
        """Averages this worker's part of all gradients. Called by every worker, including this one."""
        return await self._gather.join(key, rank, world, part, training.combine)
