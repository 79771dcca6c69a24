"""A control store that doesn't answer for a while; there is no Ray."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainmaster import Job, Role
from trainmaster.ray import driver as driving
from trainmaster.ray import gcs
from trainmaster.ray.driver import Driver, Settings
from trainmaster.ray.groups import Group
from trainmaster.ray.plan import Plan
from trainmaster.ray.slots import Slot

pytestmark = pytest.mark.minimum

WORKER = Slot("worker", 0)


def away(times: int, then: Callable[..., Any]) -> Callable[..., Any]:
    """A call that fails so often."""
    left = [TimeoutError()] * times

    def call(*args: Any) -> Any:
        if left:
            raise left.pop()
        return then(*args)

    return call


class Placed:
    """A placement group that is hard to remove."""

    def __init__(self, times: int) -> None:
        self.slots = (WORKER,)
        self.there = True
        self.remove = away(times, self._gone)

    def _gone(self) -> None:
        self.there = False


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(driving, "_FIRST_WAIT", 0.0)
    monkeypatch.setattr(gcs, "driver_id", lambda: "01000000")
    job = Job("away", Role(cpu=1), mode="allreduce")
    return Driver(Settings(job, 7, "token", "127.0.0.1:1", None, object, None, tmp_path, "cancel", None))


def test_the_end_is_written_and_groups_are_removed_when_it_is_back(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[int, dict[str, Any]]] = []
    monkeypatch.setattr(gcs, "put_job_document", away(2, lambda *said: written.append(said)))
    groups: list[Any] = [Placed(0), Placed(3)]
    driver._document("completed", "converged")
    driver._give_back(groups)
    assert not written
    assert any(group.there for group in groups)
    driver._leave_nothing()
    assert not any(group.there for group in groups)
    assert [(job, document["phase"]) for job, document in written] == [(7, "completed")]


def test_the_end_of_a_driver_does_not_wait_for_ever(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driving, "_LAST_WORDS", 0.0)
    monkeypatch.setattr(gcs, "put_job_document", away(1_000_000, lambda *said: None))
    driver._document("completed")
    driver._leave_nothing()
    assert "doesn't take how it ended" in caplog.text


def test_a_plan_waits_until_nodes_can_be_asked_for(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan("away", 1, "run", 1, 0, "", {WORKER: "a"})
    monkeypatch.setattr(gcs, "put_job_document", lambda *said: None)
    monkeypatch.setattr(gcs, "live_nodes", away(1, lambda: {"id"}))
    monkeypatch.setattr(gcs, "server_node", away(1, lambda name: "id"))
    made: Any = Placed(0)
    monkeypatch.setattr(Group, "make", lambda *asked: made)
    made.state = "CREATED"
    assert driver._make(plan, [(WORKER,)]) is None
    assert driver._make(plan, [(WORKER,)]) is None
    assert driver._make(plan, [(WORKER,)]) == [made]
