"""For the `Trainer` of Lightning.

trainer = Trainer(..., callbacks=[trainmaster.lightning.Callback()], **trainmaster.lightning.processes())
trainer.fit(model)
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import OnExceptionCheckpoint

from . import loop
from .torch import ElasticBatchSampler, ranks

# Of the sampler's state in a checkpoint.
_KEY = "trainmaster_sampler"


class Callback(OnExceptionCheckpoint):
    """Reports loss, speed and epochs, and stops the training at a checkpoint when the scheduler changes the job.

    Then the process ends with code 0 in `fit`: what the script does after the training isn't done before it is
    complete. The job's other processes end at the same step, and `fit` continues there in the next ones: Lightning
    itself looks for the checkpoint of such a callback, unless `fit` is told another one.

    With `Trainer(use_distributed_sampler=False)` and an `ElasticBatchSampler` as the loader's batch sampler, no example
    is lost or trained twice in an epoch, though the number of processes changes in it.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        """`folder` is that of the checkpoint: by default the job's (TRAINMASTER_CHECKPOINT_DIR), or `checkpoints`."""
        super().__init__(folder or os.environ.get("TRAINMASTER_CHECKPOINT_DIR", "checkpoints"), "trainmaster")
        self._stops = False
        self._sampler_state: dict[str, int] | None = None
        self._steps = 0

    def on_sanity_check_start(self, trainer: Trainer, module: LightningModule) -> None:
        _leave_sigterm()

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        _leave_sigterm()
        self._steps = trainer.global_step
        sampler = _sampler(trainer)
        if sampler and self._sampler_state:
            sampler.load_state_dict(self._sampler_state)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        sampler = _sampler(trainer)
        if sampler:
            sampler.advance()
        # Asked equally often by all processes.
        self._stops = loop.should_stop() or self._stops
        # Not between the passes of a step, whose gradients aren't in the checkpoint.
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        self._report(trainer, outputs, batch, sampler)
        if self._stops:
            self._save(trainer)
            raise SystemExit(0)

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        loop.interrupted()

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        loop.finish()

    def on_exception(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """Saves nothing: after an error, the processes aren't at the same step."""

    def teardown(self, trainer: Trainer, *_: Any, stage: str = "", **__: Any) -> None:
        """Keeps the checkpoint until the training is complete."""
        if trainer.state.finished:
            super().teardown(trainer)

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if sampler := _sampler(trainer):
            # Lightning's count: the callback of another checkpoint comes before this one, or after it.
            done = trainer.current_epoch * len(sampler) + trainer.fit_loop.epoch_loop.batch_progress.current.processed
            epoch, done = divmod(done, len(sampler))
            checkpoint[_KEY] = sampler.state_dict() | {"epoch": epoch, "done": done}

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._sampler_state = checkpoint.get(_KEY)

    def _save(self, trainer: Trainer) -> None:
        start = time.monotonic()
        partial = Path(self.ckpt_path).with_suffix(".partial")
        trainer.save_checkpoint(partial)
        # Complete in all processes: Lightning waits for them.
        if trainer.is_global_zero:
            partial.replace(self.ckpt_path)
        loop.saved(trainer.global_step, time.monotonic() - start)

    def _report(self, trainer: Trainer, outputs: Any, batch: Any, sampler: ElasticBatchSampler | None) -> None:
        if not loop.reports():
            return
        passes = trainer.accumulate_grad_batches
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        loop.report(
            step=trainer.global_step,
            # Of the last pass, divided by their number.
            loss=loss.item() * passes if isinstance(loss, torch.Tensor) else None,
            examples=passes * (sampler.batch if sampler else _examples(batch) * trainer.world_size),
            epoch=trainer.current_epoch + trainer.is_last_batch,
            steps_per_epoch=_steps_per_epoch(trainer),
        )


def processes() -> dict[str, Any]:
    """The `devices` and `num_nodes` of the present training processes, which Lightning's trainer has to be told."""
    _, world = ranks()
    local = loop.number(os.environ, "LOCAL_WORLD_SIZE", world)
    return {"devices": local if "WORLD_SIZE" in os.environ else "auto", "num_nodes": max(world // local, 1)}


def _leave_sigterm() -> None:
    """Takes SIGTERM from Lightning: its handler communicates, and waits for processes that aren't signalled."""
    if "TRAINMASTER_JOB" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _sampler(trainer: Trainer) -> ElasticBatchSampler | None:
    sampler = getattr(trainer.train_dataloader, "batch_sampler", None)
    return sampler if isinstance(sampler, ElasticBatchSampler) else None


def _examples(batch: Any) -> int:
    """The examples in a batch: the length of its first tensor."""
    while isinstance(batch, (dict, list, tuple)) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return len(batch) if isinstance(batch, torch.Tensor) and batch.ndim else 0


def _steps_per_epoch(trainer: Trainer) -> int:
    batches = trainer.num_training_batches
    return -(-int(batches) // trainer.accumulate_grad_batches) if batches != float("inf") else 0
