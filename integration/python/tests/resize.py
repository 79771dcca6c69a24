"""Measures how long a training stands still when its number of workers changes, beside torchrun alone (`c10d`).

`python -m tests.resize [ROUNDS]`, in `integration/python`. Both run `ddp.py`, an unmodified script with a checkpoint
every ten steps, on this machine. A worker is added or leaves; the pause is the time from the last step of the old
processes to the first step of the new ones. torchrun alone has no way to let a worker leave but to end its agent.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from trainmaster.testing import PATIENCE, free_port, wait_for

from .agents import Agent, Feed, began, steps

_PACE = 0.01


class Elastic:
    """Agents under Trainmaster's rendezvous, with a plan."""

    name = "trainmaster"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._feed = Feed()
        self._agents: dict[int, Agent] = {}
        self._left: list[Agent] = []

    def change(self, *indices: int) -> None:
        new = [index for index in indices if index not in self._agents]
        self._agents |= {index: self._agent(index) for index in new}
        self._leave([index for index in self._agents if index not in indices])
        self._feed.plan(*indices)

    def _agent(self, index: int) -> Agent:
        return Agent(self._feed, self._folder, index)

    def _leave(self, indices: list[int]) -> None:
        """They end by themselves."""

    def training(self) -> list[int]:
        """The training processes."""
        return [pid for agent in self._agents.values() for pid in agent.training()]

    def end(self) -> None:
        for agent in (*self._agents.values(), *self._left):
            agent.end()
        self._feed.go_away()


class Stock(Elastic):
    """Agents that find each other as in a stock torchrun."""

    name = "c10d"
    waits = ""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._endpoint = f"127.0.0.1:{free_port()}"

    def _agent(self, index: int) -> Agent:
        return Agent(
            self._feed,
            self._folder,
            index,
            # Nothing of Trainmaster.
            TRAINMASTER_FEED="",
            TRAINMASTER_JOB="",
            PET_RDZV_BACKEND="c10d",
            PET_RDZV_ENDPOINT=self._endpoint,
            PET_RDZV_CONF=f"is_host={int(index == 0)}{self.waits}",
            PET_NNODES="1:3",
            # With PyTorch's default, in which all rounds of a rendezvous use one store, no step follows a growth.
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        )

    def _leave(self, indices: list[int]) -> None:
        for index in indices:
            self._left.append(self._agents.pop(index))
            self._left[-1].process.terminate()


class Quick(Stock):
    """The same with shorter waits: for a lost agent by default 15 s, for more agents than the fewest 30 s."""

    name = "c10d, quick"
    waits = ",keep_alive_interval=1,last_call_timeout=1"


def pause(site: Elastic, folder: Path, *indices: int) -> tuple[float, float, float]:
    """Changes the workers, and splits the time from the last step of the old processes to the first of the new ones.

    The parts are the seconds until the old processes have ended, until the script has begun in a new one (and read its
    checkpoint), and until its first step is done.
    """
    old = set(site.training())
    seen = len(steps(folder))
    starts = len(began(folder))
    world = len(indices)
    site.change(*indices)
    last = time.monotonic()
    ended = again = 0.0
    while True:
        found = steps(folder)
        now = time.monotonic()
        if not ended and not any(Path(f"/proc/{pid}").exists() for pid in old):
            ended = now
        if not again and any(rank == 0 and size == world for rank, size, _ in began(folder)[starts:]):
            again = now
        if any(size == world for _, size in found[seen:]):
            assert 0 < ended <= again, "old processes run beside the new ones"
            return ended - last, again - ended, now - again
        if len(found) > seen:
            seen, last = len(found), now
        if now - last > PATIENCE:
            raise TimeoutError(f"no step of {world} processes in {folder}")
        time.sleep(_PACE)


def measure(kind: type[Elastic], folder: Path) -> list[tuple[float, float, float]]:
    """The parts of the pauses of a growth from 2 to 3 workers, and of the way back."""
    site = kind(folder)
    try:
        site.change(0, 1)
        wait_for("steps", lambda: len(steps(folder)) > 30)
        grown = pause(site, folder, 0, 1, 2)
        wait_for("steps", lambda: [size for _, size in steps(folder)][-30:] == [3] * 30)
        return [grown, pause(site, folder, 0, 1)]
    finally:
        site.end()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for done in range(rounds):
        # In turns, so that a change of the machine's load meets both.
        for kind in (Elastic, Stock, Quick):
            with tempfile.TemporaryDirectory() as folder:
                for change, parts in zip(("2 -> 3", "3 -> 2"), measure(kind, Path(folder)), strict=True):
                    found.setdefault((kind.name, change), []).append(parts)
            print(f"round {done + 1} of {rounds}: {kind.name} is done", file=sys.stderr)
    print(f"Seconds without a step, medians of {rounds} rounds:")
    print(f"{'rendezvous':12} {'change':8} {'stop':>6} {'start':>6} {'step':>6} {'all':>6}")
    for (name, change), pauses in found.items():
        columns = [*zip(*pauses, strict=True), [sum(parts) for parts in pauses]]
        print(f"{name:12} {change:8} " + " ".join(f"{statistics.median(column):6.1f}" for column in columns))


if __name__ == "__main__":
    main()
