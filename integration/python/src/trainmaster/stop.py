"""When to stop: the same answer at the same call on all ranks, though each learns of it at another time.

A rank that has to stop says so in the store of the training processes (`MASTER_ADDR`, `MASTER_PORT`). From then on all
ranks look at the store in each call. Rank 0 proposes a later call. A rank that comes to that call waits there for the
decision: to stop, once all ranks have seen the proposal in time, or to go on, if one is beyond it already, as ranks can
be that only enqueue their steps. Such a rank may wait for the next step of another one, so rank 0 gives a proposal up
that not all have seen after two seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from multiprocessing import current_process, parent_process
from multiprocessing.util import register_after_fork
from types import FrameType
from typing import Any

log = logging.getLogger("trainmaster")

# Of the keys in the store.
PREFIX = "trainmaster/stop"
# Agents read and write these.
_ASKS, _WANTED, _SIZE, _ENDED = "asks", "wanted", "size", "ended"
# How often a rank looks whether another one has to stop, in seconds.
_PACE = 0.2
_STORE_TIMEOUT = timedelta(seconds=5)
# A proposal is for so many calls later, because a step can take long; for twice as many after each one that came too
# late.
_AHEAD = 1
# A rank that waits for the decision looks so often, and gives up after so long.
_TURN = 0.005
_WAIT = 20.0
# A rank that has to stop and finds no agreement stops alone after so long.
_PATIENCE = 5.0
# Rank 0 waits so long at a call for ranks that may be beyond it, before it proposes another one.
_TURN_SECONDS = 2.0
# A process at its end waits for the signal of its agent, which waits for the others. Without one, it has not succeeded.
_SIGNAL_SECONDS = 900.0
_UNSIGNALLED = 75
# How often a process that loads data looks whether its parent has ended, in seconds.
_PARENT_PACE = 1.0


class Signal:
    """Whether SIGTERM has arrived. The process goes on, and an earlier handler is called as well."""

    def __init__(self) -> None:
        self.arrived = False
        self._before: Any = signal.SIG_DFL
        self._forks = False

    def install(self, alone: bool = False) -> None:
        """Sets the handler, if another one is set. `alone`: that one isn't called."""
        # Only the main thread may set handlers. Elsewhere the signal ends the process, as without this.
        with contextlib.suppress(ValueError):
            if not self._forks:
                # Children that Python forks later have to end when they are told to.
                os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
                self._forks = True
            if (before := signal.getsignal(signal.SIGTERM)) != self._handle:
                self._before = signal.SIG_DFL if alone else before
                signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.arrived = True
        _let_children_end()
        if callable(self._before):
            self._before(number, frame)


def _outlive(_: object) -> None:
    """Lets a process that loads data ignore a SIGTERM that all processes of a job get, while its parent lives.

    Runs in each new process of `multiprocessing`. A training loop that comes to its end needs those that load its data.
    Their parent's signal ends them as before. Programs that they start inherit that SIGTERM is blocked, and have to be
    ended otherwise.
    """
    target, parent = getattr(current_process(), "_target", None), parent_process()
    loads = getattr(target, "__module__", "").startswith("torch.utils.data.")
    # The child of a fork server can't know who sends a signal: its parent isn't the process that it works for.
    if loads and parent and parent.pid == os.getppid():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_await_parent, args=(parent.pid,), name="trainmaster-parent", daemon=True).start()


def _await_parent(parent: int) -> None:
    """Ends this process when its parent says so or, after a signal of another process, has ended."""
    told: signal.struct_siginfo | None = signal.sigwaitinfo({signal.SIGTERM})
    while os.getppid() == parent and (told is None or told.si_pid != parent):
        told = signal.sigtimedwait({signal.SIGTERM}, _PARENT_PACE)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)


def _let_children_end() -> None:
    """PyTorch raises an error in the training loop when a process that loads data ends by the signal that all get."""
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGCHLD, lambda *_: None)


class Vote:
    """The agreement of one rank with the others. `connect` returns the store, and raises while it isn't there.

    Keys of the store:

      asks             the training asks when to stop, so that nothing has to wait for its next checkpoint
      wanted           some rank has to stop, or an agent waits for the end of all
      size, ended      the number of ranks, and of those at their end
      alert/RANK       this rank looks at the store in each call
      call/N           the call that proposal N is for
      seen/N/RANK      this rank is not beyond that call
      late/N           the call of a rank that is
      decided/N        "stop", or "void"
    """

    def __init__(self, rank: int, size: int, wants: Callable[[], bool], connect: Callable[[], Any]) -> None:
        self._rank, self._size, self._wants, self._connect = rank, size, wants, connect
        self._calls = self._proposal = 0
        self._alert = False
        self._since: float | None = None
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="trainmaster-stop", daemon=True)
        self._watcher.start()
        # A thread within PyTorch's code would abort the process when Python ends.
        atexit.register(self.close)

    def close(self) -> None:
        self._closed.set()
        self._watcher.join(2 * _STORE_TIMEOUT.total_seconds())

    def __call__(self) -> bool:
        """Call it equally often on every rank, such as once a step."""
        self._calls += 1
        if self._size < 2:
            return self._alert or self._wants()
        if self._alert:
            try:
                return self._agree()
            except RuntimeError as error:  # PyTorch's error of a store
                log.warning("the other ranks can't be asked when to stop: %s", error)
                return self._wants()
        return self._alone()

    def ended(self) -> None:
        """Says that this rank is at its end, if all stop."""
        with contextlib.suppress(Exception):
            if self._alert:
                self._store.add(_ENDED, 1)

    def _alone(self) -> bool:
        """Without a store, or with ranks that don't ask, there is no agreement. Stopping late would lose more."""
        if not self._wants():
            return False
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since < _PATIENCE:
            return False
        log.warning("the other ranks don't answer, so this one stops alone")
        return True

    def _agree(self) -> bool:
        store, start = self._store, time.monotonic()
        while True:
            if self._rank == 0:
                self._lead()
            at = f"call/{self._proposal}"
            if not store.check([at]):
                # If all look at the store, rank 0 proposes in its next call, however long a step takes.
                all_look = store.check([f"alert/{rank}" for rank in range(self._size)])
                return False if all_look else self._alone()
            call, decided = int(store.get(at)), f"decided/{self._proposal}"
            if store.check([decided]):
                if store.get(decided).decode() == "stop":
                    return self._calls >= call
                self._proposal += 1
                continue
            if self._calls > call:
                store.set(f"late/{self._proposal}", str(self._calls))
                return False
            store.set(f"seen/{self._proposal}/{self._rank}", "")
            if self._calls < call:
                return False
            if self._rank == 0 and time.monotonic() > start + _TURN_SECONDS:
                # Another rank can be beyond this call, and wait there for this one.
                store.set(f"late/{self._proposal}", str(self._calls))
            if time.monotonic() > start + _WAIT:
                log.warning("the other ranks didn't come to the call at which all stop")
                return True
            time.sleep(_TURN)

    def _lead(self) -> None:
        """Proposes a call, and decides."""
        store, number = self._store, self._proposal
        if not store.check([f"call/{number}"]):
            if store.check([f"alert/{rank}" for rank in range(self._size)]):
                ahead = int(store.get(f"late/{number - 1}")) if number else 0
                store.set(f"call/{number}", str(max(self._calls, ahead) + (_AHEAD << min(number, 10))))
        elif store.check([f"decided/{number}"]):
            return
        elif store.check([f"late/{number}"]):
            store.set(f"decided/{number}", "void")
        elif store.check([f"seen/{number}/{rank}" for rank in range(self._size)]):
            store.set(f"decided/{number}", "stop")

    def _watch(self) -> None:
        """Notices that some rank has to stop. Costs a look at the store now and then."""
        connected = False
        while not self._alert and not self._closed.wait(_PACE):
            # Errors: the store isn't there yet, or the training ends.
            with contextlib.suppress(Exception):
                if not connected:
                    self._store = self._connect()
                    self._store.set(_SIZE, str(self._size))
                    self._store.set(_ASKS, "")
                    connected = True
                if self._wants():
                    self._store.set(_WANTED, "")
                if self._store.check([_WANTED]):
                    self._store.set(f"alert/{self._rank}", "")
                    self._alert = True


def all_end(store: Any) -> bool | None:
    """For agents: makes all ranks stop after the same step, and says whether they are at their end.

    None if they don't ask. `store` is that of the training processes, with the prefix.
    """
    if not store.check([_ASKS]):
        return None
    store.set(_WANTED, "")
    return have_ended(store)


def have_ended(store: Any) -> bool:
    """For agents: whether all ranks have stopped, and are at their ends."""
    return bool(store.check([_SIZE, _ENDED])) and int(store.get(_ENDED)) >= int(store.get(_SIZE))


def vote(environment: Mapping[str, str], wants: Callable[[], bool]) -> Callable[[], bool]:
    """The vote of the training processes of this environment. Without peers, `wants` alone decides."""
    given = environment.get
    rank, size = given("RANK", ""), given("WORLD_SIZE", "")
    address, port = given("MASTER_ADDR"), given("MASTER_PORT", "")
    if not (rank.isdecimal() and size.isdecimal() and port.isdecimal() and address):
        return wants

    def connect() -> Any:
        from torch.distributed import PrefixStore, TCPStore

        # PyTorch's client prints a page of warnings if nobody listens, as in programs that don't use it to communicate.
        socket.create_connection((address, int(port)), 1).close()
        store = TCPStore(address, int(port), None, False, _STORE_TIMEOUT, wait_for_workers=False)
        return PrefixStore(PREFIX, store)

    return Vote(int(rank), int(size), wants, connect)


_terminated = Signal()
_decide: Callable[[], bool] | None = None
if "TRAINMASTER_JOB" in os.environ and "RANK" in os.environ:
    # Before a script makes its first loader.
    register_after_fork(_terminated, _outlive)


def take_sigterm() -> None:
    """Makes SIGTERM only set that this process has to stop. The handler that is set now isn't called any more."""
    _terminated.install(alone=True)


def complete() -> None:
    """Says that this program's training is done, although `should_stop` may have said otherwise: it may end at once."""
    atexit.unregister(_wait_for_agent)


def should_stop(told: Callable[[], bool]) -> bool:
    """Whether all ranks stop now. `told` says whether the scheduler has told this process."""
    global _decide
    if _decide is None:
        _terminated.install()
        _decide = vote(os.environ, lambda: _terminated.arrived or told())
    stops = _decide()
    if stops and "TORCHELASTIC_RUN_ID" in os.environ:
        atexit.unregister(_wait_for_agent)
        atexit.register(_wait_for_agent)
    return stops


def _wait_for_agent() -> None:
    """Waits until the agent ends this process. One that ends with code 0 before counts as having done all its work."""
    # After an error, the exit code says it.
    if hasattr(sys, "last_type"):
        return
    _let_children_end()
    if isinstance(_decide, Vote):
        _decide.ended()
    # A library may have set another handler meanwhile.
    _terminated.install(alone=True)
    agent, limit = os.getppid(), time.monotonic() + _SIGNAL_SECONDS
    while not _terminated.arrived:
        if os.getppid() != agent or time.monotonic() > limit:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_UNSIGNALLED)
        time.sleep(0.01)
