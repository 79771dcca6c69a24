"""Fixtures: one real Ray for all tests that need it, scripted plans or a real daemon beside it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .local_cluster import Cluster, daemon_binary


@pytest.fixture(scope="session")
def binary() -> str:
    path = daemon_binary()
    if not Path(path).exists():
        pytest.skip(f"{path} is missing: build it with cargo build --bins")
    return path


@pytest.fixture(scope="session")
def cluster(binary: str) -> Iterator[Cluster]:
    """Head and 4 raylets."""
    with Cluster(4) as made, connected(made.address):
        yield made


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """This process is a driver of that cluster, and afterwards of the one that it was before, if any."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    import ray

    before = ray.get_runtime_context().gcs_address if ray.is_initialized() else None
    ray.shutdown()
    ray.init(address=address, log_to_driver=False, logging_level="error")
    try:
        yield
    finally:
        ray.shutdown()
        if before:
            ray.init(address=before, log_to_driver=False, logging_level="error")


def forget() -> None:
    """Whatever is written in the control store: the next daemon counts its jobs from 1 again."""
    from ray.experimental import internal_kv

    for key in internal_kv._internal_kv_list("", namespace="trainmaster"):
        internal_kv._internal_kv_del(key, namespace="trainmaster")


class Run:
    """A driver in a process of its own, and what it writes."""

    def __init__(self, cluster: Cluster, address: str, folder: Path, name: str, **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        self._cluster = cluster
        self._out = folder / f"{name}.json"
        self._options = {"address": address, "dir": str(folder), "name": name, "out": str(self._out), **options}
        self.start()

    def start(self, **options: Any) -> None:
        script = Path(__file__).with_name("logistic.py")
        self._out.unlink(missing_ok=True)
        self.process = self._cluster.run(script, json.dumps(self._options | options))

    @property
    def changes(self) -> list[dict[str, Any]]:
        path = self._out.with_suffix(".changes")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def document(self) -> dict[str, Any] | None:
        ended = self.process.poll()
        if self._out.exists():
            document: dict[str, Any] = json.loads(self._out.read_text())
            return document
        assert ended is None, f"it ended with {self.process.returncode}; see {self._cluster.folder}"
        return None
