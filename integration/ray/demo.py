#!/usr/bin/env python3
"""Trains six jobs on a Ray on this machine. They change shape during training; a raylet and a driver are killed.

Accelerators are emulated: after each gradient, the worker sleeps for the time that a device would need for its share of
the batch. Afterwards the same jobs run in their requested shapes, with the same kills.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group_table
from tests.local_cluster import Cluster

from trainmaster.testing import Daemon, wait_for

# name, mode, workers (min, max, requested), requested servers, maximum of servers, epochs, emulated seconds per batch
JOBS = [
    ("sync-a", "sync", (1, 4, 2), 1, 2, 45, 0.4),
    ("sync-b", "sync", (1, 4, 1), 1, 1, 25, 0.4),
    ("async-a", "async", (1, 3, 2), 1, 1, 30, 0.4),
    ("async-b", "async", (1, 3, 1), 1, 1, 30, 0.4),
    ("ring-a", "allreduce", (1, 4, 1), 0, 0, 40, 0.4),
    ("ring-b", "allreduce", (1, 2, 1), 0, 0, 20, 0.4),
]
VICTIM = "ring-a"
LOSS = 0.35
PATIENCE = 900.0


def options(job: tuple[Any, ...], folder: Path, daemon: Daemon, elastic: bool) -> dict[str, Any]:
    name, mode, workers, servers, most, epochs, seconds = job
    return {
        "name": name,
        "mode": mode,
        "workers": workers,
        "servers": servers,
        "most_servers": most,
        "epochs": epochs,
        "seconds": seconds,
        "gpu": 1,
        # A job with a fixed number of servers never needs a restart.
        "resize": ("any" if most > servers else "workers") if elastic else "fixed",
        "address": daemon.address,
        "token_file": str(daemon.token_file),
        "dir": str(folder),
        "out": str(folder / f"{name}.json"),
        "on_driver_death": "resume",
    }


class Round:
    """All six jobs, each with its own driver."""

    def __init__(self, cluster: Cluster, daemon: Daemon, elastic: bool) -> None:
        self._cluster = cluster
        self._jobs = daemon.jobs()
        self._folder = Path(tempfile.mkdtemp(dir=cluster.folder))
        self._options = {job[0]: options(job, self._folder, daemon, elastic) for job in JOBS}
        self._drivers: dict[str, subprocess.Popen[bytes]] = {}
        for name in self._options:
            self.start(name)

    def start(self, name: str, **more: Any) -> None:
        script = Path(__file__).parent / "tests/logistic.py"
        self._drivers[name] = self._cluster.run(script, json.dumps(self._options[name] | more))

    def kill_driver(self, name: str) -> None:
        os.kill(self._drivers[name].pid, signal.SIGKILL)
        self._drivers[name].wait()

    def pause(self, name: str) -> None:
        """Pauses a job, so that it saves a checkpoint and gives back its slots. Then its next start is pending."""
        status = self._jobs.find(name)
        assert status
        self._jobs.pause(name)
        wait_for(f"the release of {name}", lambda: not any(self._groups(status.job)))

    def resume(self, name: str) -> None:
        self._jobs.pause(name, resume=True)

    def _groups(self, job: int) -> Iterator[str]:
        for group in placement_group_table().values():
            if group["name"].startswith(f"trainmaster/{job}/") and group["state"] != "REMOVED":
                yield group["name"]

    def changes(self, name: str) -> list[dict[str, Any]]:
        path = self._folder / f"{name}.changes"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def finished(self, name: str) -> dict[str, Any] | None:
        path = self._folder / f"{name}.json"
        if path.exists():
            document: dict[str, Any] = json.loads(path.read_text())
            return document
        if self._drivers[name].poll() is not None:
            return {"error": f"its driver ended with code {self._drivers[name].returncode}"}
        return None

    def results(self) -> dict[str, dict[str, Any]]:
        ends: dict[str, dict[str, Any]] = {}
        for name in self._options:
            ends[name] = wait_for(f"{name}'s end", partial(self.finished, name), PATIENCE)
            if "result" in ends[name]:
                ends[name]["seconds"] = self._completion(name)
        return ends

    def _completion(self, name: str) -> float:
        """Time from submission to end, by the daemon's clock, because the job can have several drivers."""

        def ended() -> Any:
            status = self._jobs.find(name)
            return status if status and status.HasField("ended_ms") else None

        status = wait_for(f"the daemon to see {name}'s end", ended)
        return float(status.ended_ms - status.submitted_ms) / 1000

    def checkpointed(self, name: str) -> int:
        return max(int(path.name.rpartition("-")[2]) for path in self.checkpoints(name))

    def checkpoints(self, name: str) -> list[Path]:
        return list(self._folder.glob(f"{name}/*/checkpoint-*"))


def play(cluster: Cluster, daemon: Daemon, elastic: bool) -> tuple[Round, dict[str, dict[str, Any]]]:
    """Runs the six jobs to their ends, with the kills."""
    jobs = Round(cluster, daemon, elastic)
    wait_for("all jobs to run", lambda: all(jobs.changes(job[0]) for job in JOBS), PATIENCE)
    wait_for("checkpoints", lambda: all(jobs.checkpoints(job[0]) for job in JOBS), PATIENCE)
    cluster.kill_node(list(cluster.nodes)[-1])
    print("killed a raylet (kill -9)", flush=True)
    cluster.mend()
    print("the raylet is back", flush=True)
    jobs.pause(VICTIM)
    jobs.kill_driver(VICTIM)
    print(f"killed the driver of {VICTIM} (kill -9) between its checkpoint and its next start", flush=True)
    jobs.start(VICTIM, resume=True)
    jobs.resume(VICTIM)
    print(f"started it again with resume=True, from step {jobs.checkpointed(VICTIM)}", flush=True)
    return jobs, jobs.results()


def history(changes: list[dict[str, Any]]) -> str:
    sign = {"start": "", "live": "~", "restart": "!", "failure": "✗"}
    return " ".join(f"{sign[change['how']]}({change['workers']},{change['servers']})" for change in changes)


def costs(result: dict[str, Any]) -> str:
    """The costs of restarts in seconds, without the first start."""
    found = [c["cost_ms"] for c in result["history"] if c["how"] in ("restart", "failure") and c["cost_ms"] is not None]
    return " ".join(f"{cost / 1000:.1f}" for cost in found) or "–"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="optimus", help="the scheduling engine (default: %(default)s)")
    parser.add_argument("--interval", default="10s", help="time between its decisions (default: %(default)s)")
    chosen = parser.parse_args()
    with Cluster(4, poll="1s") as cluster:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        print(f"Ray at {cluster.address}: a head and 4 raylets of 2 emulated GPUs each", flush=True)
        daemon = cluster.serve(f"--engine={chosen.engine}", f"--set=interval={chosen.interval}")
        jobs, shaped = play(cluster, daemon, elastic=True)
        print("the same jobs in their requested shapes", flush=True)
        _, fixed = play(cluster, daemon, elastic=False)
        ray.shutdown()
        daemon.end()
        return report(jobs, shaped, fixed)


def report(jobs: Round, shaped: dict[str, dict[str, Any]], fixed: dict[str, dict[str, Any]]) -> int:
    print("\n(w,p) over time: ~ changed in place, ! restarted from a checkpoint, ✗ after a failure.\n")
    print(f"{'job':8} {'loss':>6} {'JCT':>6} {'fixed':>6}  {'restarts (s)':14} (w,p)")
    good = True
    sums = [0.0, 0.0]
    for name in shaped:
        ends = [shaped[name], fixed[name]]
        if any("error" in end for end in ends):
            print(f"{name:8} failed: {[end.get('error') for end in ends]}")
            good = False
            continue
        elastic_end, fixed_end = (end["result"] for end in ends)
        good &= elastic_end["loss"] < LOSS and fixed_end["loss"] < LOSS
        jct = [end["seconds"] for end in ends]
        sums = [total + one for total, one in zip(sums, jct, strict=True)]
        print(
            f"{name:8} {elastic_end['loss']:6.3f} {jct[0]:6.1f} {jct[1]:6.1f}  {costs(elastic_end):14} "
            + history(jobs.changes(name))
        )
    if good:
        print(f"\naverage JCT: {sums[0] / len(shaped):.1f} s elastic, {sums[1] / len(shaped):.1f} s fixed")
    grown = any(grew(jobs.changes(name)) for name in shaped)
    print(f"grown in place: {'yes' if grown else 'no'}; all at a loss below {LOSS}: {good}")
    return 0 if good and grown else 1


def grew(changes: list[dict[str, Any]]) -> bool:
    """Whether the number of workers grew in place."""
    pairs = itertools.pairwise(changes)
    return any(now["how"] == "live" and now["workers"] > before["workers"] for before, now in pairs)


if __name__ == "__main__":
    sys.exit(main())
