"""No token is visible to other users of the cluster: in the dashboard, in logs, or in processes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmaster.ray import gcs
from trainmaster.testing import wait_for

from .conftest import LONG, Run
from .local_cluster import Cluster

pytestmark = pytest.mark.cluster

# Ray's dashboard shows these pages to every user who reaches it.
_PAGES = [
    *(
        f"/api/v0/{table}?detail=1&limit=10000"
        for table in ("actors", "jobs", "nodes", "objects", "placement_groups", "runtime_envs", "tasks", "workers")
    ),
    "/api/jobs/",
    "/logical/actors",
    "/nodes?view=details",
    "/events",
]
# Another user's driver, which prints all keys of the control store.
_OTHER = """
import sys, ray
from ray.experimental import internal_kv
ray.init(log_to_driver=False, logging_level="error")
for namespace in (None, "fun", "cls", *sys.argv[1:]):
    for key in internal_kv._internal_kv_list("", namespace=namespace):
        sys.stdout.buffer.write(key + b" " + (internal_kv._internal_kv_get(key, namespace=namespace) or b""))
"""


def test_tokens_are_visible_nowhere(binary: str, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(_OTHER)
    with Cluster(1, dashboard=True) as cluster:
        daemon = cluster.serve()
        # All users can see the runtime environment.
        env = {"env_vars": {"SEEN": "shown-to-everybody"}}
        run = Run(cluster, daemon, tmp_path, "quiet", seconds=LONG, epochs=20, runtime_env=env)
        wait_for("training", lambda: list(tmp_path.glob("quiet/*/checkpoint-*")))
        tokens = {
            "the job's": json.loads((tmp_path / "quiet/trainmaster.json").read_text())["token"],
            "the driver's": daemon.token_file.read_text().strip(),
            "the administrator's": daemon.admin_token_file.read_text().strip(),
        }
        assert all(len(token) >= 16 for token in tokens.values())
        places = dict(visible(cluster))
        dump = cluster.run(other, gcs.NAMESPACE, gcs.CLAIMS)
        assert dump.wait() == 0
        places |= {f"store {path.name}": path.read_bytes() for path in cluster.folder.glob("other-*.log")}
        run.hurry()
        run.result()
        places |= dict(logs(cluster))
        daemon.end()

    for kind in ("page /api/v0/actors", "page /api/v0/runtime_envs", "process ", "log "):
        found = [place for place, text in places.items() if place.startswith(kind) and b"shown-to-everybody" in text]
        assert found, f"{kind}: the search must find the visible text"
    assert [place for place, text in places.items() if place.startswith("store ") and b'"name": "quiet"' in text]
    assert len([place for place in places if place.startswith("log ")]) > 10
    leaks = [
        f"{whose} token: {at}"
        for whose, token in tokens.items()
        for at, text in places.items()
        if token.encode() in text
    ]
    assert not leaks


def visible(cluster: Cluster) -> Iterator[tuple[str, bytes]]:
    """The texts that dashboard and processes show."""
    for page in _PAGES:
        try:
            with urllib.request.urlopen(f"{cluster.dashboard}{page}") as answer:
                yield f"page {page}", answer.read()
        except urllib.error.HTTPError as error:
            yield f"page {page}", error.read()
    for pid in cluster.processes():
        for name in ("cmdline", "environ"):
            try:
                yield f"process {pid} {name}", Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue  # gone


def logs(cluster: Cluster) -> Iterator[tuple[str, bytes]]:
    """The files of Ray's session, and the logs of daemon and drivers."""
    for path in (*cluster.folder.glob("r/session_2*/**/*"), *cluster.folder.rglob("*.log")):
        if path.is_file():
            yield f"log {path.relative_to(cluster.folder)}", path.read_bytes()
