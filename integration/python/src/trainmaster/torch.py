"""For training loops with PyTorch: reports in one line, and batches of which none is lost or trained twice when the
number of processes changes.

    sampler = ElasticBatchSampler(len(data), batch=64)
    loader = DataLoader(data, batch_sampler=sampler)
    ...
    while sampler.epoch < EPOCHS:
        for x, y in loader:
            loss = train(x, y)
            sampler.advance()
            trainmaster.torch.report(loss, sampler)
"""

from __future__ import annotations

import torch

from . import loop
from .samplers import AdaptiveBatchSampler, ElasticBatchSampler, ranks

__all__ = ["AdaptiveBatchSampler", "ElasticBatchSampler", "accumulation", "ranks", "report"]


def accumulation(batch: int, each: int, world: int | None = None) -> int:
    """The number of passes over `each` examples that every process adds up, so that all together train `batch`
    examples a step, whatever their number is: `gradient_accumulation_steps` and `accumulate_grad_batches`.

    Raises ValueError if that number isn't whole. `world` is by default the present number of processes.
    """
    world = ranks()[1] if world is None else world
    if min(batch, each, world) < 1:
        raise ValueError(f"batch: {batch}, each: {each} and the number of processes, {world}, must be 1 or more")
    passes, left = divmod(batch, each * world)
    if left or not passes:
        raise ValueError(
            f"batch: {batch} must be a multiple of {each * world}, {world} processes with {each} each; "
            "`sizes` in the job file says which numbers of workers there may be"
        )
    return passes


def report(
    loss: torch.Tensor | float | None, at: ElasticBatchSampler | AdaptiveBatchSampler | int, *, examples: int = 0
) -> None:
    """Reports a step and its loss, like `trainmaster.report`. Call it after each optimizer step.

    `at` is the sampler, after `advance`, or the number of steps since the start of the job, across restarts. Only the
    process that reports waits for the loss.
    """
    if not loop.reports():
        return
    value = loss.item() if isinstance(loss, torch.Tensor) else loss
    if isinstance(at, int):
        loop.report(step=at, loss=value, examples=examples)
        return
    fields = at.fields()
    if examples:
        fields["examples"] = examples
    loop.report(loss=value, **fields)
