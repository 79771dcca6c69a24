"""Unmodified scripts under `torchrun` follow the plan, on real agents with real training processes."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from torch.distributed.elastic.rendezvous import RendezvousParameters

from trainmaster import TrainmasterError
from trainmaster.rendezvous import _ENDING, Clock, Meeting, PlanRendezvous
from trainmaster.testing import wait_for
from trainmaster.torchrun import handler

from .agents import SCRIPT, Agent, Feed, began, steps, wait_for_world
from .test_stop import Store

Start = Callable[..., Agent]


@pytest.fixture
def feed() -> Iterator[Feed]:
    feed = Feed()
    yield feed
    feed.go_away()


@pytest.fixture
def start(feed: Feed, tmp_path: Path) -> Iterator[Start]:
    agents: list[Agent] = []

    def make(index: int, *arguments: str, **environment: str) -> Agent:
        agents.append(Agent(feed, tmp_path, index, *arguments, **environment))
        return agents[-1]

    yield make
    for agent in agents:
        agent.end()


def test_a_script_grows_shrinks_moves_and_recovers(feed: Feed, start: Start, tmp_path: Path) -> None:
    feed.plan(0)
    first = start(0, SLOW_CHECKPOINTS="1")
    wait_for_world(tmp_path, 1)

    # New agents train only once all of them are there, and a checkpoint is complete.
    second = start(1, SLOW_CHECKPOINTS="1")
    wait_for("a parked agent", lambda: feed.address(1))
    feed.plan(0, 1, 2)
    alone = len(steps(tmp_path))
    wait_for("the training to go on meanwhile", lambda: len(steps(tmp_path)) > alone + 10)
    assert {world for _, world in steps(tmp_path)} == {1}
    third = start(2, SLOW_CHECKPOINTS="1")
    grown = wait_for_world(tmp_path, 3)
    assert {(0, 3), (1, 3), (2, 3)} <= {(rank, world) for rank, world, _ in began(tmp_path)}

    # Agents that leave end with 0.
    feed.plan(0)
    assert (second.code(), third.code()) == (0, 0), second.text() + third.text()
    wait_for_world(tmp_path, 1, grown)
    assert {(0, 2, False), (1, 3, True), (2, 3, True), (0, 3, False)} <= set(feed.acknowledged)
    done = [step for step, _ in steps(tmp_path)]
    assert all(after == before + 1 for before, after in pairwise(done)), f"steps were lost or done twice: {done}"

    # All agents change places.
    fourth = start(3, SLOW_CHECKPOINTS="1")
    feed.plan(3)
    assert first.code() == 0, first.text()
    moved = wait_for_world(tmp_path, 1, len(steps(tmp_path)))

    # A training process dies: the same agents start again. An agent dies: another one takes its place.
    fifth = start(4, SLOW_CHECKPOINTS="1")
    feed.plan(3, 4)
    both = wait_for_world(tmp_path, 2, moved)
    os.kill(fifth.training()[0], signal.SIGKILL)
    wait_for("both to start again", lambda: len([1 for _, world, _ in began(tmp_path) if world == 2]) >= 4)
    again = wait_for_world(tmp_path, 2, both)
    fifth.end()
    sixth = start(4, SLOW_CHECKPOINTS="1")
    wait_for("the replacement", lambda: len([1 for _, world, _ in began(tmp_path) if world == 2]) >= 6)
    third_time = wait_for_world(tmp_path, 2, again)
    # Also the first agent, which has the stores.
    fourth.end()
    start(3, SLOW_CHECKPOINTS="1")
    wait_for("the replacement", lambda: len([1 for _, world, _ in began(tmp_path) if world == 2]) >= 8)
    wait_for_world(tmp_path, 2, third_time)
    assert sixth.process.poll() is None

    # A revision with the same agents changes nothing.
    starts, before = len(began(tmp_path)), len(steps(tmp_path))
    feed.plan(3, 4)
    wait_for("the plan to arrive", lambda: feed.told.get(4) == feed.revision)
    wait_for("steps", lambda: len(steps(tmp_path)) > before + 30)
    assert len(began(tmp_path)) == starts


def test_agents_wait_for_a_feed_that_is_away(feed: Feed, start: Start, tmp_path: Path) -> None:
    feed.plan(0, 1)
    one = start(0, STEPS="60")
    wait_for("the first agent", lambda: feed.address(0))
    feed.go_away()
    two = start(1, STEPS="60")
    wait_for("its start", lambda: "torch/distributed/run.py" in two.text())
    feed.come_back()
    wait_for_world(tmp_path, 2)
    # Training goes on without the feed, and ends.
    feed.go_away()
    assert (one.code(), two.code()) == (0, 0), one.text() + two.text()
    assert steps(tmp_path)[-1] == (60, 2)
    # For an adapter that was restarted, and doesn't learn their exit codes.
    assert sorted(path.name for path in tmp_path.glob("done-*")) == ["done-0", "done-1"]


def test_a_script_that_asks_when_to_stop_does_no_step_twice(feed: Feed, start: Start, tmp_path: Path) -> None:
    """Four lines more than in `ddp.py`, and no checkpoints but at changes."""
    (tmp_path / "stops.py").write_text(asking())
    feed.plan(0)
    start(0, "stops.py")
    alone = wait_for_world(tmp_path, 1)
    other = start(1, "stops.py")
    feed.plan(0, 1)
    grown = wait_for_world(tmp_path, 2, alone)
    feed.plan(0)
    assert other.code() == 0, other.text()
    wait_for_world(tmp_path, 1, grown)
    done = [step for step, _ in steps(tmp_path)]
    assert all(after == before + 1 for before, after in pairwise(done)), f"steps were lost or done twice: {done}"


def test_a_training_that_stopped_goes_on_if_the_change_is_withdrawn(feed: Feed, start: Start, tmp_path: Path) -> None:
    slow = '            if leave:\n                Path("saving").touch()\n                time.sleep(3)\n'
    (tmp_path / "stops.py").write_text(asking().replace("            if leave:\n", slow, 1))
    feed.plan(0)
    agent = start(0, "stops.py")
    wait_for_world(tmp_path, 1)
    feed.pretend(1, True)
    feed.plan(0, 1)
    wait_for("the checkpoint", (tmp_path / "saving").exists)
    feed.pretend(1, False)
    wait_for("the end of the training", lambda: not agent.training())
    before = len(steps(tmp_path))
    feed.plan(0)
    wait_for_world(tmp_path, 1, before)
    assert agent.process.poll() is None, agent.text()
    done = [step for step, _ in steps(tmp_path)]
    assert all(after == before + 1 for before, after in pairwise(done)), f"steps were lost or done twice: {done}"


def asking() -> str:
    """The script with the line that asks when to stop."""
    text = SCRIPT.read_text()
    for before, after in [
        ("import torch\n", "import torch\nimport trainmaster\n"),
        ("        if rank == 0:\n", "        leave = trainmaster.should_stop()\n        if rank == 0:\n"),
        ("            if step % EVERY == 0:\n", "            if leave:\n"),
        ("    dist.destroy", "        if leave:\n            break\n    dist.destroy"),
    ]:
        assert before in text
        text = text.replace(before, after, 1)
    return text


UNEVEN = """
import os, time
from pathlib import Path
from types import SimpleNamespace
Path(f"ready-{os.environ['RANK']}").touch()
while os.environ["RANK"] == "0" and not Path("go").exists():
    time.sleep(0.05)
"""


def test_a_plan_that_comes_at_the_end_changes_nothing(feed: Feed, start: Start, tmp_path: Path) -> None:
    (tmp_path / "uneven.py").write_text(UNEVEN)
    feed.plan(0, 1)
    agents = [start(index, "uneven.py") for index in (0, 1)]
    wait_for("both processes", lambda: (tmp_path / "ready-1").exists() and (tmp_path / "ready-0").exists())
    wait_for("the end of one", lambda: not agents[1].training())
    feed.plan(0)
    wait_for("the plan to arrive", lambda: feed.told.get(0) == feed.told.get(1) == feed.revision)
    time.sleep(0.5)  # in which the agents notice it
    (tmp_path / "go").touch()
    assert [agent.code() for agent in agents] == [0, 0], agents[0].text() + agents[1].text()
    assert len(list(tmp_path.glob("ready-*"))) == 2


def test_a_script_that_cannot_run_is_given_up(feed: Feed, start: Start) -> None:
    feed.plan(0)
    agent = start(0, BROKEN="1")
    assert agent.code() == 1
    assert not list(agent.log.parent.glob("done-*"))
    assert "the training processes failed 3 times in a row, each within 60 s" in agent.text()


@pytest.mark.parametrize(
    ("environment", "parameters", "said"),
    [
        ({"TRAINMASTER_FEED": ""}, {}, "TRAINMASTER_FEED is not set: the rendezvous 'trainmaster' works only in jobs"),
        ({"TRAINMASTER_FEED": "nowhere"}, {}, "'nowhere' has no port from 1 to 65535"),
        ({"TRAINMASTER_JOB": ""}, {}, "TRAINMASTER_JOB is not set"),
        ({"TRAINMASTER_ROLE": "server"}, {}, "TRAINMASTER_ROLE: 'server' can't be an agent of torchrun"),
        ({"TRAINMASTER_INDEX": "-1"}, {}, "TRAINMASTER_INDEX: '-1' must be a whole number"),
        ({}, {"run_id": "other"}, "PET_RDZV_ID: 'other' is not this job, 7; leave it as it was set"),
        ({}, {"min_nodes": 3}, "PET_NNODES: 3:4 doesn't allow the 2 workers of the plan"),
        # Another agent has the place of this one's peer, and doesn't come.
        ({}, {"timeout": "1"}, "the agents of revision 1 did not meet within 1 s"),
    ],
)
def test_bad_variables_are_named(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], parameters: dict[str, Any], said: str
) -> None:
    feed.plan(0, 1)
    known = {"TRAINMASTER_FEED": f"127.0.0.1:{feed.port}", "TRAINMASTER_JOB": "7"}

    def agent(index: int, environment: dict[str, str], parameters: dict[str, Any]) -> Any:
        for name, value in {**known, "TRAINMASTER_INDEX": str(index), **environment}.items():
            monkeypatch.setenv(name, value)
        given = {"run_id": "7", "min_nodes": 1, "max_nodes": 4, **parameters}
        return handler()(RendezvousParameters("trainmaster", "", **given))

    peer = agent(1, {}, {})
    try:
        with pytest.raises((TrainmasterError, ValueError), match=re.escape(said)):
            agent(0, environment, parameters).next_rendezvous()
    finally:
        peer.shutdown()


def meeting(revision: int, *agents: tuple[int, str]) -> Meeting:
    return Meeting(1, revision, agents)


def test_meetings_have_names_of_their_own() -> None:
    one = meeting(1, (0, "a:1"), (2, "b:1"))
    assert (one.rank(0), one.rank(2), one.rank(1)) == (0, 1, None)
    others = [Meeting(2, 1, one.agents), meeting(1, (0, "a:1")), meeting(1, (0, "a:1"), (2, "b:2"))]
    assert len({one.name("token"), one.name("other"), *(other.name("token") for other in others)}) == 5
    assert meeting(2, *one.agents) == one, "a plan that changes something else changes no meeting"
    assert one.leaves(others[1])
    assert not others[1].leaves(one)
    assert one.complete
    assert not meeting(1, (0, "a:1"), (1, "")).complete
    assert not meeting(1).complete


def test_a_checkpoint_is_complete_once_its_files_stay_as_they_are(tmp_path: Path) -> None:
    assert not Clock(None).ticks
    assert not Clock(tmp_path / "missing").ticks
    folder = tmp_path / "deep/er"
    folder.mkdir(parents=True)
    assert not Clock(tmp_path).ticks
    model, optimizer = folder / "model.pt", folder / "optimizer.pt"
    model.write_text("a")
    optimizer.write_text("a")
    clock = Clock(tmp_path)
    assert clock.ticks
    assert not clock.edge(10.0)
    # The first of two files was replaced: the other one is still to come.
    (folder / "new").write_text("b")
    (folder / "new").replace(model)
    assert not clock.edge(11.0)
    assert not clock.edge(11.1)
    assert not clock.edge(13.9)
    optimizer.write_text("bc")
    assert not clock.edge(14.1)
    assert not clock.edge(17.0)
    assert clock.edge(17.1)


def test_a_single_file_that_was_replaced_is_complete(tmp_path: Path) -> None:
    last, new = tmp_path / "last.pt", tmp_path / "new.pt"
    last.write_text("a")
    clock = Clock(tmp_path)
    new.write_text("b")
    assert not clock.edge(10.0)
    assert not clock.edge(10.1)
    new.replace(last)
    assert not clock.edge(10.2), "it may still grow"
    assert clock.edge(10.3)
    # A file that is written in place is complete only after a while.
    clock = Clock(tmp_path)
    last.write_text("cc")
    assert not clock.edge(11.0)
    assert not clock.edge(11.1)
    assert clock.edge(14.0)


def test_a_folder_with_many_files_is_looked_at_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(50):
        (tmp_path / f"{at}.pt").write_text("a")
    monkeypatch.setattr("trainmaster.rendezvous._MOST_FILES", 10)
    assert len(Clock(tmp_path)._first) == 10
    # Also of one with nothing but folders.
    looked: list[str] = []
    walk = os.walk

    def counted(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for found in walk(folder):
            looked.append(found[0])
            yield found

    monkeypatch.setattr(os, "walk", counted)
    for at in range(50):
        (tmp_path / f"empty/{at}").mkdir(parents=True)
    assert not Clock(tmp_path / "empty").ticks
    assert len(looked) == 10


def test_a_training_is_done_once_the_processes_of_all_agents_have_ended() -> None:
    agent = PlanRendezvous.__new__(PlanRendezvous)
    store = Store()
    formed: Any = SimpleNamespace(agents=store, meeting=SimpleNamespace(agents=((0, "a:1"), (1, "b:1"))))
    assert not agent._have_ended(formed)
    # To ask changes nothing: the key's existence tells other agents that a training ends.
    assert not store.check([_ENDING])
    store.add(_ENDING, 1)
    assert not agent._have_ended(formed)
    store.add(_ENDING, 1)
    assert agent._have_ended(formed)
