"""The rendezvous of `torchrun`: its agents train together as Trainmaster's plan says.

Each worker of the job is one agent of `torchrun`, with one or more training processes. An agent registers its address
with the feed, which streams the plan to all of them. When the plan changes, all agents stop their training processes
and start them again with the new ranks, so that the script, which stays as it is, continues from its last checkpoint:

* A change waits until every new agent is there, and then for the job's next checkpoint, if it writes any.
* An agent that the new plan doesn't name ends with code 0.
* After the death of a training process, the same agents start again.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo

from . import stop
from ._proto import feed_pb2 as pb
from ._proto import feed_pb2_grpc, job_pb2
from .channel import bearer, channel, host_of
from .errors import TrainmasterError
from .loop import number
from .text import printable
from .watch import FINAL, Watch

log = logging.getLogger("trainmaster")

BACKEND = "trainmaster"
# How often an agent looks for a change, in seconds.
_PACE = 0.1
_CALL_SECONDS = 1.0
# For how long an agent tries to say that it leaves.
_LEAVE_SECONDS = 10.0
# A store on this machine or in this cluster answers in milliseconds. An agent that waits longer is not there any more.
_STORE_TIMEOUT = timedelta(seconds=10)
# PyTorch's agents wait for each other in the store of their training processes.
_PROCESSES_TIMEOUT = timedelta(minutes=5)
# A change waits so long for a checkpoint, unless agents have to leave: then for this part of their time.
_HOLD_SECONDS = 60.0
_HOLD_PART = 0.6
# If the scheduler says no other one.
_SHORT_GRACE = 30.0
# After so long, a training that has stopped without a change goes on.
_STOPPED_SECONDS = 10.0
# The agents of a plan meet within this time: training processes get 30 s to stop, and a checkpoint may be waited for.
_MEET_SECONDS = 180
# Training processes that die so often in a row, each time within the time below, won't recover.
_MOST_FAILURES = 3
_STEADY_SECONDS = 60.0
# A checkpoint of several files is complete if none has changed for so long.
_QUIET_SECONDS = 3.0
# So many files and folders below a checkpoint folder are looked at.
_MOST_FILES = 2000
# The value of a round that its agents have left.
_VOID = "void"
# PyTorch's own key for agents whose training processes have ended.
_ENDING = "torchelastic/agent/terminal_state/num_members"


@dataclass(frozen=True)
class Meeting:
    """The agents of one revision of the plan, in the order of their ranks."""

    incarnation: int
    # The same agents in another revision are the same meeting: a plan may change something else.
    revision: int = field(compare=False)
    # Each worker's index, and the address of its agent's store. Empty until the agent is there.
    agents: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, assignment: pb.Assignment) -> Meeting:
        workers = (peer for peer in assignment.peers if peer.slot.role == job_pb2.SLOT_ROLE_WORKER)
        agents = sorted((peer.slot.index, peer.address) for peer in workers)
        return cls(assignment.incarnation, assignment.revision, tuple(agents))

    @property
    def complete(self) -> bool:
        """Whether all agents are there."""
        return bool(self.agents) and all(address for _, address in self.agents)

    def name(self, secret: str) -> str:
        """Differs between any two meetings. A new process in the place of an agent has another address.

        Only those who know the job's token can tell it.
        """
        text = f"{self.incarnation} {self.agents}"
        key = hashlib.blake2s(secret.encode()).digest()
        return hashlib.blake2s(text.encode(), digest_size=16, key=key).hexdigest()

    def rank(self, index: int) -> int | None:
        return next((rank for rank, (slot, _) in enumerate(self.agents) if slot == index), None)

    def leaves(self, other: Meeting) -> bool:
        """Whether an agent of this meeting isn't in the other one."""
        there = {slot for slot, _ in other.agents}
        return any(slot not in there for slot, _ in self.agents)


@dataclass(frozen=True)
class _Formed:
    """A meeting whose training processes run."""

    meeting: Meeting
    # The round of the meeting: after the death of a training process, the same agents meet again.
    round: int
    # The store of the first agent, for this meeting.
    room: Any
    # The store of the training processes, and the part of it that their agents use.
    processes: Any
    agents: Any
    since: float


class Superseded(Exception):
    """The plan has changed while agents were meeting."""


class Clock:
    """Notices when a job has written a checkpoint below a folder.

    If the job keeps a single file, a new one that replaced it under its name is complete, as soon as it doesn't grow:
    programs write a file and rename it. Else a checkpoint is complete once all files have stayed the same for a while.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._first = self._last = self._look()
        self._changed: float | None = None

    @property
    def ticks(self) -> bool:
        """Whether the job writes checkpoints there at all."""
        return bool(self._first)

    def edge(self, now: float) -> bool:
        """Whether a checkpoint was completed since the first look."""
        before, self._last = self._last, self._look()
        if self._last != before:
            self._changed = now
        elif len(self._last) == 1 and self._last.keys() == self._first.keys():
            (first,), (last,) = self._first.values(), self._last.values()
            if first[0] != last[0]:
                return True
        return self._changed is not None and now - self._changed >= _QUIET_SECONDS

    def _look(self) -> dict[str, tuple[int, int, int]]:
        """Identity, time of the last change and size of each file."""
        files = {}
        for path in self._paths():
            with contextlib.suppress(OSError):
                found = os.stat(path)
                files[path] = (found.st_ino, found.st_mtime_ns, found.st_size)
        return files

    def _paths(self) -> Iterator[str]:
        if not self._folder:
            return
        left = _MOST_FILES
        for folder, _, names in os.walk(self._folder):
            for name in names[:left]:
                yield os.path.join(folder, name)
            # Folders without files take time, too.
            left -= len(names) + 1
            if left <= 0:
                return


class PlanRendezvous(RendezvousHandler):  # type: ignore[misc]
    """The part of an agent of `torchrun` that decides with whom it trains. See the module."""

    def __init__(self, params: RendezvousParameters) -> None:
        self._job = _variable("TRAINMASTER_JOB")
        self._index = number(os.environ, "TRAINMASTER_INDEX", 0)
        self._incarnation = number(os.environ, "TRAINMASTER_INCARNATION", 1)
        role = os.environ.get("TRAINMASTER_ROLE", "worker")
        if role != "worker":
            raise TrainmasterError(f"TRAINMASTER_ROLE: {role!r} can't be an agent of torchrun; only workers can")
        if params.run_id not in (self._job, os.environ.get("TRAINMASTER_JOB_NAME")):
            shown = printable(params.run_id, 100)
            raise TrainmasterError(f"PET_RDZV_ID: {shown!r} is not this job, {self._job}; leave it as it was set")
        self._nodes = (params.min_nodes, params.max_nodes)
        self._patience = params.get_as_int("timeout", _MEET_SECONDS)
        feed = _variable("TRAINMASTER_FEED")
        host = params.local_addr or os.environ.get("TRAINMASTER_ADDRESS") or _own_address(*host_of(feed))
        self._store, self.address = _serve(host, _STORE_TIMEOUT)
        self._host = host
        self._lock = threading.Condition()
        self._meeting: Meeting | None = None
        self._grace = 0.0
        self._stopped: _Formed | None = None
        self._before_us: Any = signal.SIG_DFL
        self._stopping = False
        self._formed: _Formed | None = None
        self._due = False
        self._failures = 0
        self._closed = self._succeeded = self._leaves = False
        self._refusal = ""
        folder = os.environ.get("TRAINMASTER_CHECKPOINT_DIR")
        self._folder = Path(folder) if folder else None
        self._channel = channel(feed, os.environ.get("TRAINMASTER_FEED_CA"))
        self._stub = feed_pb2_grpc.FeedStub(self._channel)  # type: ignore[no-untyped-call]
        self._token = os.environ.get("TRAINMASTER_TOKEN", "")
        self._metadata = bearer(self._token)
        worker = job_pb2.SLOT_ROLE_WORKER
        request = pb.WatchRequest(
            job=self._job, incarnation=self._incarnation, role=worker, index=self._index, address=self.address
        )
        self._watch = Watch(self._stub, request, self._metadata, self._told, self._refused)
        self._lookout = threading.Thread(target=self._look_out, name="trainmaster-rendezvous", daemon=True)
        self._lookout.start()
        # A thread within PyTorch's code would abort the process when Python ends.
        atexit.register(self.shutdown)

    # The interface of PyTorch.

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._job

    @property
    def use_agent_store(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        self._closed = True

    def num_nodes_waiting(self) -> int:
        """Whether the training processes have to start again. Called ten times a second, and never blocks."""
        self._delay_sigterm()
        return int(self._due)

    def _delay_sigterm(self) -> None:
        """Puts a handler before PyTorch's, which is set at each start of the training processes."""
        handler = signal.getsignal(signal.SIGTERM)
        if callable(handler) and handler != self._on_sigterm:
            with contextlib.suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGTERM, self._on_sigterm)
                self._before_us = handler

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """Lets a training that asks when to stop come to its end. PyTorch signals all that it has started, too."""
        limit = time.monotonic() + (self._grace or _SHORT_GRACE) * _HOLD_PART
        formed = self._formed
        # Errors: the first agent is gone.
        with contextlib.suppress(RuntimeError, OSError):
            store = PrefixStore(stop.PREFIX, formed.processes) if formed else None
            while store and time.monotonic() < limit and stop.all_end(store) is False:
                time.sleep(_PACE)
        self._before_us(number, frame)

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits until the agents of the plan have met. Ends the program if the plan doesn't name this one any more."""
        with self._lock:
            last, self._formed, self._due = self._formed, None, False
        self._count_failure(last)
        while True:
            meeting = self._wait_for_plan(last)
            rank = meeting.rank(self._index)
            if rank is None:
                self._acknowledge(meeting, leaving=True)
                log.info("the plan doesn't name worker %d any more", self._index)
                # The agent ends with code 0, and calls `shutdown`.
                self._succeeded = self._leaves = True
                raise SystemExit(0)
            self._check_size(meeting)
            try:
                formed = self._meet(meeting, rank)
            except (Superseded, RuntimeError, OSError) as problem:  # PyTorch's errors of a store are RuntimeErrors
                log.info("the agents of revision %d could not meet: %s", meeting.revision, problem or "a newer plan")
                self._pause()
                continue
            self._acknowledge(meeting)
            return self._begin(formed, rank)

    def shutdown(self) -> bool:
        formed, self._closed = self._formed, True
        done = os.environ.get("TRAINMASTER_DONE_FILE")
        with contextlib.suppress(RuntimeError, OSError):
            # Each failure of training processes has led to a new rendezvous, after which none is in its end.
            if done and (self._succeeded or (formed and self._have_ended(formed))):
                Path(done).touch()
        self._lookout.join(_STORE_TIMEOUT.total_seconds() + 1)
        # Where it leaves, the end of its stream says that the process has ended: Slurm kills what is still there.
        if not self._leaves:
            self._watch.close()
            self._channel.close()
        return True

    # The plan.

    def _told(self, assignment: pb.Assignment) -> None:
        with self._lock:
            # Another incarnation is for other processes. This one is stopped soon.
            ends = assignment.phase == pb.ASSIGNMENT_PHASE_STOP
            self._stopping = ends or assignment.incarnation != self._incarnation
            self._grace = max(assignment.grace_ms, 0) / 1000
            if not self._stopping:
                self._meeting = Meeting.of(assignment)
            self._lock.notify_all()

    def _refused(self, text: str) -> None:
        if text == self._refusal:
            return
        self._refusal = text
        log.warning("the feed refuses worker %d of job %s: %s", self._index, self._job, printable(text))

    def _complete(self) -> Meeting | None:
        """The newest plan, if all of its agents are there."""
        return self._meeting if self._meeting and self._meeting.complete and not self._stopping else None

    def _wait_for_plan(self, last: _Formed | None) -> Meeting:
        """Waits for a plan with all agents. A new agent also waits for one that names it."""

        def found() -> Meeting | None:
            meeting = self._complete()
            named = meeting and (last or meeting.rank(self._index) is not None)
            return meeting if named else None

        with self._lock:
            # Short waits, because a signal is handled only between them.
            while not (meeting := found()):
                self._lock.wait(_PACE)
            return meeting

    def _pause(self) -> None:
        with self._lock:
            self._lock.wait(_PACE)

    def _check_size(self, meeting: Meeting) -> None:
        least, most = self._nodes
        if not least <= len(meeting.agents) <= most:
            raise TrainmasterError(
                f"PET_NNODES: {least}:{most} doesn't allow the {len(meeting.agents)} workers of the plan; leave it as "
                "it was set, or change the job's min and max"
            )

    def _count_failure(self, last: _Formed | None) -> None:
        """A script that can't run must not be started again for ever."""
        try:
            if not last or last is self._stopped or self._complete() != last.meeting or self._again(last):
                return
        except (RuntimeError, OSError):
            return  # The first agent is gone, and the training with it.
        self._failures = self._failures + 1 if time.monotonic() - last.since < _STEADY_SECONDS else 1
        if self._failures >= _MOST_FAILURES:
            raise TrainmasterError(
                f"the training processes failed {self._failures} times in a row, each within {_STEADY_SECONDS:g} s"
            )

    # The meeting. The first agent has a store with a room for each meeting:
    #
    #   round             the number of the current round, by additions
    #   here/ROUND/RANK   an agent's training processes have stopped
    #   formed/ROUND      where the store of the training processes is, once all are here; "void" if one has left again
    #   next/ROUND        additions of agents that need another round; the first one starts it
    #   change/MEETING    all agents follow this change now

    def _meet(self, meeting: Meeting, rank: int) -> _Formed:
        host = meeting.agents[0][1]
        room = PrefixStore(meeting.name(self._token), self._store if rank == 0 else _connect(host, _STORE_TIMEOUT))
        at = int(room.add("round", 0))
        if room.check([f"formed/{at}"]):
            # This agent, or the one that it replaces, was part of the round.
            if room.add(f"next/{at}", 1) == 1:
                room.add("round", 1)
            at = self._poll(meeting, lambda: _later(room, at))
        formed = f"formed/{at}"
        room.set(f"here/{at}/{rank}", "")
        processes = None
        try:
            if rank > 0:
                self._poll(meeting, lambda: room.check([formed]))
            else:
                self._poll(meeting, lambda: room.check([f"here/{at}/{other}" for other in range(len(meeting.agents))]))
                # PyTorch needs a new store for each start of the training processes.
                processes, address = _serve(self._host, _PROCESSES_TIMEOUT)
                room.compare_set(formed, "", address)
        except Superseded:
            # Either all leave the round, or none.
            room.compare_set(formed, "", _VOID)
        address = room.get(formed).decode()
        if address == _VOID:
            raise Superseded
        if processes is None:
            if address.rpartition(":")[0] != host.rpartition(":")[0]:
                raise RuntimeError(f"the first agent, at {host}, names a store at {printable(address, 100)}")
            processes = _connect(address, _PROCESSES_TIMEOUT)
        agents = PrefixStore("trainmaster", processes)
        return _Formed(meeting, at, room, processes, agents, time.monotonic())

    def _poll(self, meeting: Meeting, ready: Callable[[], Any]) -> Any:
        """Waits until `ready` returns a true value."""
        limit = time.monotonic() + self._patience
        while not (value := ready()):
            newest = self._complete()
            if newest and newest != meeting:
                raise Superseded
            if time.monotonic() > limit:
                raise TrainmasterError(
                    f"the agents of revision {meeting.revision} did not meet within {self._patience} s (timeout in "
                    f"PET_RDZV_CONF): one hangs, or another agent has taken the place of worker {self._index}"
                )
            self._pause()
        return value

    def _begin(self, formed: _Formed, rank: int) -> RendezvousInfo:
        meeting = formed.meeting
        log.info("revision %d, round %d: agent %d of %d", meeting.revision, formed.round, rank, len(meeting.agents))
        with self._lock:
            self._formed, self._due = formed, False
        return RendezvousInfo(
            formed.agents, rank, len(meeting.agents), RendezvousStoreInfo(formed.processes.host, formed.processes.port)
        )

    def _acknowledge(self, meeting: Meeting, leaving: bool = False) -> None:
        worker = job_pb2.SLOT_ROLE_WORKER
        request = pb.AcknowledgeRequest(
            job=self._job,
            incarnation=meeting.incarnation,
            revision=meeting.revision,
            role=worker,
            index=self._index,
            leaving=leaving,
        )
        # Slurm's agent gives up a node only after its workers have said that they leave. Otherwise it restarts the job.
        # All else only counts, so that nothing waits long for it. Nothing fails with it.
        until = time.monotonic() + (_LEAVE_SECONDS if leaving else 0)
        while True:
            try:
                self._stub.Acknowledge(request, timeout=_CALL_SECONDS, metadata=self._metadata)
                return
            except ValueError:  # the channel was closed
                return
            except grpc.RpcError as error:
                if error.code() in FINAL or time.monotonic() >= until:
                    return
            time.sleep(_PACE)

    # Looking out for changes, in a thread of its own.

    def _look_out(self) -> None:
        held: tuple[Meeting, float, Clock] | None = None
        stopped: tuple[_Formed, float] | None = None
        while not self._closed:
            self._pause()
            formed, newest = self._formed, self._complete()
            if not formed or self._due:
                held = None
                continue
            try:
                if self._ends(formed):
                    # Some training processes have ended by themselves, and the others will. None may start again.
                    continue
                due = self._again(formed)
                if stop.have_ended(PrefixStore(stop.PREFIX, formed.processes)):
                    # A plan that was withdrawn meanwhile, or a scheduler that ended nothing: the training goes on.
                    stopped = stopped if stopped and stopped[0] is formed else (formed, time.monotonic())
                    if time.monotonic() - stopped[1] > _STOPPED_SECONDS:
                        self._stopped, due = formed, True
                if newest and newest != formed.meeting:
                    if not held or held[0] != newest:
                        held = (newest, held[1] if held else time.monotonic(), Clock(self._folder))
                    due = due or self._released(formed, *held)
            except (RuntimeError, OSError):
                # The first agent is gone. Its replacement has another address, which is a change of the plan.
                due = bool(newest and newest != formed.meeting)
            with self._lock:
                self._due = due and self._formed is formed

    def _again(self, formed: _Formed) -> bool:
        """Whether another agent needs a new round."""
        return bool(_later(formed.room, formed.round))

    def _ends(self, formed: _Formed) -> bool:
        """Whether the training processes of some agent have ended by themselves."""
        return bool(formed.agents.check([_ENDING]))

    def _have_ended(self, formed: _Formed) -> bool:
        """Whether those of all agents have."""
        return self._ends(formed) and int(formed.agents.add(_ENDING, 0)) >= len(formed.meeting.agents)

    def _released(self, formed: _Formed, newest: Meeting, since: float, clock: Clock) -> bool:
        """Whether a change happens now. The first agent that finds the checkpoint complete tells all others."""
        key = f"change/{newest.name(self._token)}"
        if formed.room.check([key]):
            return True
        now = time.monotonic()
        # An agent in whose place another one started is gone, and the training with it.
        broken = any(
            newest.rank(slot) is not None and (slot, at) not in newest.agents for slot, at in formed.meeting.agents
        )
        limit = self._grace * _HOLD_PART if formed.meeting.leaves(newest) and self._grace else _HOLD_SECONDS
        # Agents signal all that a training process started, such as processes that load data. A training that asks when
        # to stop is told before, and comes to its end with them.
        done = stop.all_end(PrefixStore(stop.PREFIX, formed.processes))
        if done is None:
            done = not clock.ticks or clock.edge(now)
        if broken or done or now - since >= limit:
            formed.room.set(key, "")
            return True
        return False


def _later(room: Any, at: int) -> int:
    """The current round, if it is a later one."""
    now = int(room.add("round", 0))
    return now if now > at else 0


def _serve(host: str, timeout: timedelta) -> tuple[Any, str]:
    """Starts a store on a free port of an address. Returns it with its "host:port"."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # PyTorch itself would listen on all addresses of the machine.
    listener = socket.socket(family)
    listener.bind((host, 0))
    listener.listen(128)
    port = listener.getsockname()[1]
    # With libuv, older versions of PyTorch don't take over a socket.
    store = TCPStore(
        host,
        port,
        None,
        True,
        timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=False,
    )
    return store, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _connect(address: str, timeout: timedelta) -> Any:
    host, _, port = address.rpartition(":")
    return TCPStore(host.strip("[]"), int(port), None, False, timeout, wait_for_workers=False)


def _own_address(host: str, port: int) -> str:
    """The address of this machine from which it reaches another one. Nothing is sent."""
    family, kind, protocol, _, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(there)
        return str(probe.getsockname()[0])


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise TrainmasterError(
            f"{name} is not set: the rendezvous {BACKEND!r} works only in jobs that Trainmaster starts"
        )
    return value
