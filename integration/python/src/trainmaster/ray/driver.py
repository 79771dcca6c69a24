"""The driver of a job: it follows the plan, runs the workers' rounds and reports to the feed."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from ..errors import Interrupted, JobFailed, Refused
from ..job import Job
from ..reporter import Reporter
from ..reporter import Slot as FeedSlot
from ..tally import Report
from ..text import printable
from . import checkpoint, gcs, slots
from .context import Assignment, Peer
from .document import BadDocument
from .groups import Group
from .hosts import RoundEnd, ServerHost, WorkerHost
from .plan import Kind, Plan, Running, job_document, step
from .slots import Slot

log = logging.getLogger("trainmaster")

Phase = Literal["active", "completed", "failed"]
OnDriverDeath = Literal["cancel", "resume"]

_TICK = 0.1
# The interval between two reads of the plan, in seconds. It grows with the time since the last change.
_FIRST_LOOK, _LAST_LOOK = 0.1, 0.5
_SLOWDOWN = 0.1
# The time for the last writes to the control store, in seconds.
_LAST_WRITES = 30.0
_GRACE = 30.0
# A running daemon plans within this time.
_NO_PLAN = 10.0
_FIRST_WAIT, _LAST_WAIT = 1.0, 30.0
# The number of failures that ends a job, without a new step or ten minutes of running between them.
_MOST_FAILURES = 8
# A round of so many seconds counts as one with a new step: not all programs report.
_STEADY = 600.0
_MOST_REFUSALS = 1000


@dataclass(frozen=True)
class Change:
    """A new shape of the job.

    `cost_ms` is the time from the end of the last shape, or from the start of the job, to the first step in this shape.
    It includes the time that the job waited.
    """

    at: float
    how: Literal["start", "live", "restart", "failure"]
    incarnation: int
    revision: int
    workers: int
    servers: int
    cost_ms: float | None = None


@dataclass
class Result:
    """The end of a job, and its history."""

    job: int
    name: str
    step: int = 0
    epoch: int = 0
    loss: float | None = None
    converged: bool = False
    checkpoint: Path | None = None
    seconds: float = 0.0
    history: list[Change] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """The arguments of `fit`."""

    job: Job
    number: int
    token: str = field(repr=False)
    feed: str
    ca: str | Path | None
    worker: Callable[[], Any]
    server: Callable[[], Any] | None
    folder: Path
    on_driver_death: OnDriverDeath
    runtime_env: dict[str, Any] | None


def identity(number: int, token: str) -> str:
    """A job's unique id. Numbers are not unique: another daemon, or one with a lost store, starts from 1. So the id has
    a hash of the token.
    """
    return f"{number}-{hashlib.sha256(token.encode()).hexdigest()[:6]}"


class _Lost(Exception):
    """An actor or its node is lost."""


@dataclass(frozen=True)
class _Refusal:
    """A revision that the job can't follow, with the cause. The job keeps its last revision."""

    incarnation: int
    revision: int
    cause: str


class Driver:
    """Runs one job to its end."""

    def __init__(self, settings: Settings, on_change: Callable[[Change], None] | None = None) -> None:
        self._settings = settings
        self._job = settings.job
        self._on_change = on_change
        self._result = Result(settings.number, settings.job.name)
        self._begin = time.monotonic()
        self._plan: Plan | None = None
        self._running: Running | None = None
        self._groups: list[Group] = []
        self._actors: dict[Slot, Any] = {}
        self._reporter: Reporter | None = None
        self._reported = 0  # incarnation
        self._round = 0
        self._round_at = 0.0
        self._runs: dict[Any, Slot] = {}  # by the ObjectRef of a worker's `run`
        self._polls: dict[Any, Slot] = {}
        self._ends: dict[Slot, RoundEnd] = {}
        self._last = Report(0)
        self._idle_since = self._begin
        # The incarnation, and since when it may run. The wait before that is not part of the restart's cost.
        self._allowed: tuple[int, float] = (0, self._begin)
        self._how: Literal["start", "live", "restart", "failure"] = "start"
        self._unmeasured: Change | None = None
        self._failures = 0
        # The last step that was reported before any failure.
        self._failed_at = -1
        self._not_before = 0.0
        self._shown = ""
        # The current plan can't be read, and a warning was logged.
        self._warned_unread = False
        self._next_look = 0.0
        self._changed_at = self._begin
        self._refusal: _Refusal | None = None
        # The last document, if it is not written yet.
        self._pending_document: dict[str, Any] | None = None
        self._removing: list[Group] = []

    def run(self) -> Result:
        self._document("active")
        try:
            while not self._done():
                try:
                    self._follow()
                    self._pump()
                except _Lost as lost:
                    self._fail(str(lost))
            self._complete()
        except BaseException as error:
            self._abandon(error)
            raise
        finally:
            if self._reporter:
                self._reporter.close()
        return self._result

    # Following the plan

    def _follow(self) -> None:
        """Takes one step towards the plan, if it is time to read it."""
        if time.monotonic() < self._next_look:
            return
        plan = self._read_plan()
        if not plan:
            self._warn_without_plan()
            return
        todo = step(self._running, plan)
        if todo.kind is Kind.END:
            raise self._ended(plan)
        if todo.kind is Kind.LEAVE:
            self._leave("restart")
        elif todo.kind is Kind.REBUILD:
            self._leave("restart", revision=plan.revision)
            if not self._running:
                self._start(plan)
        elif todo.kind is Kind.START:
            self._start(plan)
        elif todo.kind is Kind.RESIZE:
            self._resize(plan, todo.add, todo.drop)

    def _ended(self, plan: Plan) -> Refused:
        return Refused(f"{self._job.name}: {plan.action}: {plan.reason}")

    def _warn_without_plan(self) -> None:
        """Warns once if there is no plan."""
        if not self._shown and time.monotonic() > self._begin + _NO_PLAN:
            self._shown = "no plan"
            log.warning(
                "%s: there is no plan for job %d yet; it needs a daemon with --adapter ray for this cluster that "
                "can carry out plans (see trainmaster doctor, trainmaster explain %s)",
                self._job.name,
                self._settings.number,
                self._job.name,
            )

    def _read_plan(self) -> Plan | None:
        """The newest plan that could be read."""
        if time.monotonic() < self._next_look:
            return self._plan
        now = time.monotonic()
        self._next_look = now + min(max(_SLOWDOWN * (now - self._changed_at), _FIRST_LOOK), _LAST_LOOK)
        self._write()
        plan = self._fetch_plan()
        # A daemon with a lost store numbers its jobs from 1 again, so the plan can be another job's.
        if plan and plan.name in ("", self._job.name):
            refusal = self._refusal
            if refusal and (plan.incarnation, plan.revision) == (refusal.incarnation, refusal.revision):
                plan = replace(plan, refused=plan.refused or refusal.cause)
            if plan != self._plan:
                self._look_soon()
            self._plan = plan
            self._show(plan)
        return self._plan

    def _fetch_plan(self) -> Plan | None:
        """The current plan, if it can be followed. Any user of the cluster can write it."""
        try:
            plan = gcs.plan(self._settings.number)
            if plan and plan.shape[1] and not self._job.server:
                raise BadDocument("slots: the plan has parameter servers, but the job has none")
        except gcs.AWAY as error:
            log.debug("the control store is away: %s", error)
            return None
        except BadDocument as fault:
            if not self._warned_unread:
                log.warning("%s: the plan can't be read, the last one stays in force: %s", self._job.name, fault)
            self._warned_unread = True
            return None
        self._warned_unread = False
        return plan

    def _look_soon(self) -> None:
        """Reads the plan again soon, because more changes are likely."""
        self._changed_at = self._next_look = time.monotonic()

    def _show(self, plan: Plan) -> None:
        news = plan.refused or (plan.reason if plan.action != "run" else "")
        if news and news != self._shown:
            log.warning("%s: %s: %s", self._job.name, "refused" if plan.refused else plan.action, news)
            if plan.refused and len(self._result.refusals) < _MOST_REFUSALS:
                self._result.refusals.append(plan.refused)
        self._shown = news

    def _start(self, plan: Plan) -> None:
        """Starts all groups and actors of a plan. If that is not possible now, a later call tries again."""
        if self._allowed[0] != plan.incarnation:
            self._allowed = (plan.incarnation, time.monotonic())
        if time.monotonic() < self._not_before:
            return
        fixed = len(plan.placed) if self._job.resize == "fixed" else self._job.worker.counts()[0]
        made = self._make(plan, slots.groups(plan.placed, fixed))
        if not made:
            return
        self._report_for(plan)
        self._groups = made
        if failure := self._start_actors(made):
            raise failure
        self._running = Running(plan.incarnation, plan.revision, plan.placed, [group.slots for group in made])
        self._begin_round()
        self._changed(self._how)

    def _resize(self, plan: Plan, add: frozenset[Slot], drop: frozenset[Slot]) -> None:
        """Adds and drops workers. New actors start while the others train. If one fails, the others continue."""
        assert self._running, "only what runs is resized"
        if not add and not drop:
            # The plan has the job's current slots with another revision. No worker needs to stop.
            self._running = replace(self._running, revision=plan.revision)
            self._document("active")
            self._acknowledge_revision(plan)
            return
        made = self._make(plan, [(slot,) for slot in slots.ordered(add)])
        if made is None:
            return
        self._groups += made
        if failure := self._start_actors(made):
            self._release(add)
            cause = f"{slots.write(add)} can't join: {_last_line(failure)}"
            self._refusal = _Refusal(plan.incarnation, plan.revision, cause)
            self._document("active")
            # The next read can bring another plan.
            self._plan = replace(plan, refused=cause)
            self._show(self._plan)
            return
        self._end_round()
        if self._finished():
            return
        # Slots are given back between two rounds.
        self._release(drop)
        self._running = Running(plan.incarnation, plan.revision, plan.placed, [group.slots for group in self._groups])
        self._begin_round()
        self._changed("live")
        self._acknowledge_revision(plan)

    def _acknowledge_revision(self, plan: Plan) -> None:
        if self._reporter:
            self._reporter.acknowledge(plan.revision, leaving=False, step=self._last.step)

    def _leave(self, how: Literal["restart", "failure"], revision: int | None = None) -> None:
        """Saves a checkpoint, acknowledges, and gives all slots back."""
        assert self._running, "only what runs can leave"
        self._end_round()
        if self._finished():
            return
        self._idle(how)
        end = self._ends.get(self._chief())
        if self._reporter and end:
            self._reporter.acknowledge(
                self._running.revision if revision is None else revision,
                leaving=revision is None,
                step=end.checkpoint_step,
                checkpoint_ms=end.checkpoint_ms,
            )
            self._reporter.flush(2.0)
        self._remove()

    def _release(self, dropped: frozenset[Slot]) -> None:
        """Gives the groups of dropped workers back."""
        going = [group for group in self._groups if set(group.slots) <= dropped]
        self._groups = [group for group in self._groups if group not in going]
        self._give_back(going)
        for slot in dropped:
            self._actors.pop(slot, None)

    def _idle(self, how: Literal["restart", "failure"]) -> None:
        self._idle_since, self._how = time.monotonic(), how
        self._look_soon()
        if self._reporter:
            self._reporter.interrupted()

    # Placement

    def _make(self, plan: Plan, wanted: list[tuple[Slot, ...]]) -> list[Group] | None:
        """Makes groups on the plan's servers. Returns None if the plan changes meanwhile or can't be carried out."""
        number = self._settings.number
        made: list[Group] = []
        try:
            nodes = self._nodes(plan, [slot for group in wanted for slot in group])
            if nodes is None:
                return None
            for group in wanted:
                made.append(Group.make(self._job, number, plan.incarnation, plan.revision, group, nodes))
            while True:
                states = {group.state for group in made}
                if states <= {"CREATED"}:
                    return made
                now = self._read_plan()
                if "REMOVED" in states or not now or now.refused or now.action != "run":
                    break
                if (now.incarnation, now.revision) != (plan.incarnation, plan.revision):
                    break
                self._pump()
                if self._finished():
                    break
        except gcs.AWAY as error:
            # Or groups with these names still exist, from a driver that has just died.
            log.info("%s: %s", self._job.name, printable(str(error)))
            self._not_before = time.monotonic() + _FIRST_WAIT
        except BaseException:
            self._give_back(made)
            raise
        self._give_back(made)
        return None

    def _nodes(self, plan: Plan, placed: Iterable[Slot]) -> dict[Slot, str] | None:
        """The Ray node of each slot. None if a server has no node."""
        nodes: dict[Slot, str] = {}
        alive = gcs.live_nodes()
        for slot in placed:
            node = gcs.server_node(plan.placed[slot])
            if node is None or node not in alive:
                log.debug("%s: server %s has no node yet", self._job.name, plan.placed[slot])
                return None
            nodes[slot] = node
        return nodes

    def _start_actors(self, groups: Iterable[Group]) -> Exception | None:
        """Starts the actors of groups and waits for them. Returns the error of an actor that fails to start."""
        settings = self._settings
        started: list[Any] = []
        for group in groups:
            for slot in group.slots:
                if slot.role == "worker":
                    actor = group.actor(slot, WorkerHost, self._job, settings.worker, settings.runtime_env)
                else:
                    assert settings.server, "checked by fit"
                    actor = group.actor(slot, ServerHost, self._job, settings.server, settings.runtime_env)
                self._actors[slot] = actor
                started.append(actor.ready.remote())
        while started:
            done, started = ray.wait(started, num_returns=len(started), timeout=0)
            for ref in done:
                try:
                    _get(ref)
                except (_Lost, JobFailed) as failure:
                    return failure
            self._pump()
            plan = self._read_plan()
            if plan and step(self._running, plan).kind is Kind.END:
                raise self._ended(plan)
        return None

    def _remove(self) -> None:
        self._give_back(self._groups)
        self._groups, self._actors, self._running = [], {}, None
        self._runs, self._polls = {}, {}
        self._document("active")

    # Rounds, in which workers and servers stay the same

    def _begin_round(self) -> None:
        assert self._running, "a round is of what runs"
        self._round += 1
        self._round_at = time.monotonic()
        running, self._ends = self._running, {}
        placed = slots.ordered(running.placed)
        peers = {slot: Peer(slot.role, slot.index, running.placed[slot], self._actors[slot]) for slot in placed}
        workers = [slot for slot in placed if slot.role == "worker"]
        servers = [slot for slot in placed if slot.role == "server"]

        def assignment(slot: Slot, rank: int) -> Assignment:
            return Assignment(
                job=self._job,
                round=self._round,
                incarnation=running.incarnation,
                revision=running.revision,
                role=slot.role,
                index=slot.index,
                rank=rank,
                server=running.placed[slot],
                workers=tuple(peers[worker] for worker in workers),
                servers=tuple(peers[server] for server in servers),
                folder=str(self._folder),
                grace=self._grace(),
            )

        begun = [self._actors[slot].begin.remote(assignment(slot, rank)) for rank, slot in enumerate(servers)]
        for ref in begun:
            _get(ref)
        if self._reporter:
            self._reporter.shape(len(workers), len(servers))
        self._runs = {self._actors[slot].run.remote(assignment(slot, rank)): slot for rank, slot in enumerate(workers)}
        self._polls = {self._actors[slot].reports.remote(): slot for slot in workers}
        self._document("active")

    def _end_round(self) -> None:
        """Stops the workers at a step boundary."""
        for slot in self._runs.values():
            self._actors[slot].stop.remote()
        limit = time.monotonic() + self._grace()
        while self._runs:
            if time.monotonic() > limit:
                late = slots.write(self._runs.values())
                raise _Lost(f"{late} did not return from run() within the grace of {self._grace():g} s")
            self._pump()
        self._drain()

    def _grace(self) -> float:
        assignment = self._reporter.assignment if self._reporter else None
        return assignment.grace_ms / 1000 if assignment and assignment.grace_ms else _GRACE

    def _pump(self) -> None:
        """Waits a moment for results and reports of the workers."""
        refs = [*self._runs, *self._polls]
        if not refs:
            time.sleep(_TICK)
            return
        done, _ = ray.wait(refs, num_returns=1, timeout=_TICK)
        for ref in done:
            if slot := self._runs.pop(ref, None):
                self._ends[slot] = _get(ref)
            elif slot := self._polls.pop(ref, None):
                self._take(slot, _get(ref))
                # The last reports are fetched at the end of the round.
                if slot not in self._ends:
                    self._polls[self._actors[slot].reports.remote()] = slot

    def _drain(self) -> None:
        """Takes the remaining reports of a round: those of the last poll, and later ones."""
        polls, self._polls = self._polls, {}
        rest = {self._actors[slot].reports.remote(): slot for slot in self._ends}
        for ref, slot in (polls | rest).items():
            self._take(slot, _get(ref))

    def _take(self, slot: Slot, reports: list[Report]) -> None:
        chief = slot == self._chief()
        for report in reports:
            if self._reporter:
                if self._unmeasured and chief:
                    self._measured(self._unmeasured)
                self._reporter.report(report, leads=chief)
            if chief:
                # A script that always fails at the same step makes no progress.
                if report.step > self._failed_at:
                    self._failures = 0
                self._last = report
                self._result.step = report.step
                self._result.epoch = report.epoch or self._result.epoch
                self._result.loss = report.loss if report.loss is not None else self._result.loss

    def _measured(self, change: Change) -> None:
        """Measures a change at the first step in the new shape."""
        self._unmeasured = None
        now = time.monotonic()
        cost = (now - self._idle_since) * 1000
        if change.how != "live":
            assert self._reporter, "asked by the caller"
            self._reporter.restarted((now - max(self._idle_since, self._allowed[1])) * 1000)
            at = self._result.history.index(change)
            self._result.history[at] = replace(change, cost_ms=cost)

    def _chief(self) -> Slot:
        assert self._running, "what doesn't run has no chief"
        return min(slot for slot in self._running.placed if slot.role == "worker")

    def _finished(self) -> bool:
        """Whether the round ended because training is done."""
        return bool(self._ends) and not self._runs and not any(end.left for end in self._ends.values())

    def _done(self) -> bool:
        return self._running is not None and self._finished()

    # Reporting

    @property
    def _folder(self) -> Path:
        return self._settings.folder / identity(self._settings.number, self._settings.token)

    def _report_for(self, plan: Plan) -> None:
        """Makes one reporter per incarnation. The feed would ignore unsent reports of the last incarnation."""
        if self._reported == plan.incarnation:
            return
        if self._reporter:
            self._reporter.close(0.0)
        settings = self._settings
        index = min(slot.index for slot in plan.placed if slot.role == "worker")
        feed_slot = FeedSlot(str(settings.number), settings.token, plan.incarnation, index=index)
        self._reporter = Reporter(settings.feed, feed_slot, ca=settings.ca)
        self._reported = plan.incarnation

    def _changed(self, how: Literal["start", "live", "restart", "failure"]) -> None:
        assert self._running, "something was started"
        workers = sum(slot.role == "worker" for slot in self._running.placed)
        servers = len(self._running.placed) - workers
        at = time.monotonic() - self._begin
        change = Change(at, how, self._running.incarnation, self._running.revision, workers, servers)
        self._result.history.append(change)
        if how != "live":
            self._unmeasured = change
        log.info("%s: %d workers, %d servers (%s)", self._job.name, workers, servers, how)
        if self._on_change:
            self._on_change(change)

    def _document(self, phase: Phase, message: str = "") -> None:
        self._pending_document = job_document(
            self._job.name,
            gcs.driver_id(),
            phase,
            message,
            self._running,
            self._reported,
            on_driver_death=self._settings.on_driver_death,
            refused=vars(self._refusal) if self._refusal else None,
        )
        self._write()

    def _give_back(self, groups: Iterable[Group]) -> None:
        self._removing += groups
        self._write()

    def _write(self) -> None:
        """Writes the document and removes groups. A failure is retried by the next call."""
        try:
            while self._removing:
                self._removing[-1].remove()
                self._removing.pop()
            if self._pending_document:
                gcs.put_job_document(self._settings.number, self._pending_document)
                self._pending_document = None
        except gcs.AWAY as error:
            log.debug("the control store is away: %s", error)

    def _finish_writes(self) -> None:
        """Retries pending writes and removals for a limited time."""
        limit = time.monotonic() + _LAST_WRITES
        while self._pending_document or self._removing:
            if time.monotonic() > limit:
                log.warning("%s: the end could not be written to Ray's control store", self._job.name)
                return
            time.sleep(_FIRST_WAIT)
            self._write()

    # Ends

    def _fail(self, cause: str) -> None:
        """Gives all slots back after a failure. The job resumes from its checkpoint once the plan has slots for it."""
        steady = self._running and time.monotonic() - self._round_at > _STEADY
        self._failures = 1 if steady else self._failures + 1
        self._failed_at = max(self._failed_at, self._result.step)
        step = self._checkpoint_step()
        log.warning(
            "%s: %s; it resumes from %s", self._job.name, cause, f"step {step}" if step else "its last checkpoint"
        )
        if self._failures >= _MOST_FAILURES:
            raise JobFailed(
                f"{self._job.name}: {self._failures} failures without a new step or ten minutes of running between "
                f"them; the last: {cause}"
            )
        self._idle("failure")
        self._remove()
        self._ends = {}
        self._last = Report(self._checkpoint_step())
        self._not_before = time.monotonic() + min(_FIRST_WAIT * 2 ** (self._failures - 1), _LAST_WAIT)

    def _checkpoint_step(self) -> int:
        return checkpoint.step_of(checkpoint.newest(self._folder))

    def _complete(self) -> None:
        end = self._ends[self._chief()]
        result = self._result
        result.converged, result.checkpoint = end.converged, checkpoint.newest(self._folder)
        result.seconds = time.monotonic() - self._begin
        # Training is done, so that a lost actor doesn't matter.
        with contextlib.suppress(_Lost):
            self._drain()
        if self._reporter:
            last = Report(max(end.step, self._last.step), epoch=result.epoch, at=self._last.at)
            self._reporter.finish(last, end.converged)
            self._reporter.flush(10.0)
        self._document("completed", "converged" if end.converged else "its training is over")
        self._give_back(self._groups)
        self._finish_writes()

    def _abandon(self, error: BaseException) -> None:
        self._give_back(self._groups)
        self._groups, self._running = [], None
        if isinstance(error, Exception) or self._settings.on_driver_death == "cancel":
            self._document("failed", _last_line(error))
        self._finish_writes()


def _last_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return printable(text[-1]) if text else type(error).__name__


def _get(ref: Any) -> Any:
    try:
        return ray.get(ref)
    except RayError as error:
        root: BaseException | None = error
        while isinstance(root, RayTaskError):
            root = root.cause
        # An actor also fails if a peer that it calls is lost. All other errors are the user's code's.
        if isinstance(root, Interrupted):
            raise _Lost(printable(str(root))) from None
        if isinstance(root, RayError) and not (isinstance(root, RayActorError) and root.actor_init_failed):
            raise _Lost(printable(str(root).strip().partition("\n")[0])) from None
        raise JobFailed(str(error)) from None
