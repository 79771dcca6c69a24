"""The golden scenarios that a real Ray supports: the placement groups have to match the decisions of Rust and C."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group_table

from trainmaster.ray import slots
from trainmaster.testing import PATIENCE, Daemon, wait_for

from .conftest import forget
from .local_cluster import Cluster

pytestmark = pytest.mark.cluster
tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has it")

_CONFORMANCE = Path(__file__).resolve().parents[2] / "conformance"
# Steps that daemon, Ray and drivers do without the player.
_BY_ITSELF = {"decide", "seen", "gone"}


# The second scenario loses a node.
@pytest.mark.parametrize(
    ("name", "engine"),
    [("ray_in_place", "drf"), ("ray_queue", "fifo"), ("ray_racks", "fifo"), ("kept_gpus", "edge")],
)
def test_placement_groups_match_the_golden_decisions(name: str, engine: str, tmp_path: Path, cluster: Cluster) -> None:
    scenario = tomllib.loads((_CONFORMANCE / f"scenarios/{name}.toml").read_text())
    golden = (_CONFORMANCE / f"golden/{name}.{engine}.txt").read_text()
    assert engine in scenario["engines"]
    assert [server["name"] for server in scenario["server"]] == list(cluster.nodes)
    # The first block is the heading.
    blocks = golden.split("\n\n")[1:]
    assert len(blocks) == len(scenario["step"]), "a block for each step"
    player = Player(cluster, scenario["settings"], engine, tmp_path)
    for step, block in zip(scenario["step"], blocks, strict=True):
        (kind,) = step.keys() - {"at"}
        if kind not in _BY_ITSELF:
            player.agree(f"{name}.{engine}, before {step}")
            player.act(kind, step[kind])
        player.expect(block)
    player.agree(f"{name}.{engine}, at its end")
    player.end()
    forget()


class Player:
    """Carries out a scenario's steps with real drivers, and compares the results."""

    def __init__(self, cluster: Cluster, settings: dict[str, Any], engine: str, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        config, adapter = folder / "daemon.toml", folder / "ray.toml"
        config.write_text(f'[scheduler]\nengine = "{engine}"\n' + "".join(_toml("scheduler", settings)))
        # The machine's load is not part of a scenario.
        adapter.write_text(f'address = "{cluster.address}"\npoll = "300ms"\nmeasure = "off"\n')
        self._daemon = Daemon(folder, f"ray={adapter}", f"--config={config}", env=cluster.env)
        self._jobs = self._daemon.jobs()
        self._drivers: dict[str, subprocess.Popen[bytes]] = {}
        # The last decision on each job: its shape and place, or the reason for none.
        self._expected: dict[str, str] = {}

    def act(self, kind: str, what: Any) -> None:
        if kind == "submit":
            options = {
                "address": self._daemon.address,
                "token_file": str(self._daemon.token_file),
                "dir": str(self._folder),
                "job": what,
            }
            script = Path(__file__).with_name("idle.py")
            self._drivers[what["name"]] = self._cluster.run(script, json.dumps(options))
        elif kind == "hold":
            self._jobs.pause(what["job"], resume=not what["held"])
        elif kind == "end":
            job = what["job"]
            if what["how"] == "completed":
                (self._folder / f"{job}.over").touch()
                assert wait_for(f"the end of {job}", lambda: self._document(job)) == {"result": "completed"}
            else:
                self._jobs.cancel(job)
                assert "cancelled" in wait_for(f"the end of {job}", lambda: self._document(job))["error"]
            del self._expected[job]
        elif kind == "server_left":
            self._cluster.kill_node(what)
        else:
            raise NotImplementedError(kind)

    def expect(self, block: str) -> None:
        """Takes the expected verdicts from a step's block of the transcript."""
        submitted = block.partition("\n")[0].partition(" submit ")[2]
        for line in block.splitlines():
            if line.startswith("  told "):
                job, _, verdict = line.removeprefix("  told ").partition(": ")
                if not verdict.startswith("stop: "):
                    self._expected[job.partition(" ")[0]] = verdict
            elif line.startswith("  refused: "):
                self._expected[submitted] = line.strip()

    def agree(self, at: str) -> None:
        """Waits until Ray shows the expected placement of every job."""
        limit = time.monotonic() + PATIENCE
        while differing := next(self._differing(), None):
            assert time.monotonic() < limit, f"{at}: {differing}"
            time.sleep(0.2)

    def _differing(self) -> Iterator[str]:
        names = {node["NodeID"]: node["NodeName"] for node in ray.nodes() if node["Alive"]}
        table = [entry for entry in placement_group_table().values() if entry["state"] == "CREATED"]
        for job, verdict in self._expected.items():
            status = self._jobs.find(job)
            placed: dict[str, str | None] = {}
            for entry in table:
                number, _, _, bundles = entry["name"].removeprefix("trainmaster/").split("/")
                if status and number == str(status.job):
                    of = (names.get(entry["bundles_to_node_id"][at]) for at in range(len(entry["bundles"])))
                    placed |= dict(zip(map(str, slots.read(bundles)), of, strict=True))
            if verdict.startswith("run "):
                # The chunks follow the slots.
                wanted = verdict.partition(": ")[2].partition("; ")[0]
                # Ray chooses the GPUs itself.
                pairs = (slot.split(" ") for slot in wanted.split(", "))
                if placed != {slot: node.partition("[")[0] for slot, node in pairs}:
                    yield f"{job} should be {verdict!r}, but Ray shows {placed}"
            elif verdict.startswith("wait: "):
                reason = status.reason if status else None
                if placed or reason != verdict.removeprefix("wait: "):
                    yield f"{job} should be {verdict!r}, but its reason is {reason!r}; Ray shows {placed}"
            else:
                refused = self._document(job) or {}
                if verdict.removeprefix("refused: ") not in refused.get("error", "") or placed:
                    yield f"{job} should be {verdict!r}, but its driver wrote {refused}; Ray shows {placed}"

    def _document(self, job: str) -> dict[str, str] | None:
        path = self._folder / f"{job}.json"
        if not path.exists():
            return None
        document: dict[str, str] = json.loads(path.read_text())
        return document

    def end(self) -> None:
        for job, driver in self._drivers.items():
            (self._folder / f"{job}.over").touch()
            driver.wait(PATIENCE)
        self._jobs.close()
        self._daemon.end()


def _toml(section: str, table: dict[str, Any]) -> Iterator[str]:
    """A table's keys as TOML, followed by its tables."""
    for key, value in table.items():
        if not isinstance(value, dict):
            yield f"{key} = {json.dumps(value)}\n"
    for key, value in table.items():
        if isinstance(value, dict):
            yield f"[{section}.{key}]\n"
            yield from _toml(f"{section}.{key}", value)
