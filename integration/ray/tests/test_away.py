"""A control store that does not answer for a while, or that has invalid documents. Without Ray."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainmaster import Job, Refused, Role
from trainmaster.ray import driver as driving
from trainmaster.ray import gcs
from trainmaster.ray.driver import Driver, Settings
from trainmaster.ray.groups import Group
from trainmaster.ray.plan import Plan
from trainmaster.ray.slots import Slot

pytestmark = pytest.mark.minimum

WORKER = Slot("worker", 0)


def away(times: int, then: Callable[..., Any]) -> Callable[..., Any]:
    """A function that fails this number of times."""
    left = [TimeoutError()] * times

    def call(*args: Any) -> Any:
        if left:
            raise left.pop()
        return then(*args)

    return call


class Placed:
    """A placement group whose removal fails several times."""

    def __init__(self, times: int) -> None:
        self.slots = (WORKER,)
        self.exists = True
        self.remove = away(times, self._gone)

    def _gone(self) -> None:
        self.exists = False


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(driving, "_FIRST_WAIT", 0.0)
    monkeypatch.setattr(gcs, "driver_id", lambda: "01000000")
    job = Job("away", Role(cpu=1), mode="allreduce")
    return Driver(Settings(job, 7, "token", "127.0.0.1:1", None, object, None, tmp_path, "cancel", None))


def test_the_end_is_written_and_groups_are_removed_after_an_outage(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[int, dict[str, Any]]] = []
    monkeypatch.setattr(gcs, "put_job_document", away(2, lambda *arguments: written.append(arguments)))
    groups: list[Any] = [Placed(0), Placed(3)]
    driver._document("completed", "converged")
    driver._give_back(groups)
    assert not written
    assert any(group.exists for group in groups)
    driver._finish_writes()
    assert not any(group.exists for group in groups)
    assert [(job, document["phase"]) for job, document in written] == [(7, "completed")]


def test_the_end_of_a_driver_does_not_wait_for_ever(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driving, "_LAST_WRITES", 0.0)
    monkeypatch.setattr(gcs, "put_job_document", away(1_000_000, lambda *arguments: None))
    driver._document("completed")
    driver._finish_writes()
    assert "could not be written" in caplog.text


def test_a_plan_waits_while_nodes_are_unknown(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan("away", 1, "run", 1, 0, "", {WORKER: "a"})
    monkeypatch.setattr(gcs, "put_job_document", lambda *arguments: None)
    monkeypatch.setattr(gcs, "live_nodes", away(1, lambda: {"id"}))
    monkeypatch.setattr(gcs, "server_node", away(1, lambda name: "id"))
    made: Any = Placed(0)
    monkeypatch.setattr(Group, "make", lambda *arguments: made)
    made.state = "CREATED"
    assert driver._make(plan, [(WORKER,)]) is None
    assert driver._make(plan, [(WORKER,)]) is None
    assert driver._make(plan, [(WORKER,)]) == [made]


class Store:
    """Ray's key-value store, in memory."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        # Another process that claims every number first.
        self.rival = False

    def _internal_kv_list(self, prefix: bytes, namespace: str) -> list[bytes]:
        return [key for key in self.kept if key.startswith(prefix)]

    def _internal_kv_get(self, key: str, namespace: str) -> bytes | None:
        return self.kept.get(key.encode())

    def _internal_kv_put(self, key: str, value: str, overwrite: bool, namespace: str) -> bool:
        if self.rival:
            self.kept[key.encode()] = b"dead"
        existed = key.encode() in self.kept
        if overwrite or not existed:
            self.kept[key.encode()] = value.encode()
        return existed

    def _internal_kv_del(self, key: str, namespace: str) -> None:
        self.kept.pop(key.encode(), None)


@pytest.fixture
def store(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(gcs, "internal_kv", store)
    monkeypatch.setattr(gcs, "_lives", lambda owner: owner == "02000000")
    monkeypatch.setattr(gcs, "_claims", set())
    return store


def test_invalid_claims_are_ignored(store: Store) -> None:
    for name in ("x", "", "-1", "0", "007", "1e3", "9" * 5000, "\u0663", "\ud800"):
        store.kept[f"7-ab/{name}".encode(errors="surrogatepass")] = b"02000000"
    store.kept[b"7-ab/3"] = b"\xff\xfe"
    assert gcs.claim("7-ab") == "7-ab/4"
    assert b"7-ab/3" not in store.kept
    store.kept[b"7-ab/5"] = b"02000000"
    with pytest.raises(Refused, match="Ray job 02000000"):
        gcs.claim("7-ab")


def test_the_last_possible_claim_is_refused(store: Store) -> None:
    store.kept[b"7-ab/999999999"] = b"dead"
    with pytest.raises(Refused, match=r"the claim 7-ab/999999999 has the last number; delete it"):
        gcs.claim("7-ab")


def test_claiming_ends_after_many_lost_attempts(store: Store) -> None:
    store.rival = True
    with pytest.raises(Refused, match="100 other claims were faster"):
        gcs.claim("7-ab")


def test_an_invalid_plan_is_logged_once_and_the_last_one_stays(
    driver: Driver, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = {"v": 1, "name": "away", "action": "run", "incarnation": 1}
    worker, server = ({"role": role, "index": 0, "server": "a"} for role in ("worker", "server"))
    monkeypatch.setattr(gcs, "put_job_document", lambda *arguments: None)

    def look(text: str | bytes) -> Plan | None:
        store.kept[b"plan/7"] = text.encode() if isinstance(text, str) else text
        driver._next_look = 0.0
        return driver._read_plan()

    caplog.set_level(logging.WARNING)
    good = look(json.dumps(plan | {"slots": [worker]}))
    assert good
    # The job has no parameter servers, so that a plan with some is invalid.
    bad: list[str | bytes] = [
        json.dumps(plan | {"slots": [worker, server]}),
        "[" * 100_000,
        "[]",
        b"\xff",
        json.dumps(plan),
    ]
    for text in bad * 2:
        assert look(text) is good
    (message,) = (record.getMessage() for record in caplog.records)
    assert message == (
        "away: the plan can't be read, the last one stays in force: "
        "slots: the plan has parameter servers, but the job has none"
    )
    after = look(json.dumps(plan | {"slots": [worker], "revision": 1}))
    assert after
    assert after.revision == 1
    look("{")
    assert len(caplog.records) == 2


def test_the_number_of_kept_refusals_is_limited(driver: Driver) -> None:
    for at in range(2000):
        driver._show(Plan("away", at, "run", 1, 0, "", {WORKER: "a"}, refused=f"no room {at}"))
    kept = driver._result.refusals
    assert (len(kept), kept[0], kept[-1]) == (1000, "no room 0", "no room 999")


def test_error_messages_of_a_driver_are_escaped_and_cut(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(gcs, "put_job_document", lambda number, document: written.append(document))
    # As Python names a file whose name isn't UTF-8.
    driver._abandon(ValueError("no file \udcff\x1b[2J" + "x" * 5000))
    message = written[-1]["message"]
    assert message.startswith("no file \\u{dcff}\\u{1b}[2Jxxx")
    assert len(message) < 1100
