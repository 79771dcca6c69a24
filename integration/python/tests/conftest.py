"""Fixtures."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from trainmaster.testing import daemon_binary

#: `make test-all` runs these, which take minutes or need libraries that it installs.
LONG = ["test_curves.py", "test_deepspeed.py", "test_managers.py"]
collect_ignore = [] if os.environ.get("TRAINMASTER_RELEASES") == "all" else LONG
ROOT = Path(__file__).resolve().parents[3]
os.environ.setdefault("TRAINMASTER_BIN", str(ROOT / "target/debug/trainmaster"))


@pytest.fixture(scope="session")
def binary() -> str:
    path = shutil.which(daemon_binary())
    if not path:
        pytest.skip(f"{daemon_binary()} is missing: build it with cargo build --bins")
    return path
