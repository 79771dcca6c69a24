"""Configurations and checkpoints of DeepSpeed. test_stacks.py trains with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["DS_ACCELERATOR"] = "cpu"
pytest.importorskip("deepspeed")

import torch.distributed as dist

from trainmaster.deepspeed import config, load

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
    for text in ("", "[]", "{}", '{"tag": 3, "world": 1, "zero": 1}', '{"tag": "a", "world": "x", "zero": 1}'):
        file.write_text(text)
        with pytest.raises(RuntimeError, match=f"{file}: it doesn't name a checkpoint"):
            config(GIVEN, tmp_path)
