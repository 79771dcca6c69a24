"""All ranks stop at the same step."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainmaster import stop
from trainmaster.testing import PATIENCE, wait_for


class Store:
    """A store as PyTorch's, in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        with self._lock:
            self._values[key] = value

    def get(self, key: str) -> bytes:
        with self._lock:
            return self._values[key].encode()

    def add(self, key: str, count: int) -> int:
        with self._lock:
            self._values[key] = str(int(self._values.get(key, "0")) + count)
            return int(self._values[key])

    def check(self, keys: Sequence[str]) -> bool:
        with self._lock:
            return all(key in self._values for key in keys)


class Steps:
    """Steps in which a rank waits for others that are more than `ahead` steps behind, as on a device with a queue."""

    def __init__(self, ranks: int, ahead: int) -> None:
        self._done = [0] * ranks
        self._ahead = ahead
        self._turn = threading.Condition()

    def step(self, rank: int) -> None:
        with self._turn:
            self._done[rank] += 1
            self._turn.notify_all()
            assert self._turn.wait_for(lambda: min(self._done) >= self._done[rank] - self._ahead, PATIENCE), (
                "a deadlock"
            )


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("ahead", [0, 1, 50])
def test_all_ranks_stop_at_the_same_call(first: int, ahead: int) -> None:
    store, steps = Store(), Steps(3, ahead)
    signalled = [threading.Event() for _ in range(3)]
    stopped: dict[int, int] = {}

    def train(rank: int) -> None:
        vote = stop.Vote(rank, 3, signalled[rank].is_set, lambda: store)
        done = 0
        while not vote():
            steps.step(rank)
            # The ranks take turns in being ahead.
            time.sleep(0.002 if (done // 100) % 3 == rank else 0)
            done += 1
        stopped[rank] = done
        vote.close()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    signalled[first].set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(stopped) == 3
    assert len(set(stopped.values())) == 1, stopped


def test_slow_steps_leave_no_rank_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # A step takes longer than a rank waits for others that don't ask, and rank 1 is always a little ahead.
    monkeypatch.setattr(stop, "_PATIENCE", 1.0)
    store, steps = Store(), Steps(2, 0)
    signalled = threading.Event()
    stopped: dict[int, int] = {}

    def train(rank: int) -> None:
        vote = stop.Vote(rank, 2, signalled.is_set, lambda: store)
        done = 0
        while not vote():
            time.sleep(1.5 if rank else 1.6)
            steps.step(rank)
            done += 1
            if done == 2:
                signalled.set()
        stopped[rank] = done
        vote.close()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(stopped) == 2
    assert stopped[0] == stopped[1] <= 5, stopped


def test_a_rank_that_waits_beyond_the_call_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a loss that all read now and then: rank 1, one step ahead, waits in step 21 for rank 0."""
    monkeypatch.setattr(stop, "_TURN_SECONDS", 0.3)
    monkeypatch.setattr(stop.Vote, "_watch", lambda self: None)
    store = Store()
    votes = [stop.Vote(rank, 2, lambda: True, lambda: store) for rank in range(2)]
    done, stopped, blocked = [0, 0], dict[int, int](), threading.Event()

    def train(rank: int) -> None:
        while done[rank] < 1000:
            if (rank, done[0]) == (0, 20):
                # Rank 0 proposes the call that rank 1 has made.
                assert blocked.wait(PATIENCE)
                for at, one in enumerate(votes):
                    one._store, one._alert = store, True
                    store.set(f"alert/{at}", "")
            if votes[rank]._alert and votes[rank]():
                stopped[rank] = done[rank]
                return
            votes[rank]._calls += not votes[rank]._alert
            if (rank, done[1]) == (1, 21):
                blocked.set()
            # In odd steps for its end of the same one, otherwise of the one before.
            while rank and not done[0] >= done[1] + done[1] % 2:
                time.sleep(0.001)
            done[rank] += 1

    threads = [threading.Thread(target=train, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(stopped) == 2, "a deadlock"
    assert stopped[0] == stopped[1], stopped


def test_a_process_without_peers_decides_alone() -> None:
    said = [False]
    for environment in (
        {},
        {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
        {"RANK": "x"},
    ):
        said[0] = False
        decide = stop.vote(environment, lambda: said[0])
        assert not decide()
        said[0] = True
        assert decide()


def test_a_rank_that_finds_no_agreement_stops_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "_PATIENCE", 0.5)

    def away() -> None:
        raise ImportError("no PyTorch")

    signalled = threading.Event()
    # Without a store, and with a peer that never asks.
    for connect in (away, Store):
        signalled.clear()
        vote = stop.Vote(0, 2, signalled.is_set, connect)
        assert not any(vote() for _ in range(1000))
        signalled.set()
        wait_for("its end", vote)
        vote.close()


PROGRAM = """
import time, trainmaster
print("started", flush=True)
while not trainmaster.should_stop():
    print(end="", flush=True)
    time.sleep(0.01)
print("saved", flush=True)
"""


def test_sigterm_lets_a_program_save() -> None:
    sources = str(Path(stop.__file__).parents[1])
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": sources}
    )
    assert program.stdout
    assert program.stdout.readline() == "started\n"

    # The handler is set with the first call.
    def handles() -> bool:
        status = Path(f"/proc/{program.pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    wait_for("the handler", handles)
    program.terminate()
    assert program.communicate(timeout=PATIENCE)[0] == "saved\n"
    assert program.returncode == 0


FORKS = """
import multiprocessing, sys, time
from trainmaster import stop

def load():
    time.sleep(600)

def other():
    time.sleep(600)

load.__module__ = "torch.utils.data._utils.worker"
context = multiprocessing.get_context("fork")
children = [context.Process(target=target, daemon=True) for target in (load, load, other)]
for child in children:
    child.start()
print(*(child.pid for child in children), flush=True)
sys.stdin.readline()
children[0].terminate()
children[0].join()
print(children[0].exitcode, flush=True)
sys.stdin.readline()
"""


def test_processes_that_load_data_end_with_their_parent_and_not_before() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(stop.__file__).parents[1]), "TRAINMASTER_JOB": "7", "RANK": "0"}
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert parent.stdin
    assert parent.stdout
    children = [int(pid) for pid in parent.stdout.readline().split()]
    loaders, other = children[:2], children[2]

    def signals(pid: int, which: str) -> int:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith(which)).split()[1], 16)

    def ready(pid: int) -> bool:
        """Whether its first thread blocks SIGTERM, and another one waits for it."""
        threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
        return bool(signals(pid, "SigBlk:") >> (signal.SIGTERM - 1) & 1) and len(threads) > 1

    def ended(pid: int) -> bool:
        path = Path(f"/proc/{pid}/stat")
        return not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z"

    try:
        wait_for("the children", lambda: all(map(ready, loaders)))
        for child in children:
            os.kill(child, signal.SIGTERM)
        wait_for("the signals to be taken", lambda: not any(signals(child, "ShdPnd:") for child in loaders))
        wait_for("the end of the one that loads nothing", lambda: ended(other))
        time.sleep(1.5)
        assert not any(map(ended, loaders))
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == f"{-signal.SIGTERM}\n"
        assert not ended(loaders[1])
        parent.kill()
        parent.wait()
        wait_for("the end of the other child", lambda: ended(loaders[1]))
    finally:
        for pid in (*children, parent.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        parent.wait()
