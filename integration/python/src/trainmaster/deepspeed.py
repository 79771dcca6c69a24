"""For DeepSpeed with data parallelism: the same batch on any number of processes, and checkpoints that continue on any.

deepspeed.init_distributed()
engine, *_ = deepspeed.initialize(model=net, config=trainmaster.deepspeed.config(config, "checkpoints"))
state = trainmaster.deepspeed.load(engine, "checkpoints")
...
if trainmaster.should_stop():
    trainmaster.deepspeed.save(engine, "checkpoints", state)
"""

from __future__ import annotations

import json
import os
import shutil
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed.checkpoint import ds_to_universal

from . import loop
from .samplers import accumulation

# The file that names the last complete checkpoint. It is replaced at once.
_LAST = "trainmaster.json"
# Of the caller's state in a checkpoint.
_KEY = "trainmaster"
_UNIVERSAL = "-universal"


def config(config: Mapping[str, Any], folder: str | Path) -> dict[str, Any]:
    """The configuration for the present number of processes: with `gradient_accumulation_steps` for which
    `train_batch_size` and `train_micro_batch_size_per_gpu` stay as they are.

    If the last checkpoint in `folder` is of another number of processes, ZeRO's parts of it are divided anew, as
    DeepSpeed's `ds_to_universal` does. Call it in all processes.

    Raises ValueError if the batch can't be divided so, and RuntimeError before `deepspeed.init_distributed`.
    """
    if not dist.is_initialized():
        raise RuntimeError("config: deepspeed.init_distributed has to be called before")
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu")
    batch, each = (config.get(key) for key in keys)
    for key, value in zip(keys, (batch, each), strict=True):
        if not isinstance(value, int):
            raise ValueError(f"{key}: {value!r} must be a whole number")
    world, last = dist.get_world_size(), _last(folder)
    universal = last is not None and last["zero"] > 0 and last["world"] != world
    if universal and last:
        if dist.get_rank() == 0:
            _divide(Path(folder, last["tag"]), Path(folder, last["tag"] + _UNIVERSAL))
        dist.barrier()
    return {
        **config,
        "gradient_accumulation_steps": accumulation(int(batch or 0), int(each or 0), world),
        "checkpoint": {**config.get("checkpoint", {}), "load_universal": universal},
    }


def _divide(checkpoint: Path, target: Path) -> None:
    """Makes a checkpoint that any number of processes can load."""
    # An earlier try may have ended within it.
    shutil.rmtree(target, ignore_errors=True)
    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False}
    checks = {"strict": True, "inject_missing_state": True}
    ds_to_universal.main(Namespace(input_folder=str(checkpoint), output_folder=str(target), **options, **checks))


def save(engine: Any, folder: str | Path, state: Mapping[str, Any]) -> None:
    """Saves a checkpoint with `state`, and then removes the one before. Call it in all processes."""
    began, before = time.monotonic(), _last(folder)
    tag = f"step-{engine.global_steps}"
    engine.save_checkpoint(str(folder), tag=tag, client_state={_KEY: dict(state)}, save_latest=False)
    dist.barrier()
    if dist.get_rank() == 0:
        new = Path(folder, f"{_LAST}.new")
        last = {"tag": tag, "world": dist.get_world_size(), "zero": int(engine.zero_optimization_stage())}
        new.write_text(json.dumps(last))
        os.replace(new, Path(folder, _LAST))
        for old in (before["tag"], before["tag"] + _UNIVERSAL) if before and before["tag"] != tag else ():
            shutil.rmtree(Path(folder, old), ignore_errors=True)
    loop.saved(engine.global_steps, time.monotonic() - began)


def load(engine: Any, folder: str | Path) -> dict[str, Any] | None:
    """Loads the last complete checkpoint, and returns the state that was saved with it. None: there is none."""
    last = _last(folder)
    if last is None:
        return None
    tag = last["tag"] + (_UNIVERSAL if engine.load_universal_checkpoint() else "")
    path, client = engine.load_checkpoint(str(folder), tag=tag)
    if path is None:
        raise RuntimeError(f"DeepSpeed can't load the checkpoint {Path(folder, tag)}")
    state: dict[str, Any] = client[_KEY]
    return state


def _last(folder: str | Path) -> dict[str, Any] | None:
    """Name, number of processes and ZeRO stage of the last complete checkpoint."""
    file = Path(folder, _LAST)
    if not file.exists():
        return None
    try:
        last = json.loads(file.read_text())
        return {"tag": Path(last["tag"]).name, "world": int(last["world"]), "zero": int(last["zero"])}
    except (ValueError, TypeError, KeyError) as error:
        raise RuntimeError(f"{file}: it doesn't name a checkpoint ({error}); remove it to start anew") from None
