"""A checkpoint of model, optimizer and sampler, which PyTorch loads on any number of processes, sharded or not."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import trainmaster
from trainmaster.torch import ElasticBatchSampler

FOLDER = Path("checkpoints")


class Checkpoint:
    """What a checkpoint has."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, sampler: ElasticBatchSampler) -> None:
        self._model, self._optimizer, self._sampler = model, optimizer, sampler

    def state_dict(self) -> dict[str, Any]:
        weights, moments = get_state_dict(self._model, self._optimizer)
        return {"model": weights, "optimizer": moments, "sampler": self._sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        weights, moments = state["model"], state["optimizer"]
        set_state_dict(self._model, self._optimizer, model_state_dict=weights, optim_state_dict=moments)
        self._sampler.load_state_dict(state["sampler"])

    def load(self) -> None:
        """Loads the last checkpoint, if there is one."""
        if complete := sorted(FOLDER.glob("step-*")):
            dcp.load({"all": self}, checkpoint_id=complete[-1])

    def save(self) -> None:
        """Saves a checkpoint. It replaces the older ones once it is complete."""
        start = time.monotonic()
        dcp.save({"all": self}, checkpoint_id=FOLDER / "new")
        if dist.get_rank() == 0:
            older = list(FOLDER.glob("step-*"))
            (FOLDER / "new").rename(FOLDER / f"step-{self._sampler.step:06}")
            for folder in older:
                shutil.rmtree(folder)
        trainmaster.saved(self._sampler.step, time.monotonic() - start)
