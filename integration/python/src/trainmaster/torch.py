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

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import Sampler

from . import loop


def ranks(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """This process's rank and the number of training processes, as `torchrun` and Trainmaster set them."""
    rank, world = loop.number(environment, "RANK", 0), loop.number(environment, "WORLD_SIZE", 1)
    if not rank < world:
        raise ValueError(f"RANK: {rank} must be below WORLD_SIZE, which is {world}")
    return rank, world


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


class ElasticBatchSampler(Sampler[list[int]]):
    """This process's part of each batch, for `DataLoader(data, batch_sampler=…)`.

    The order of an epoch depends on `seed` and its number only, and a batch has the same examples whatever the number
    of processes is. `state_dict` says which were trained: a checkpoint with it continues at the next batch on another
    number of processes. Of a batch that isn't a multiple of that number, some processes get one example more.
    """

    def __init__(
        self,
        length: int,
        batch: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        """`length` examples in batches of `batch`, of all processes together. `drop_last` leaves out a smaller one.

        Raises ValueError if a process would get no example of a batch.
        """
        own = ranks()
        self.rank, self.world = own[0] if rank is None else rank, own[1] if world is None else world
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank: {self.rank} must be from 0 to below {self.world}")
        if not self.world <= batch <= length:
            raise ValueError(
                f"batch: {batch} must be from {self.world}, the number of processes, to {length}, that of examples"
            )
        self.length, self.batch, self.shuffle, self.seed, self.drop_last = length, batch, shuffle, seed, drop_last
        #: Completed epochs, and batches that were trained in the present one.
        self.epoch = self.done = 0

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self.length // self.batch if self.drop_last else -(-self.length // self.batch)

    def __iter__(self) -> Iterator[list[int]]:
        """The rest of the present epoch."""
        # 8 bytes an example.
        order = torch.arange(self.length)
        if self.shuffle:
            order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.seed + self.epoch))
        for at in range(self.done, len(self)):
            batch = order[at * self.batch : (at + 1) * self.batch].tolist()
            # All processes take part in a step: a last batch with fewer examples than processes repeats some.
            if len(batch) < self.world:
                batch = (batch * self.world)[: self.world]
            size = len(batch)
            yield batch[self.rank * size // self.world : (self.rank + 1) * size // self.world]

    def advance(self) -> None:
        """Counts a batch as trained. Call it after each optimizer step."""
        self.done += 1
        if self.done >= len(self):
            self.epoch, self.done = self.epoch + 1, 0

    @property
    def step(self) -> int:
        """The batches that were trained since the start of the job."""
        return self.epoch * len(self) + self.done

    @property
    def trained(self) -> int:
        """The examples of the batch that was counted last."""
        at = (self.done or len(self)) - 1
        return min(self.batch, self.length - at * self.batch)

    def state_dict(self, trained: int = 0) -> dict[str, int]:
        """What a checkpoint needs. It is the same in all processes. `trained` batches more count as trained."""
        epoch, done = divmod(self.step + trained, len(self))
        return {
            "epoch": epoch,
            "done": done,
            "length": self.length,
            "batch": self.batch,
            "seed": self.seed,
            "shuffle": int(self.shuffle),
            "drop_last": int(self.drop_last),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after the trained batches. Raises ValueError if the data or the batch are others."""
        for name, own in self.state_dict().items():
            if name not in ("epoch", "done") and state.get(name) != own:
                raise ValueError(f"{name}: the checkpoint has {state.get(name)!r}, this sampler {own!r}")
        epoch, done = state.get("epoch"), state.get("done")
        if not (isinstance(epoch, int) and isinstance(done, int) and epoch >= 0 and 0 <= done < len(self)):
            raise ValueError(f"epoch: {epoch!r} and done: {done!r} aren't those of a sampler with {len(self)} batches")
        self.epoch, self.done = epoch, done


def report(loss: torch.Tensor | float | None, at: ElasticBatchSampler | int, *, examples: int = 0) -> None:
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
    loop.report(step=at.step, loss=value, examples=examples or at.trained, epoch=at.epoch, steps_per_epoch=len(at))
