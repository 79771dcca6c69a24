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
import re
import shutil
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.checkpoint import ds_to_universal

from . import loop
from .samplers import accumulation

# The file that names the last complete checkpoint. It is replaced at once.
_LAST = "trainmaster.json"
# Maximum number of its characters that are read.
_LONGEST = 4096
# Of the caller's state in a checkpoint.
_KEY = "trainmaster"
_UNIVERSAL = "-universal"
# The name of a checkpoint's folder, and of those that are made of it.
_TAG = re.compile(r"(\d{1,18})-step-\d+(-universal(-new)?)?")


def config(config: Mapping[str, Any], folder: str | Path) -> dict[str, Any]:
    """The configuration for the present number of processes: with `gradient_accumulation_steps` for which
    `train_batch_size` and `train_micro_batch_size_per_gpu` stay as they are.

    If the last checkpoint in `folder` has parts for another number of processes, the first process converts it to a
    universal checkpoint, as DeepSpeed's `ds_to_universal` does. The others wait, at most the `timeout` of
    `deepspeed.init_distributed`. Call it in all processes.

    Raises ValueError if the batch can't be divided so, and RuntimeError before `deepspeed.init_distributed`, or if a
    process doesn't see the checkpoint.
    """
    if not dist.is_initialized():
        raise RuntimeError("config: deepspeed.init_distributed has to be called before")
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu")
    batch, each = (config.get(key) for key in keys)
    for key, value in zip(keys, (batch, each), strict=True):
        if not isinstance(value, int):
            raise ValueError(f"{key}: {value!r} must be a whole number")
    # For the messages below. DeepSpeed does this later.
    get_accelerator().set_device(loop.number(os.environ, "LOCAL_RANK", 0))
    world, last = dist.get_world_size(), _last(folder)
    universal = last is not None and last["partitioned"] and last["world"] != world
    if universal and last:
        here, tag = Path(folder), last["tag"]
        _by_first(lambda: _convert(here / tag, here / (tag + _UNIVERSAL)))
    return {
        **config,
        "gradient_accumulation_steps": accumulation(int(batch or 0), int(each or 0), world),
        "checkpoint": {**(config.get("checkpoint") or {}), "load_universal": universal},
    }


def _convert(checkpoint: Path, target: Path) -> None:
    """Makes a checkpoint that any number of processes can load, if it isn't there already."""
    if target.exists():
        return
    new = target.with_name(f"{target.name}-new")
    # An earlier try may have ended within it.
    shutil.rmtree(new, ignore_errors=True)
    options = {"num_extract_workers": 1, "num_merge_workers": 1, "keep_temp_folder": False}
    checks = {"strict": True, "inject_missing_state": True}
    ds_to_universal.main(Namespace(input_folder=str(checkpoint), output_folder=str(new), **options, **checks))
    os.replace(new, target)


def save(engine: Any, folder: str | Path, state: Mapping[str, Any]) -> None:
    """Saves a checkpoint with `state`, and then removes older ones. Call it in all processes, between batches."""
    began, before = time.monotonic(), _by_first(lambda: _read(folder))
    # Never over the last complete one.
    tag = f"{before['number'] + 1 if before else 1}-step-{engine.global_steps}"
    # An earlier try may have ended within it, on another number of processes.
    _by_first(lambda: _remove(folder, keep=before["tag"] if before else ""))
    engine.save_checkpoint(str(folder), tag=tag, client_state={_KEY: dict(state)}, save_latest=False)
    dist.barrier()
    _by_first(lambda: _complete(Path(folder), tag))
    loop.saved(engine.global_steps, time.monotonic() - began)


def _complete(folder: Path, tag: str) -> None:
    """Makes a checkpoint the last complete one, and removes the others."""
    partitioned = any((folder / tag).glob("*zero_pp_rank*"))
    new = folder / f"{_LAST}.new"
    with new.open("w") as file:
        json.dump({"tag": tag, "world": dist.get_world_size(), "partitioned": partitioned}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, folder / _LAST)
    _remove(folder, keep=tag)


def _remove(folder: str | Path, keep: str) -> None:
    """Removes all checkpoints of this module but one, with what was made of them."""
    for path in Path(folder).glob("*-step-*"):
        if _TAG.fullmatch(path.name) and path.name not in (keep, keep + _UNIVERSAL):
            shutil.rmtree(path, ignore_errors=True)


def load(engine: Any, folder: str | Path) -> dict[str, Any] | None:
    """Loads the last complete checkpoint, and returns the state that was saved with it. None: there is none.

    Call it in all processes, once, after `deepspeed.initialize`. Raises RuntimeError if a process doesn't see the
    checkpoint or can't load it.
    """
    last = _last(folder)
    if last is None:
        return None
    tag = last["tag"] + (_UNIVERSAL if engine.load_universal_checkpoint() else "")
    path, client = engine.load_checkpoint(str(folder), tag=tag)
    if path is None or _KEY not in client:
        raise RuntimeError(f"DeepSpeed can't load the checkpoint {Path(folder, tag)}")
    state: dict[str, Any] = client[_KEY]
    return state


def _by_first(action: Callable[[], Any]) -> Any:
    """Runs an action in the first process. All processes get its result, or RuntimeError with its error."""
    done: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            done[0] = action()
        except Exception as error:
            done[1] = f"{type(error).__name__}: {error}"
    dist.broadcast_object_list(done)
    if done[1] is not None:
        raise RuntimeError(done[1])
    return done[0]


def _last(folder: str | Path) -> dict[str, Any] | None:
    """Name, number and number of processes of the last complete checkpoint, and whether each process has a part of it.

    All processes get what the first one reads.
    """
    last: dict[str, Any] | None = _by_first(lambda: _read(folder))
    if last and not Path(folder, last["tag"]).is_dir():
        raise RuntimeError(f"{Path(folder, last['tag'])} isn't there: all processes need the same folder")
    return last


def _read(folder: str | Path) -> dict[str, Any] | None:
    """The same, for one process. Raises ValueError if the file makes no sense."""
    file = Path(folder, _LAST)
    try:
        with file.open() as text:
            last = json.loads(text.read(_LONGEST))
        found = _TAG.fullmatch(last["tag"])
        if not found or found[2]:
            raise ValueError(f"tag: {last['tag']!r:.100}")
        return {
            "tag": found[0],
            "number": int(found[1]),
            "world": int(last["world"]),
            "partitioned": bool(last["partitioned"]),
        }
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"{file}: it doesn't name a checkpoint ({error!r:.200}); remove it to start anew") from None
