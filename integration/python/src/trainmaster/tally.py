"""Merges the reports of a training loop into progress messages. Pure: the reports contain the times."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field

from ._proto import feed_pb2 as pb

_U32 = 2**32 - 1
_U64 = 2**64 - 1


@dataclass
class Report:
    """One call of `report`."""

    step: int
    loss: float | None = None
    examples: int = 0
    epoch: int | None = None
    accuracy: float | None = None
    steps_per_epoch: int = 0
    # Mean time of a step in milliseconds, by worker.
    slot_times: dict[int, float] = field(default_factory=dict)
    # Number of real steps since the last report. None: the difference of `step`.
    steps: int | None = None
    # Examples per step, and the statistics of the gradients, if the scheduler may choose the batch.
    batch: int | None = None
    grad_sqr: float | None = None
    grad_var: float | None = None
    # Time of the report in seconds, by the reporting process's clock.
    at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        # What doesn't fit into the message would end the thread that sends it.
        self.step = _within("step", self.step, _U64)
        self.examples = _within("examples", self.examples, _U64)
        self.steps_per_epoch = _within("steps_per_epoch", self.steps_per_epoch, _U64)
        self.epoch = None if self.epoch is None else _within("epoch", self.epoch, _U32)
        # A loss of NaN can't be fitted.
        self.loss = _finite(self.loss)
        self.accuracy = _finite(self.accuracy)
        self.steps = _whole("steps", self.steps, 0, _U32)
        self.batch = _whole("batch", self.batch, 1, 2**40)
        if self.batch is not None and self.steps is None:
            raise ValueError(f"steps: needed with batch {self.batch}, because `step` counts in submitted batches")
        if (self.grad_sqr is None) != (self.grad_var is None):
            raise ValueError(f"grad_sqr: {self.grad_sqr} and grad_var: {self.grad_var} need each other")
        if self.grad_sqr is not None and self.grad_var is not None:
            self.grad_sqr, self.grad_var = float(self.grad_sqr), float(self.grad_var)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _within(name: str, value: float, most: int) -> int:
    number = int(value)
    if not 0 <= number <= most:
        raise ValueError(f"{name}: {value} must be from 0 to {most}")
    return number


def _whole(name: str, value: float | None, least: int, most: int) -> int | None:
    if value is None:
        return None
    number = int(value)
    if number != value or not least <= number <= most:
        raise ValueError(f"{name}: {value} must be a whole number from {least} to {most}")
    return number


class Tally:
    """Merges reports until they are taken. The loss is the mean over examples. Steps and time are differences."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._since = 0.0
        self._start()

    def _start(self) -> None:
        self._last: Report | None = None
        self._loss = self._weight = 0.0
        self._examples = 0
        self._accuracy: float | None = None
        self._slot_times: dict[int, float] = {}
        self._real_steps: int | None = None

    def continues(self, report: Report) -> bool:
        """Whether a report can be merged with the last one: it has the same batch."""
        return self._last is None or self._last.batch == report.batch

    def add(self, report: Report, leads: bool = True) -> None:
        """Adds a report. Reports of other workers (`leads` is false) add examples, loss and times, but no steps."""
        if report.loss is not None:
            weight = report.examples or 1
            self._loss += report.loss * weight
            self._weight += weight
        self._examples += report.examples
        self._accuracy = report.accuracy if report.accuracy is not None else self._accuracy
        self._slot_times.update(report.slot_times)
        if not leads:
            return
        if self._step is None or report.step < self._step:
            # The first report, or a step back to a checkpoint: there is no difference yet.
            self._step, self._since, self._real_steps = report.step, report.at, None
        elif report.steps is not None:
            self._real_steps = (self._real_steps or 0) + report.steps
        if report.epoch is None and self._last:
            report.epoch = self._last.epoch
        self._last = report

    def rebase(self) -> None:
        """Starts a new difference at the next report, because training was interrupted."""
        self._step = None

    def take(self, workers: int = 0, servers: int = 0) -> pb.Progress | None:
        """Progress since the last call. None without new reports."""
        last = self._last
        if last is None:
            return None
        progress = pb.Progress(
            step=last.step,
            epoch=last.epoch or 0,
            steps_per_epoch=last.steps_per_epoch,
            loss=self._loss / self._weight if self._weight else None,
            accuracy=self._accuracy,
            examples=min(self._examples, _U64),
            workers=workers,
            servers=servers,
            slot_times=[pb.SlotTime(worker=w, step_ms=ms) for w, ms in sorted(self._slot_times.items())],
        )
        steps = self._real_steps
        if steps is None and self._step is not None:
            steps = last.step - self._step
        if steps is not None and steps > 0:
            progress.steps = min(steps, _U32)
            progress.duration_ms = max(last.at - self._since, 0.0) * 1000
        if last.batch is not None:
            progress.batch = last.batch
        if last.grad_sqr is not None and last.grad_var is not None:
            progress.grad_sqr, progress.grad_var = last.grad_sqr, last.grad_var
        self._step, self._since = last.step, last.at
        self._start()
        return progress


class Outbox:
    """A bounded queue of progress messages, kept until they are answered. A full queue drops its oldest message."""

    LIMIT = 1024
    AT_ONCE = 64

    def __init__(self) -> None:
        self._waiting: deque[pb.Progress] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, progress: pb.Progress) -> None:
        if len(self._waiting) == self.LIMIT:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(progress)

    def next(self, last_seq: int) -> list[pb.Progress]:
        """The next batch to send. A message gets its sequence number, above `last_seq`, at its first sending, and keeps
        it.
        """
        batch = list(self._waiting)[: self.AT_ONCE]
        for progress in batch:
            if progress.seq == 0:
                progress.seq = last_seq + 1
            last_seq = max(last_seq, progress.seq)
        return batch

    def answered(self, batch: list[pb.Progress]) -> None:
        # Compares numbers instead of counting, because the oldest messages can be dropped during the call.
        last = batch[-1].seq
        while self._waiting and 0 < self._waiting[0].seq <= last:
            self._waiting.popleft()
