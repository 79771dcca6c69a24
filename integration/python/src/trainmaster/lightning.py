"""For the `Trainer` of Lightning.

sampler = ElasticBatchSampler(len(data), batch=64)
trainer = Trainer(
    use_distributed_sampler=False,
    callbacks=[trainmaster.lightning.Callback(sampler)],
    **trainmaster.lightning.processes(),
)
trainer.fit(model, DataLoader(data, batch_sampler=sampler), ckpt_path=trainmaster.lightning.last_checkpoint())
"""

from __future__ import annotations

import os
import shutil
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch
import torch
from lightning.pytorch import LightningModule, Trainer

from . import loop, stop
from .torch import ElasticBatchSampler, ranks

# Of the sampler's state in a checkpoint.
_KEY = "trainmaster_sampler"
_SUFFIX = ".ckpt"


class Callback(lightning.pytorch.Callback):
    """Reports loss, speed and epochs, and stops the training at a checkpoint when the scheduler changes the job.

    Then the process ends with code 0 in `fit`: what the script does after the training isn't done before it is
    complete. The job's other processes end at the same step. `last_checkpoint` is where the next ones continue.
    Outside of Trainmaster, it only counts the batches of the sampler.

    With `sampler`, which has to be the loader's batch sampler, no example is lost or trained twice in an epoch, though
    the number of processes changes in it. Its state is in all of Lightning's checkpoints.
    """

    def __init__(self, sampler: ElasticBatchSampler | None = None, folder: str | Path | None = None) -> None:
        """`folder` is that of the checkpoint: by default the job's (TRAINMASTER_CHECKPOINT_DIR), or `checkpoints`."""
        self._sampler = sampler
        self._folder = _folder(folder)
        self._stops = False
        # Whether a batch is trained that the sampler hasn't counted yet.
        self._training = False

    def on_sanity_check_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._take_sigterm()

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._take_sigterm()
        if self._sampler and loop.is_job() and trainer.limit_train_batches != 1.0:
            raise ValueError(f"limit_train_batches: {trainer.limit_train_batches} must be 1.0 with a sampler")

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> None:
        # Asked equally often by all processes. The batch before has been validated, but this one isn't trained.
        self._stops = (loop.is_job() and loop.should_stop()) or self._stops
        # Not between the passes of a step, whose gradients aren't in the checkpoint.
        if self._stops and batch_idx % trainer.accumulate_grad_batches == 0:
            self._save(trainer)
            raise SystemExit(0)
        self._training = True

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._training = False
        if self._sampler:
            self._sampler.advance()
        if loop.reports():
            self._report(trainer, outputs, batch)

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        stop.complete()

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        loop.interrupted()

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        loop.interrupted()
        if self._sampler:
            # Another callback can save after a batch and before this one counts it.
            checkpoint[_KEY] = self._sampler.state_dict(trained=int(self._training))

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # Before the loader's processes draw from the sampler.
        if self._sampler and _KEY in checkpoint:
            self._sampler.load_state_dict(checkpoint[_KEY])

    @staticmethod
    def _take_sigterm() -> None:
        # Lightning's handler communicates, and waits for processes that aren't signalled.
        if loop.is_job():
            stop.take_sigterm()

    def _save(self, trainer: Trainer) -> None:
        start = time.monotonic()
        last = self._folder / f"trainmaster-{trainer.global_step}{_SUFFIX}"
        partial = last.with_suffix(".partial")
        trainer.save_checkpoint(partial)
        # Complete in all processes: Lightning waits for them.
        if trainer.is_global_zero:
            # Only folders can't be replaced.
            if last.is_dir():
                _remove(last)
            partial.replace(last)
            for older in self._folder.glob(f"trainmaster-*{_SUFFIX}"):
                if older != last:
                    _remove(older)
        loop.saved(trainer.global_step, time.monotonic() - start)

    def _report(self, trainer: Trainer, outputs: Any, batch: Any) -> None:
        passes = trainer.accumulate_grad_batches
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        examples = self._sampler.trained if self._sampler else _examples(batch) * trainer.world_size
        batches = trainer.num_training_batches
        loop.report(
            step=trainer.global_step,
            # Lightning has divided it by the number of passes.
            loss=loss.item() * passes if isinstance(loss, torch.Tensor) else None,
            examples=examples,
            epoch=trainer.current_epoch + trainer.is_last_batch,
            steps_per_epoch=-(-int(batches) // passes) if batches != float("inf") else 0,
        )


def last_checkpoint(folder: str | Path | None = None) -> str | None:
    """The newest complete checkpoint in this folder, for `ckpt_path`: one of the callback, or of a `ModelCheckpoint`.

    The default is the callback's folder. None if there is none.
    """
    paths = _folder(folder).glob(f"*{_SUFFIX}")
    found = [path for path in paths if _is_complete(path)]
    return str(max(found, key=lambda path: path.stat().st_mtime_ns)) if found else None


def processes() -> dict[str, Any]:
    """The `devices` and `num_nodes` of the present training processes, which Lightning's trainer has to be told."""
    _, world = ranks()
    local = loop.number(os.environ, "LOCAL_WORLD_SIZE", world)
    return {"devices": local if "WORLD_SIZE" in os.environ else "auto", "num_nodes": max(world // max(local, 1), 1)}


def _folder(given: str | Path | None) -> Path:
    return Path(given or os.environ.get("TRAINMASTER_CHECKPOINT_DIR", "checkpoints"))


def _is_complete(path: Path) -> bool:
    if path.is_dir():
        # What PyTorch, Lightning and DeepSpeed write last.
        return any((path / name).exists() for name in (".metadata", "meta.pt", "latest"))
    # A file that was cut off is no archive.
    return zipfile.is_zipfile(path)


def _remove(path: Path) -> None:
    """Removes a checkpoint: a file, or a folder of those with parts."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _examples(batch: Any) -> int:
    """The examples in a batch: the length of its first tensor."""
    while isinstance(batch, (Mapping, list, tuple)) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
    return len(batch) if isinstance(batch, torch.Tensor) and batch.ndim else 0
