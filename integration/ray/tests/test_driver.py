"""The driver alone, with a real Ray. The test writes the plans instead of the adapter."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.experimental import internal_kv
from ray.util.placement_group import placement_group_table

from trainmaster.ray.slots import Slot, read
from trainmaster.testing import Daemon, wait_for

from .conftest import LONG, Run, forget
from .local_cluster import Cluster

pytestmark = pytest.mark.cluster


class Plans:
    """Writes plans like the adapter."""

    def __init__(self, daemon: Daemon) -> None:
        self.jobs = daemon.jobs()
        self._decisions = itertools.count(1)
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
        self.nodes = [node["NodeID"] for node in nodes]
        self.names = [node["NodeName"] for node in nodes]
        for at, node in enumerate(self.nodes):
            _put(f"server/n{at}", node)

    def number(self, name: str) -> int:
        """A job's number, once its driver runs."""

        def known() -> int | None:
            status = self.jobs.find(name)
            return status.job if status and self.document(status.job) else None

        number: int = wait_for(f"the driver of {name}", known)
        return number

    def document(self, number: int) -> dict[str, Any] | None:
        text = internal_kv._internal_kv_get(f"job/{number}", namespace="trainmaster")
        return json.loads(text) if text else None

    def running(self, number: int) -> tuple[int, int, str]:
        document = self.document(number)
        assert document, "written before the first group"
        running = document["running"]
        return running["incarnation"], running["revision"], running["slots"]

    def write(
        self, number: int, name: str, incarnation: int, revision: int, placed: dict[str, str], **other: Any
    ) -> None:
        slots = [
            {"role": slot.role, "index": slot.index, "server": server}
            for text, server in placed.items()
            for slot in read(text)
        ]
        document = {
            "v": 1,
            "name": name,
            "decision": next(self._decisions),
            "action": "run",
            "incarnation": incarnation,
            "revision": revision,
            "reason": "",
            "slots": slots,
        }
        _put(f"plan/{number}", json.dumps(document | other))

    def groups(self, number: int) -> dict[str, list[str]]:
        """The placement groups of a job: the nodes of their bundles, by name."""
        return {
            entry["name"]: [entry["bundles_to_node_id"][at] for at in sorted(entry["bundles_to_node_id"])]
            for entry in placement_group_table().values()
            if entry["name"].startswith(f"trainmaster/{number}/") and entry["state"] == "CREATED"
        }


def _put(key: str, value: str) -> None:
    internal_kv._internal_kv_put(key, value, True, namespace="trainmaster")


@pytest.fixture(scope="module")
def daemon(shared: Cluster) -> Iterator[Daemon]:
    daemon = shared.serve(adapter="none")
    yield daemon
    daemon.end()
    forget()


@pytest.fixture
def plans(cluster: Cluster, daemon: Daemon) -> Iterator[Plans]:
    plans = Plans(daemon)
    yield plans
    plans.jobs.close()


@pytest.mark.minimum
def test_workers_change_in_place(cluster: Cluster, daemon: Daemon, plans: Plans, tmp_path: Path) -> None:
    run = Run(cluster, daemon, tmp_path, "live", seconds=LONG, epochs=30)
    number = plans.number("live")
    plans.write(number, "live", 1, 0, {"w0": "n0", "p0": "n0"})
    wait_for("the start", lambda: plans.running(number) == (1, 0, "w0,p0"))
    server_before = _server_groups(number)
    plans.write(number, "live", 1, 1, {"w0": "n0", "w1": "n1", "w2": "n2", "p0": "n0"})
    wait_for("the growth", lambda: plans.running(number) == (1, 1, "w0-2,p0"))
    n = plans.nodes
    base = f"trainmaster/{number}/1/0/w0,p0"
    assert plans.groups(number) == {
        base: [n[0], n[0]],
        f"trainmaster/{number}/1/1/w1": [n[1]],
        f"trainmaster/{number}/1/1/w2": [n[2]],
    }
    plans.write(number, "live", 1, 2, {"w0": "n0", "w2": "n2", "p0": "n0"})
    wait_for("the drop", lambda: plans.running(number) == (1, 2, "w0,w2,p0"))
    assert set(plans.groups(number)) == {base, f"trainmaster/{number}/1/1/w2"}
    assert _server_groups(number) == server_before, "the server must not be started again"
    run.hurry()
    end = run.result()
    assert (end["step"], end["epoch"]) == (30 * 8, 30)
    assert end["loss"] < 0.3
    assert [change["how"] for change in end["history"]] == ["start", "live", "live"]
    assert plans.groups(number) == {}
    document = plans.document(number)
    assert document
    assert document["phase"] == "completed"


def _server_groups(number: int) -> set[str]:
    """The ids of the placement groups with servers. A restart changes them."""
    return {
        key
        for key, entry in placement_group_table().items()
        if entry["name"].startswith(f"trainmaster/{number}/")
        and entry["state"] == "CREATED"
        and Slot("server", 0) in read(entry["name"].rpartition("/")[2])
    }


@pytest.mark.parametrize("mode", ["sync", "async", "allreduce"])
def test_a_new_incarnation_resumes_from_the_checkpoint(
    cluster: Cluster, daemon: Daemon, plans: Plans, tmp_path: Path, mode: str
) -> None:
    servers = 0 if mode == "allreduce" else 1
    run = Run(cluster, daemon, tmp_path, mode, mode=mode, seconds=LONG, epochs=30, servers=servers, most_servers=2)
    number = plans.number(mode)
    ps = [{}, {"p0": "n0"}, {"p0-1": "n2"}]
    plans.write(number, mode, 1, 0, {"w0-1": "n0", **ps[servers]})
    wait_for("the start", lambda: plans.running(number)[2])
    wait_for("training", lambda: list(tmp_path.glob(f"{mode}/{number}-*/checkpoint-*")))
    plans.write(number, mode, 2, 0, {}, action="wait", reason="held")
    wait_for("the release", lambda: plans.running(number)[2] == "" and not plans.groups(number))
    left_at = max(int(path.name.rpartition("-")[2]) for path in tmp_path.glob(f"{mode}/{number}-*/checkpoint-*"))
    # At full speed, some asynchronous workers are ahead of the push that ends the last epoch.
    run.hurry(0.05 if mode == "async" else 0)
    plans.write(number, mode, 2, 0, {"w0-2": "n1", **ps[2 * servers]})
    end = run.result()
    assert end["epoch"] == 30
    assert end["step"] >= 30 * 8 > left_at > 0
    assert end["loss"] < 0.3
    assert [change["how"] for change in end["history"]] == ["start", "restart"]
    assert all(change["cost_ms"] > 0 for change in end["history"])


def test_a_revision_is_refused_if_its_new_workers_fail(
    cluster: Cluster, daemon: Daemon, plans: Plans, tmp_path: Path
) -> None:
    run = Run(cluster, daemon, tmp_path, "picky", seconds=LONG, epochs=30, broken=str(tmp_path / "missing"))
    number = plans.number("picky")
    plans.write(number, "picky", 1, 0, {"w0": "n0", "p0": "n0"})
    wait_for("the start", lambda: plans.running(number) == (1, 0, "w0,p0"))
    (tmp_path / "missing").touch()
    plans.write(number, "picky", 1, 1, {"w0": "n0", "w1-2": "n1", "p0": "n0"})
    refused = wait_for("a refusal", lambda: (plans.document(number) or {})["refused"])
    assert (refused["incarnation"], refused["revision"]) == (1, 1)
    assert refused["cause"].startswith("w1-2 can't join: ")
    assert refused["cause"].endswith("there is no data")
    assert plans.running(number) == (1, 0, "w0,p0")
    wait_for("its groups to go", lambda: list(plans.groups(number)) == [f"trainmaster/{number}/1/0/w0,p0"])
    # The plan has the job's current slots, so that nothing changes.
    plans.write(number, "picky", 1, 2, {"w0": "n0", "p0": "n0"})
    wait_for("the new number", lambda: plans.running(number) == (1, 2, "w0,p0"))
    (tmp_path / "missing").unlink()
    plans.write(number, "picky", 1, 3, {"w0": "n0", "w3": "n1", "p0": "n0"})
    wait_for("the growth", lambda: plans.running(number) == (1, 3, "w0,w3,p0"))
    run.hurry()
    end = run.result()
    assert (end["step"], end["epoch"]) == (30 * 8, 30)
    assert [(change["how"], change["revision"]) for change in end["history"]] == [("start", 0), ("live", 3)]
    assert end["refusals"] == [refused["cause"]]


def test_a_job_resumes_elsewhere_after_a_raylets_death(
    cluster: Cluster, daemon: Daemon, plans: Plans, tmp_path: Path
) -> None:
    run = Run(cluster, daemon, tmp_path, "raylet", seconds=LONG, epochs=15)
    number = plans.number("raylet")
    plans.write(number, "raylet", 1, 0, {"w0": "n0", "p0": "n1"})
    wait_for("training", lambda: list(tmp_path.glob(f"raylet/{number}-*/checkpoint-*")))
    cluster.kill_node(plans.names[0])
    wait_for("the loss to be seen", lambda: plans.running(number)[2] == "" and not plans.groups(number))
    run.hurry()
    plans.write(number, "raylet", 2, 0, {"w0": "n1", "p0": "n1"})
    end = run.result()
    assert [change["how"] for change in end["history"]] == ["start", "failure"]
    assert end["epoch"] == 15


def test_a_crashed_worker_restarts_in_its_incarnation(
    cluster: Cluster, daemon: Daemon, plans: Plans, tmp_path: Path
) -> None:
    run = Run(cluster, daemon, tmp_path, "crash", epochs=10, crash_once=str(tmp_path / "crashed"))
    number = plans.number("crash")
    plans.write(number, "crash", 1, 0, {"w0": "n0", "p0": "n1"})
    end = run.result()
    assert [(change["how"], change["incarnation"]) for change in end["history"]] == [("start", 1), ("failure", 1)]
    assert (end["epoch"], end["step"]) == (10, 80)


def test_a_driver_dies_between_checkpoint_and_recreation(
    cluster: Cluster, daemon: Daemon, plans: Plans, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"seconds": LONG, "epochs": 20, "on_driver_death": "resume"}
    run = Run(cluster, daemon, tmp_path, "mortal", **options)
    number = plans.number("mortal")
    plans.write(number, "mortal", 1, 0, {"w0": "n0", "p0": "n0"})
    wait_for("training", lambda: list(tmp_path.glob(f"mortal/{number}-*/checkpoint-*")))
    rival = Run(cluster, daemon, tmp_path / "rival", "mortal")
    assert "mortal" in wait_for("a refusal", rival.document)["error"]
    twin = Run(cluster, daemon, tmp_path, "mortal", out=str(tmp_path / "twin.json"), resume=True)
    assert "still alive" in wait_for("a refusal", twin.document)["error"]
    assert twin.process.wait() == 0
    plans.write(number, "mortal", 2, 0, {}, action="wait", reason="held")
    wait_for("the release", lambda: plans.running(number)[2] == "")
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    left_at = max(int(path.name.rpartition("-")[2]) for path in tmp_path.glob(f"mortal/{number}-*/checkpoint-*"))
    # Three drivers start at once.
    options |= {"gate": str(tmp_path / "gate"), "resume": True}
    drivers = [Run(cluster, daemon, tmp_path, "mortal", out=str(tmp_path / f"{at}.json"), **options) for at in range(3)]
    wait_for("all of them", lambda: all(one.at_gate for one in drivers))
    (tmp_path / "gate").touch()
    wait_for("refusals", lambda: [one.document() for one in drivers].count(None) <= 1)
    refused = [document for one in drivers if (document := one.document())]
    assert all("still alive" in document.get("error", "") for document in refused), refused
    assert len(refused) == 2
    run.hurry()
    plans.write(number, "mortal", 2, 0, {"w0-1": "n1", "p0": "n1"})
    (winner,) = (one for one in drivers if not one.document())
    end = winner.result()
    assert end["job"] == number
    assert end["step"] == 20 * 8 > left_at > 0


def test_a_refused_plan_is_logged_and_the_next_one_followed(
    cluster: Cluster, daemon: Daemon, plans: Plans, tmp_path: Path
) -> None:
    run = Run(cluster, daemon, tmp_path, "refused", epochs=3)
    number = plans.number("refused")
    # More slots than the node has room for: Ray leaves the group pending, and the adapter refuses the plan.
    plans.write(number, "refused", 1, 0, {"w0-39": "n0", "p0": "n0"})
    wait_for("a group that waits", lambda: any(_pending(number)))
    plans.write(number, "refused", 1, 0, {"w0-39": "n0", "p0": "n0"}, refused="no room on n0")
    wait_for("its withdrawal", lambda: not any(_pending(number)))
    plans.write(number, "refused", 2, 0, {"w0": "n0", "p0": "n0"})
    end = run.result()
    assert end["refusals"] == ["no room on n0"]
    assert len(end["history"]) == 1


def _pending(number: int) -> list[str]:
    return [
        entry["name"]
        for entry in placement_group_table().values()
        if entry["name"].startswith(f"trainmaster/{number}/") and entry["state"] == "PENDING"
    ]


def test_a_cancelled_job_ends_with_the_daemons_reason(
    cluster: Cluster, daemon: Daemon, plans: Plans, tmp_path: Path
) -> None:
    run = Run(cluster, daemon, tmp_path, "unwanted", seconds=0.05, epochs=1000)
    number = plans.number("unwanted")
    plans.write(number, "unwanted", 1, 0, {"w0": "n0", "p0": "n0"})
    wait_for("the start", lambda: plans.running(number)[2])
    plans.jobs.cancel("unwanted")
    plans.write(number, "unwanted", 1, 0, {}, action="stop", reason="cancelled")
    document = wait_for("its end", run.document)
    assert document["kind"] == "JobFailed"
    assert "unwanted: cancelled" in document["error"]
    wait_for("its groups to go", lambda: not plans.groups(number))


def test_an_error_in_a_users_constructor_fails_the_job(
    cluster: Cluster, daemon: Daemon, plans: Plans, tmp_path: Path
) -> None:
    (tmp_path / "missing").touch()
    run = Run(cluster, daemon, tmp_path, "broken", broken=str(tmp_path / "missing"))
    number = plans.number("broken")
    plans.write(number, "broken", 1, 0, {"w0": "n0", "p0": "n0"})
    document = wait_for("its end", run.document)
    assert document["kind"] == "JobFailed"
    assert "there is no data" in document["error"]
    ended = plans.document(number)
    assert ended
    assert ended["phase"] == "failed"
    wait_for("its groups to go", lambda: not plans.groups(number))


def test_invalid_plans_do_not_stop_a_job(cluster: Cluster, daemon: Daemon, plans: Plans, tmp_path: Path) -> None:
    run = Run(cluster, daemon, tmp_path, "firm", seconds=LONG, epochs=30)
    number = plans.number("firm")
    plans.write(number, "firm", 1, 0, {"w0": "n0", "p0": "n0"})
    wait_for("training", lambda: list(tmp_path.glob(f"firm/{number}-*/checkpoint-*")))
    _put(f"plan/{number}", "[" * 100_000)
    wait_for("its fault in the log", lambda: _faults(cluster, "firm"))
    for text in (
        *("[]", "\x00", '{"v": 1, "action": {}}', '{"v": 1, "action": "run", "slots": [{}]}'),
        json.dumps({"v": 1, "name": "firm", "action": "run", "slots": []}),
        json.dumps({"v": 1, "name": "firm", "action": "run", "incarnation": 10**30, "slots": 7}),
    ):
        _put(f"plan/{number}", text)
        # Longer than the driver's longest interval between reads. test_away checks each document alone.
        time.sleep(0.7)
        assert plans.running(number) == (1, 0, "w0,p0")
    # A server whose node id is invalid.
    internal_kv._internal_kv_put("server/odd", b"\xff\xfe", True, namespace="trainmaster")
    plans.write(number, "firm", 1, 1, {"w0": "n0", "w1": "odd", "p0": "n0"})
    time.sleep(0.7)
    plans.write(number, "firm", 1, 2, {"w0-1": "n0", "p0": "n0"})
    wait_for("the growth", lambda: plans.running(number) == (1, 2, "w0-1,p0"))
    run.hurry()
    end = run.result()
    assert (end["step"], end["epoch"]) == (30 * 8, 30)
    assert [change["how"] for change in end["history"]] == ["start", "live"]
    assert _faults(cluster, "firm") == ["not JSON: nested too deeply"]


def _faults(cluster: Cluster, name: str) -> list[str]:
    """The faults that a job's drivers logged about its plans."""
    lines = [line for log in cluster.folder.glob("logistic-*.log") for line in log.read_text().splitlines()]
    head = f"{name}: the plan can't be read, the last one stays in force: "
    return [line.partition(head)[2] for line in lines if head in line]
