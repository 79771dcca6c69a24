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
from .samplers import AdaptiveBatchSampler, ElasticBatchSampler, accumulation, ranks

__all__ = ["AdaptiveBatchSampler", "ElasticBatchSampler", "accumulation", "ranks", "report"]


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
