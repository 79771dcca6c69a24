"""Training loops of several libraries grow, shrink and move, and no example of an epoch is lost or trained twice."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from trainmaster.testing import PATIENCE, wait_for

pytest.importorskip("torch")

import torch

from .agents import Agent, Feed, began
from .stacks.common import BATCH, EPOCHS, EXAMPLES, WHOLE

HERE = Path(__file__).parent
#: Each one's library. `make test` runs the first, `make test-all` all, for which it installs the libraries.
NEEDS = {"plain": "torch", "fsdp": "torch", "hf": "transformers", "lightning": "lightning", "deepspeed": "deepspeed"}
#: Those whose batches are a number of passes of the same size.
PASSES = {"hf", "deepspeed"}
STACKS = [stack for stack, library in NEEDS.items() if find_spec(library)]
if not hasattr(torch.cpu.Stream, "record_event"):
    STACKS.remove("fsdp")  # FSDP2 of PyTorch 2.6 calls this, and so can't run on CPUs.
if os.environ.get("TRAINMASTER_RELEASES") != "all":
    STACKS = STACKS[:1]


@pytest.fixture
def feed() -> Iterator[Feed]:
    feed = Feed()
    yield feed
    feed.go_away()


def start(feed: Feed, folder: Path, stack: str, index: int, **environment: str) -> Agent:
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    return Agent(feed, folder, index, str(HERE / f"stacks/train_{stack}.py"), PYTHONPATH=path, **environment)


def worlds(folder: Path) -> list[int]:
    """The world sizes that rank 0 saw."""
    return [world for rank, world, _ in began(folder) if rank == 0]


def trained(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in folder.glob("trained-*"))


def test_processes_that_load_data_run_the_function_by_which_they_are_known() -> None:
    from torch.utils.data._utils.worker import _worker_loop

    assert _worker_loop.__module__.startswith("torch.utils.data.")


@pytest.mark.parametrize("stack", STACKS)
def test_each_example_is_trained_once_an_epoch(feed: Feed, tmp_path: Path, stack: str) -> None:
    agents: list[Agent] = []

    def change(*indices: int) -> None:
        """Plans these workers, and waits until all train."""
        known = len(agents)
        feed.plan(*indices)
        agents.extend(start(feed, tmp_path, stack, index) for index in indices if index >= known)
        wait_for(f"{len(indices)} ranks", lambda: worlds(tmp_path)[-1:] == [len(indices)])
        before = trained(tmp_path)
        wait_for("steps", lambda: trained(tmp_path) > before + 3 * BATCH)

    try:
        change(0)
        change(0, 1, 2)
        change(0, 1)
        assert agents[2].code() == 0, agents[2].text()
        # Moved: the scheduler ends the agents, and starts others. The batches that are loaded don't last for long.
        (tmp_path / "quick").touch()
        for agent in agents[:2]:
            agent.process.terminate()
        for agent in agents[:2]:
            agent.process.wait(PATIENCE)
        feed.incarnation = 2
        agents.extend(start(feed, tmp_path, stack, index, TRAINMASTER_INCARNATION="2") for index in (3, 4))
        feed.plan(3, 4)
        wait_for("the move", lambda: len(worlds(tmp_path)) == 4)
        (tmp_path / "hurry").touch()
        assert [agent.code() for agent in agents[3:]] == [0, 0], agents[3].text()
    finally:
        for agent in agents:
            agent.end()
    examples = WHOLE if stack in PASSES else EXAMPLES
    steps = -(-examples // BATCH) * EPOCHS
    assert (tmp_path / "complete").read_text() == str(steps), agents[0].text()
    assert worlds(tmp_path) == [1, 3, 2, 2]
    starts = [step for rank, _, step in began(tmp_path) if rank == 0]
    assert 0 == starts[0] < starts[1] < starts[2] < starts[3] < steps
    # Rank 0 reports.
    assert feed.reported[-1].step == steps
    assert feed.reported[-1].epoch == EPOCHS
    assert feed.reported[-1].steps_per_epoch == -(-examples // BATCH)
    assert sum(progress.examples for progress in feed.reported) == examples * EPOCHS
    losses = [progress.loss for progress in feed.reported if progress.HasField("loss")]
    assert losses[-1] < losses[0] / 2
    assert sum(progress.restart_ms > 0 for progress in feed.reported) == 4
    assert len(feed.checkpoints_ms) == 3
    counts = Counter(int(line) for path in tmp_path.glob("trained-*") for line in path.read_text().splitlines())
    assert counts == dict.fromkeys(range(examples), EPOCHS), {at: n for at, n in counts.items() if n != EPOCHS}
