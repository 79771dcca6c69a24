"""Samplers for `DataLoader(data, batch_sampler=…)` whose batches don't depend on the number of processes."""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

import torch
from torch.utils.data import Sampler

from . import loop
from .batch import AdaptiveBatch, BatchFields
from .noise import Exchange, Message

log = logging.getLogger("trainmaster")


class _Fields(TypedDict):
    step: int
    examples: int
    epoch: int
    steps_per_epoch: int


class Fields(_Fields, BatchFields, total=False):
    """Arguments of `trainmaster.report`."""

    steps: int


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


def among(rank: int | None, world: int | None, batch: int, length: int) -> tuple[int, int]:
    """This process's rank and the number of processes, by default the present ones.

    Raises ValueError if they, or a batch of so many of `length` examples, aren't possible.
    """
    own = ranks()
    rank, world = own[0] if rank is None else rank, own[1] if world is None else world
    if not 0 <= rank < world:
        raise ValueError(f"rank: {rank} must be from 0 to below {world}")
    if not world <= batch <= length:
        raise ValueError(f"batch: {batch} must be from {world}, the number of processes, to {length}, that of examples")
    return rank, world


def shuffled(length: int, seed: int | None) -> torch.Tensor:
    """The order of the examples, in 8 bytes each. None: as they are."""
    if seed is None:
        return torch.arange(length)
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))


def part(batch: list[int], rank: int, world: int) -> list[int]:
    """One process's part of a batch."""
    # All processes take part in a step: a last batch with fewer examples than processes repeats some.
    if len(batch) < world:
        batch = (batch * world)[:world]
    size = len(batch)
    return batch[rank * size // world : (rank + 1) * size // world]


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
        self.rank, self.world = among(rank, world, batch, length)
        self.length, self.batch, self.shuffle, self.seed, self.drop_last = length, batch, shuffle, seed, drop_last
        #: Completed epochs, and batches that were trained in the present one.
        self.epoch = self.done = 0

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self.length // self.batch if self.drop_last else -(-self.length // self.batch)

    def __iter__(self) -> Iterator[list[int]]:
        """The rest of the present epoch."""
        order = shuffled(self.length, self.seed + self.epoch if self.shuffle else None)
        for at in range(self.done, len(self)):
            batch = order[at * self.batch : (at + 1) * self.batch].tolist()
            yield part(batch, self.rank, self.world)

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

    def fields(self) -> Fields:
        """The arguments of `trainmaster.report` after `advance`."""
        return {"step": self.step, "examples": self.trained, "epoch": self.epoch, "steps_per_epoch": len(self)}

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


class AdaptiveBatchSampler(Sampler[list[int]]):
    """This process's part of each batch of a job whose batch the scheduler chooses while it runs, such as one with
    `batch = { size = 64, max = 4096 }`.

    `follow` measures the noise of the gradients, by which the scheduler chooses, and scales the learning rate. All
    processes take over a batch at the same step. A pass over the data has each example once, whatever the batches and
    the number of processes are, also if a checkpoint with `state_dict` continues within it.
    """

    def __init__(
        self,
        length: int,
        batch: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`length` examples. `batch` is the submitted batch of all processes together in a program that Trainmaster
        did not start. Programs that it starts get theirs from it.

        Raises ValueError if there are fewer examples than processes.
        """
        self.rank, self.world = among(rank, world, length, length)
        self._batch = AdaptiveBatch(batch, environment)
        self.length, self.shuffle, self.seed = length, shuffle, seed
        #: Completed passes over the data, and the examples of the present one that were trained.
        self.rounds = self.done = 0
        #: The training so far, in steps of the submitted batch.
        self.progress = 0.0
        self._count_in(self._batch.submitted)
        self._take(self._of_one_pass(self._batch.size, self._batch.local, self._batch.passes))
        # Size and number of examples of the batches that were drawn and aren't trained yet, and the last trained size.
        self._drawn: deque[tuple[int, int]] = deque()
        self._trained = self.size
        # Steps and examples since the last report.
        self._steps = self._examples = 0
        self._exchange: Exchange | None = None

    @property
    def size(self) -> int:
        """The examples of the next batch that is drawn, of all processes together."""
        return self._batch.size

    @property
    def steps_per_epoch(self) -> int:
        """Steps of the submitted batch in a pass over the data."""
        return -(-self.length // self._batch.submitted)

    @property
    def epoch(self) -> int:
        """Completed epochs of work. An epoch is what a pass over the data with the submitted batch is worth."""
        return int(self.progress / self.steps_per_epoch)

    @property
    def gain(self) -> float:
        """The number of steps of the submitted batch that the step in training is worth."""
        return self._batch.gain_of(self._training())

    @property
    def last_size(self) -> int:
        """The batch that was trained last. At the end of a pass over the data, it may have had fewer examples."""
        return self._trained

    def _training(self) -> int:
        """The examples of the step in training. A last batch counts as one of the submitted batch if it is smaller."""
        if not self._drawn:
            return self.size
        size, examples = self._drawn[0]
        return max(examples, min(size, self._batch.submitted))

    def __len__(self) -> int:
        """Batches of a whole pass, if the batch stays the same."""
        return -(-self.length // self.size)

    def __iter__(self) -> Iterator[list[int]]:
        """The rest of the present pass."""
        order = shuffled(self.length, self.seed + self.rounds if self.shuffle else None)
        self._drawn.clear()
        at = self.done
        while at < self.length:
            size = self.size
            batch = order[at : at + size].tolist()
            self._drawn.append((size, len(batch)))
            at += len(batch)
            yield part(batch, self.rank, self.world)

    def follow(self, model: Any, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Measures the noise of the gradients of a `DistributedDataParallel` in each step, and from then on takes over
        the batches that the scheduler chooses. Call it in all processes, before the first batch.

        The learning rate of `optimizer` is scaled in each step: with SGD by `gain` (AdaScale), with others by the
        square root of the batch relative to the submitted one.

        One process alone measures the noise between two steps, for which it keeps the gradient of the first. A step is
        one batch and one backward pass. Steps with several backward passes aren't measured.
        """
        self._exchange = Exchange(model, self.world)
        # The processes can have been started with different batches.
        size, submitted = self._exchange.agree(self.rank, self.size, self._batch.submitted)
        self._count_in(submitted)
        self._take(size)
        if optimizer is None:
            return
        rates: list[Any] = []

        def scale(*_: Any) -> None:
            restore()  # after a step that raised an error
            root = (self._training() / self._batch.submitted) ** 0.5
            factor = self.gain if isinstance(optimizer, torch.optim.SGD) else root
            rates[:] = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor

        def restore(*_: Any) -> None:
            for group, rate in zip(optimizer.param_groups, rates, strict=False):
                group["lr"] = rate
            rates.clear()

        optimizer.register_step_pre_hook(scale)
        optimizer.register_step_post_hook(restore)

    def advance(self) -> None:
        """Counts a batch as trained. Call it after each optimizer step, in all processes, once for each batch.

        Raises RuntimeError if no batch was drawn, or if another process has trained another one.
        """
        if not self._drawn:
            raise RuntimeError("advance: no batch was drawn since the last call")
        self.progress += self.gain
        self._trained, examples = self._drawn.popleft()
        self.done += examples
        self._steps, self._examples = self._steps + 1, self._examples + examples
        if self.done >= self.length:
            self.rounds, self.done = self.rounds + 1, 0
        if self._exchange:
            # What was sent in the last step has arrived meanwhile, so nobody waits.
            if message := self._exchange.receive():
                self._follow(message)
            self._exchange.send(examples, *self._chosen())

    def _follow(self, message: Message) -> None:
        if message.noise:
            self._batch.observe(*message.noise)
        if min(message.batch, message.submitted) > 0:
            self._count_in(message.submitted)
            self._take(message.batch)

    def _chosen(self) -> tuple[int, int]:
        """The batch that the scheduler chose, and the submitted one. Only one process gets it."""
        try:
            chosen = loop.assigned_batch() if self.rank == 0 else None
        except ValueError as error:
            log.warning("the batch stays the same: %s", error)
            chosen = None
        if not chosen:
            return 0, 0
        return self._of_one_pass(chosen.size, chosen.local, chosen.passes), chosen.submitted

    def _of_one_pass(self, size: int, local: int, passes: int) -> int:
        """The part of a batch that is computed at once. With several passes, `local` is what the memory allows."""
        return min(size // passes, local * self.world) if passes > 1 else size

    def _count_in(self, submitted: int) -> None:
        """Counts progress in steps of this batch, or of the whole data if they are fewer."""
        before, self._batch.submitted = self._batch.submitted, min(submitted, self.length)
        self.progress *= before / self._batch.submitted

    def _take(self, size: int) -> None:
        # The number of processes can have changed since it was chosen.
        self._batch.size = min(max(size, self.world), self.length)

    def fields(self) -> Fields:
        """The arguments of `trainmaster.report` after `advance`, about the steps since the last call."""
        steps, examples, self._steps, self._examples = self._steps, self._examples, 0, 0
        return {
            **self._batch.fields(),
            "batch": self._trained,
            "step": int(self.progress),
            "steps": steps,
            "examples": examples,
            "epoch": self.epoch,
            "steps_per_epoch": self.steps_per_epoch,
        }

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs. It is the same in all processes."""
        return {
            "rounds": self.rounds,
            "done": self.done,
            "progress": self.progress,
            "submitted": self._batch.submitted,
            "noise": list(self._batch.sums),
            "length": self.length,
            "seed": self.seed,
            "shuffle": int(self.shuffle),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after the trained batches, with the present batch. Raises ValueError if the data are others."""
        own = self.state_dict()
        for name in ("length", "seed", "shuffle"):
            if state.get(name) != own[name]:
                raise ValueError(f"{name}: the checkpoint has {state.get(name)!r}, this sampler {own[name]!r}")
        counts = [state.get(name) for name in ("rounds", "done", "submitted")]
        values = [state.get("progress"), *(noise if isinstance(noise := state.get("noise"), list) else [])]
        rounds, done, submitted = (count if isinstance(count, int) else -1 for count in counts)
        progress, *sums = (value if isinstance(value, float) else math.nan for value in values)
        finite = all(map(math.isfinite, (progress, *sums)))
        if not (min(rounds, submitted - 1) >= 0 <= done < self.length and finite and progress >= 0 and len(sums) == 3):
            raise ValueError(f"this isn't the checkpoint of a sampler with {self.length} examples: {state!r:.200}")
        self.rounds, self.done = rounds, done
        self.progress = progress * submitted / self._batch.submitted
        self._batch.sums = sums[0], sums[1], sums[2]
        self._drawn.clear()
