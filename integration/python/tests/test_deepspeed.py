"""Configurations and checkpoints of DeepSpeed. test_stacks.py trains with it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["DS_ACCELERATOR"] = "cpu"
pytest.importorskip("deepspeed")

import torch.distributed as dist

from trainmaster.deepspeed import config, load, save

GIVEN: dict[str, Any] = {"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4, "checkpoint": {"tag": "kept"}}


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_configuration_needs_peers(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"deepspeed\.init_distributed has to be called before"):
        config(GIVEN, tmp_path)


@pytest.mark.usefixtures("alone")
def test_the_batch_stays_the_same(tmp_path: Path) -> None:
    made = config(GIVEN, tmp_path)
    assert made["gradient_accumulation_steps"] == 6
    assert made["checkpoint"] == {"tag": "kept", "load_universal": False}
    assert "gradient_accumulation_steps" not in GIVEN
    for key, value, words in (
        ("train_batch_size", 26, "batch: 26 must be a multiple of 4"),
        ("train_batch_size", "auto", "train_batch_size: 'auto' must be a whole number"),
        ("train_micro_batch_size_per_gpu", None, "train_micro_batch_size_per_gpu: None must be a whole number"),
    ):
        with pytest.raises(ValueError, match=words):
            config({**GIVEN, key: value}, tmp_path)


@pytest.mark.usefixtures("alone")
def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    assert load(None, tmp_path) is None
    file = tmp_path / "trainmaster.json"
    good = {"tag": "3-step-70", "world": 2, "partitioned": True}
    file.write_text(json.dumps(good))
    with pytest.raises(RuntimeError, match=f"{tmp_path}/3-step-70 isn't there: all processes need the same folder"):
        load(None, tmp_path)
    wrong: list[object] = [[], {}, {**good, "world": "x"}, *({**good, "tag": tag} for tag in (3, "..", "1-step-2/.."))]
    # The last ones are too deep, and too long to be read whole.
    for text in ("", *map(json.dumps, wrong), "[" * 4096, json.dumps({"more": "x" * (16 << 20), **good})):
        file.write_text(text)
        with pytest.raises(RuntimeError, match=f"{file}: it doesn't name a checkpoint"):
            config(GIVEN, tmp_path)


class Engine:
    """DeepSpeed's engine with an empty checkpoint, in which a save can end early."""

    def __init__(self, parts: int, fails: bool = False) -> None:
        self.global_steps, self._parts, self._fails = 70, parts, fails

    def save_checkpoint(self, folder: str, tag: str, **_: Any) -> None:
        path = Path(folder, tag)
        path.mkdir(parents=True)
        for part in range(self._parts):
            (path / f"zero_pp_rank_{part}_mp_rank_00_optim_states.pt").touch()
        if self._fails:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("alone")
def test_a_save_that_ends_early_leaves_the_last_checkpoint_and_no_parts(tmp_path: Path) -> None:
    def parts() -> dict[str, int]:
        return {path.name: len(list(path.iterdir())) for path in tmp_path.iterdir() if path.is_dir()}

    save(Engine(1), tmp_path, {})
    assert parts() == {"1-step-70": 1}
    before = (tmp_path / "trainmaster.json").read_text()
    # At the same step, on more processes.
    with pytest.raises(KeyboardInterrupt):
        save(Engine(3, fails=True), tmp_path, {})
    assert parts() == {"1-step-70": 1, "2-step-70": 3}
    assert (tmp_path / "trainmaster.json").read_text() == before
    (tmp_path / "other").mkdir()
    save(Engine(2), tmp_path, {})
    assert parts() == {"2-step-70": 2, "other": 0}
