"""Checkpoints. Each is a folder, which is either complete or missing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The maximum of digits in a step. Names with more digits are not checkpoints.
_NAME = re.compile(r"checkpoint-([0-9]{1,18})")
_KEPT = 2


def newest(folder: Path) -> Path | None:
    """The newest complete checkpoint."""
    found = [(int(match[1]), entry) for entry in _entries(folder) if (match := _NAME.fullmatch(entry.name))]
    return max(found)[1] if found else None


def step_of(checkpoint: Path | None) -> int:
    match = _NAME.fullmatch(checkpoint.name) if checkpoint else None
    return int(match[1]) if match else 0


@contextmanager
def saving(folder: Path, step: int) -> Iterator[Path]:
    """Yields a folder to write to. It becomes a checkpoint when the block ends without an exception."""
    folder.mkdir(parents=True, exist_ok=True)
    # Only one process saves at a time, so that other partial folders belong to killed processes.
    for left in folder.glob(".partial-*"):
        shutil.rmtree(left, ignore_errors=True)
    partial = folder / f".partial-{step}-{os.getpid()}"
    partial.mkdir()
    try:
        yield partial
        for path in partial.rglob("*"):
            if path.is_file():
                _sync(path)
        target = folder / f"checkpoint-{step}"
        # The same step can be saved again after a restart from an earlier checkpoint.
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        _sync(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    found = sorted((step_of(entry), entry) for entry in _entries(folder) if _NAME.fullmatch(entry.name))
    for _, old in found[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
