"""Measures the noise of gradients, and tells all processes what to train next.

Both cost one all-reduce of six numbers a step, for which nobody waits: it is read in the next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Message:
    """What all processes know after a step."""

    #: Arguments of `AdaptiveBatch.observe`. None: nothing was measured in this step.
    noise: tuple[float, float, float, float] | None
    #: The next batch and the submitted one. 0: as before.
    batch: int
    submitted: int


class Exchange:
    """The norms of a model's gradients, before and after its processes have averaged them."""

    def __init__(self, model: Any, world: int) -> None:
        """Raises ValueError if the model isn't one that so many processes train together, and RuntimeError if it has a
        hook for its communication already.
        """
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(f"model: {type(model).__name__} must be a DistributedDataParallel")
        self._group, self._world = model.process_group, world
        if dist.get_world_size(self._group) != world:
            size = dist.get_world_size(self._group)
            raise ValueError(f"model: it is trained by {size} processes, not by {world} as the sampler's data")
        self._device = next(model.parameters()).device
        # Squared norms of each bucket: mean over the parts, and of their mean.
        self._parts: list[torch.Tensor] = []
        self._means: list[torch.Tensor] = []
        # One process alone: the buckets of the step before, by number, and its examples.
        self._before: dict[int, torch.Tensor] = {}
        self._examples_before = 0
        # The buckets of this step. PyTorch changes the buckets after the first one.
        self._buckets: set[int] = set()
        self._valid = False
        self._sent: tuple[torch.Tensor, Any, int] | None = None
        model.register_comm_hook(self, Exchange._reduce)

    # Without annotations, because PyTorch would refuse those of this file, which are strings.
    def _reduce(self, bucket):  # type: ignore[no-untyped-def]
        """PyTorch calls this for each bucket of gradients, in place of its all-reduce."""
        gradient = bucket.buffer()
        # A second backward pass.
        self._valid &= bucket.index() not in self._buckets
        self._buckets.add(bucket.index())
        if self._world == 1:
            self._pair(bucket.index(), gradient)
            return allreduce_hook(self._group, bucket)
        # The all-reduce overwrites it.
        self._parts.append(_square(gradient))

        def averaged(future: Any) -> Any:
            mean = future.value()
            self._means.append(_square(mean))
            return mean

        return allreduce_hook(self._group, bucket).then(averaged)

    def _pair(self, index: int, gradient: torch.Tensor) -> None:
        """Compares a bucket with that of the step before, if it isn't compared with an earlier one already."""
        before = self._before.pop(index, None)
        if before is None:
            self._before[index] = gradient.clone()
        elif before.shape == gradient.shape:
            self._parts.append((_square(before) + _square(gradient)) / 2)
            self._means.append(_square((before + gradient) / 2))
        else:
            self._valid = False

    def agree(self, rank: int, batch: int, submitted: int) -> tuple[int, int]:
        """The batch and the submitted one of the first process. Waits for all."""
        own = [float(batch), float(submitted)] if rank == 0 else [0.0, 0.0]
        message = torch.tensor(own, dtype=torch.float64, device=self._device)
        dist.all_reduce(message, group=self._group)
        first = message.tolist()
        return int(first[0]), int(first[1])

    def send(self, examples: int, batch: int, submitted: int) -> None:
        """Begins to tell the others about a step with so many examples. One process also knows what is next."""
        parts, means, self._parts, self._means = self._parts, self._means, [], []
        counted = self._valid and len(parts) == len(means) > 0 and examples >= self._world
        if self._world == 1:
            # All buckets have their pairs, and both steps had the same batch.
            counted &= not self._before and self._examples_before == examples
            if parts or not self._valid:
                self._before.clear()
            self._examples_before = examples
        self._valid = True
        self._buckets.clear()
        rest = [float(counted), float(examples), float(batch), float(submitted)]
        message = torch.tensor([0.0, 0.0, *rest], dtype=torch.float64, device=self._device)
        if counted:
            message[0], message[1] = torch.stack(parts).sum(), torch.stack(means).sum()
        self._sent = message, dist.all_reduce(message, group=self._group, async_op=True), examples

    def receive(self) -> Message | None:
        """What was sent last. None: nothing.

        Raises RuntimeError if the processes have trained different batches.
        """
        if not self._sent:
            return None
        (message, work, examples), self._sent = self._sent, None
        work.wait()
        part, mean, counted, trained, batch, submitted = message.tolist()
        if trained != self._world * examples:
            raise RuntimeError(
                f"this process has trained a batch of {examples} examples, and others another one (the sum over "
                f"{self._world} processes is {trained:.0f}): all have to draw batches and call `advance` equally often"
            )
        noise = None
        if counted == self._world:
            small, large = (examples / self._world, examples) if self._world > 1 else (examples, 2 * examples)
            noise = part / counted, mean / counted, small, large
        return Message(noise, int(batch), int(submitted))


def _square(gradient: torch.Tensor) -> torch.Tensor:
    """The squared norm."""
    values = (gradient.coalesce().values() if gradient.is_sparse else gradient).detach()
    wide = torch.float64 if values.dtype == torch.float64 else torch.float32
    return torch.linalg.vector_norm(values, dtype=wide).double().square()
