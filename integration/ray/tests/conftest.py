"""Fixtures: one real Ray for all tests that need it, with plans of a test or of a real daemon."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from trainmaster.testing import Daemon, daemon_binary, wait_for

from .local_cluster import NO_TOKEN, Cluster

collect_ignore = [] if find_spec("torch") else ["test_torch.py", "test_torchrun.py"]
# What Ray Train needs of "ray[train]".
if not all(map(find_spec, ("torch", "pandas", "pyarrow"))):
    collect_ignore.append("test_train.py")


def pytest_report_header() -> str:
    return f"not collected without PyTorch or Ray Train: {', '.join(collect_ignore)}" if collect_ignore else ""


@pytest.fixture(scope="session")
def binary() -> str:
    path = daemon_binary()
    if not Path(path).exists():
        pytest.skip(f"{path} is missing: build it with cargo build --bins")
    return path


@pytest.fixture(scope="session")
def shared(binary: str) -> Iterator[Cluster]:
    """A head and 3 raylets, started once. This process is a driver of the cluster."""
    with Cluster(3) as made:
        os.environ |= NO_TOKEN
        import ray

        ray.init(address=made.address, log_to_driver=False, logging_level="error")
        yield made
        ray.shutdown()


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    """The shared cluster with all raylets, even if the last test ended some, and with nothing in use.

    Ray reports what ended workers held a moment after their group is gone.
    """
    shared.mend()
    whole = {"CPU": 8.0 * len(shared.nodes), "GPU": 2.0 * len(shared.nodes)}
    try:
        wait_for("an unused cluster", lambda: _free() == (whole, whole))
    except TimeoutError as error:
        raise AssertionError(f"of {whole} an earlier test left (there, free): {_free()}") from error
    return shared


def _free() -> tuple[dict[str, float], dict[str, float]]:
    """What the cluster has, and what of it is free."""
    import ray

    there, free = ray.cluster_resources(), ray.available_resources()
    return {name: there.get(name, 0) for name in ("CPU", "GPU")}, {name: free.get(name, 0) for name in ("CPU", "GPU")}


def forget() -> None:
    """Deletes all keys of Trainmaster in the control store, because the next daemon numbers its jobs from 1 again."""
    from ray.experimental import internal_kv

    from trainmaster.ray import gcs

    for namespace in (gcs.NAMESPACE, gcs.CLAIMS):
        for key in internal_kv._internal_kv_list("", namespace=namespace):
            internal_kv._internal_kv_del(key, namespace=namespace)


#: Seconds of a batch with which a job, on a slow machine too, trains until its test calls `hurry`.
LONG = 4.0


class Run:
    """A driver in its own process, with its output files."""

    def __init__(self, cluster: Cluster, daemon: Daemon, folder: Path, name: str, **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        self._cluster = cluster
        self._options = {
            "address": daemon.address,
            "token_file": str(daemon.token_file),
            "dir": str(folder),
            "name": name,
            "out": str(folder / f"{name}.json"),
            "hurry": str(folder / f"{name}.hurry"),
            **options,
        }
        self._out = Path(self._options["out"])
        self.start()

    def start(self, **options: Any) -> None:
        script = Path(__file__).with_name("logistic.py")
        self._out.unlink(missing_ok=True)
        self.process = self._cluster.run(script, json.dumps(self._options | options))

    def hurry(self, seconds: float = 0) -> None:
        """Makes the emulated accelerator faster, when the test needs no more of its time."""
        path = Path(self._options["hurry"])
        partial = path.with_suffix(".partial")
        partial.write_text(str(seconds))
        partial.rename(path)

    @property
    def at_gate(self) -> bool:
        """Whether the driver waits for the file `gate`."""
        return self._out.with_suffix(".ready").exists()

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

    def result(self) -> dict[str, Any]:
        """The result of the job, once it has ended."""
        document = wait_for("the driver's end", self.document)
        assert "result" in document, document
        found: dict[str, Any] = document["result"]
        return found
