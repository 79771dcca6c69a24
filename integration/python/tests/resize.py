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

from trainmaster.testing import free_port, wait_for

from .agents import Agent, Feed, steps

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

    def end(self) -> None:
        for agent in (*self._agents.values(), *self._left):
            agent.end()
        self._feed.go_away()


class Stock(Elastic):
    """Agents that find each other as in a stock torchrun."""

    name = "c10d"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._endpoint = f"127.0.0.1:{free_port()}"

    def _agent(self, index: int) -> Agent:
        return Agent(
            self._feed,
            self._folder,
            index,
            PET_RDZV_BACKEND="c10d",
            PET_RDZV_ENDPOINT=self._endpoint,
            PET_RDZV_CONF=f"is_host={int(index == 0)}",
            PET_NNODES="1:3",
        )

    def _leave(self, indices: list[int]) -> None:
        for index in indices:
            self._left.append(self._agents.pop(index))
            self._left[-1].process.terminate()


def pause(folder: Path, world: int) -> float:
    """Seconds from the last step in the present number of processes to the first one in another."""
    seen = len(steps(folder))
    last = time.monotonic()
    while True:
        found = steps(folder)
        now = time.monotonic()
        if any(size == world for _, size in found[seen:]):
            return now - last
        if len(found) > seen:
            seen, last = len(found), now
        if now - last > 200:
            raise TimeoutError(f"no step of {world} processes in {folder}")
        time.sleep(_PACE)


def measure(kind: type[Elastic], folder: Path) -> tuple[float, float]:
    """The pauses of a growth from 2 to 3 workers, and of the way back."""
    site = kind(folder)
    try:
        site.change(0, 1)
        wait_for("steps", lambda: len(steps(folder)) > 30)
        site.change(0, 1, 2)
        grown = pause(folder, 3)
        wait_for("steps", lambda: [size for _, size in steps(folder)][-30:] == [3] * 30)
        site.change(0, 1)
        return grown, pause(folder, 2)
    finally:
        site.end()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        # In turns, so that a change of the machine's load meets both.
        for kind in (Elastic, Stock):
            with tempfile.TemporaryDirectory() as folder:
                found.setdefault(kind.name, []).append(measure(kind, Path(folder)))
                print(f"{kind.name}: {found[kind.name][-1]}", file=sys.stderr)
    print(f"{'rendezvous':12}  {'2 -> 3':>8}  {'3 -> 2':>8}   median of {rounds}, seconds without a step")
    for name, pauses in found.items():
        grown, shrunk = (statistics.median(column) for column in zip(*pauses, strict=True))
        print(f"{name:12}  {grown:8.1f}  {shrunk:8.1f}")


if __name__ == "__main__":
    main()
