"""Ray Train in the shapes of Trainmaster's plans, with no changed line in the training script:

    RAY_TRAIN_CALLBACKS=trainmaster.ray.train.Callback python train.py

Ray Train's controller asks a scaling policy for the number of workers, and makes a placement group for them. With this
callback the plan answers, and the group is on the plan's servers. All this happens in the controller's process.

Ray Train has no public interface for this. `differences` compares the installed version with the tested one.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.train.v2._internal.execution.callback import ControllerCallback, ReportCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.failure_handling import DefaultFailurePolicy, FailureDecision
from ray.train.v2._internal.execution.scaling_policy import (
    ElasticScalingPolicy,
    FixedScalingPolicy,
    NoopDecision,
    ResizeDecision,
    ScalingPolicy,
)
from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.config import ScalingConfig
from ray.train.v2.api.exceptions import TrainingFailedError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from ..channel import Jobs
from ..errors import Refused, TrainmasterError
from ..job import Job, Role
from ..reporter import Reporter
from ..reporter import Slot as FeedSlot
from ..tally import Report
from ..text import printable
from . import gcs, slots
from .document import BadDocument
from .plan import Kind, Plan, Running, Step, job_document, step

log = logging.getLogger("trainmaster")

TESTED = ("2.60",)

_TICK = 0.2
# The controller hears nothing in these seconds of a wait for a group.
_PLACING = 3.0
# A change waits for the next checkpoint of a job that saves some, at most for the daemon's grace or so many seconds.
_GRACE = 30.0
# A running daemon plans within this time.
_NO_PLAN = 10.0
_NAMES = {"CPU": "cpu", "GPU": "gpu"}
_FILES = {
    "token_file": "TRAINMASTER_TOKEN_FILE",
    "ca": "TRAINMASTER_CA",
    "cert": "TRAINMASTER_CERT",
    "key": "TRAINMASTER_KEY",
}


class Waits(TrainingFailedError):  # type: ignore[misc]
    """The plan has no workers for the job now, or other ones. It is no failure of the training."""


def differences(version: str = ray.__version__) -> list[str]:
    """The differences from the tested Ray Train. Empty if this one can follow a plan."""
    found = []
    if version.split(".")[:2] not in [tested.split(".") for tested in TESTED]:
        found.append(f"Ray is {version}; tested: {', '.join(TESTED)}")
    used: list[tuple[Any, str, list[str] | None]] = [
        (WorkerGroup, "_create_placement_group", ["self", "scaling_config", "worker_group_context"]),
        (DefaultPlacementGroupHandle, "__init__", ["self", "pg"]),
        (TrainController, "_run_control_loop_iteration", ["self"]),
        (DefaultFailurePolicy, "make_decision", ["self", "training_failed_error"]),
        (ScalingPolicy, "after_controller_start", ["self", "train_run_context"]),
        (ScalingConfig, "min_workers", None),
        (ScalingConfig, "max_workers", None),
        (ScalingConfig, "_resources_per_worker_not_none", None),
    ]
    for policy in (ElasticScalingPolicy, FixedScalingPolicy):
        used += [
            (policy, "make_decision_for_non_running_worker_group", ["self"]),
            (
                policy,
                "make_decision_for_running_worker_group",
                ["self", "worker_group_state", "worker_group_status"],
            ),
            (policy, "_cancel_resource_request", ["self"]),
        ]
    for kind, name, parameters in used:
        there = getattr(kind, name, None)
        if there is None:
            found.append(f"{kind.__name__} has no {name}")
        elif parameters is not None and list(inspect.signature(there).parameters) != parameters:
            found.append(f"{kind.__name__}.{name} takes other arguments")
    return found


def job_of(name: str, scaling: Any) -> Job:
    """The job of a run. Raises `TrainmasterError` if Trainmaster can't place its workers."""
    for key in ("use_tpu", "topology", "label_selector", "accelerator_type"):
        if getattr(scaling, key, None):
            raise TrainmasterError(f"ScalingConfig({key}={getattr(scaling, key)!r}): Trainmaster places the workers")
    demand: dict[str, Any] = {}
    custom: dict[str, Any] = {}
    for resource, amount in scaling._resources_per_worker_not_none.items():
        if resource == "memory":
            demand["memory"] = f"{math.ceil(amount / 2**20)}MiB"
        elif resource in _NAMES:
            demand[_NAMES[resource]] = amount
        else:
            custom[resource] = amount
    elastic = isinstance(scaling.num_workers, tuple)
    return Job(
        name,
        mode="allreduce",
        worker=Role(**demand, resources=custom, min=scaling.min_workers, max=scaling.max_workers),
        resize="any" if elastic else "fixed",
        # Ray Train starts all workers anew for another number.
        labels={"elastic": "restart"} if elastic else {},
    )


class Callback(ControllerCallback, WorkerGroupCallback, ReportCallback):  # type: ignore[misc]
    """Makes a run of Ray Train a job of Trainmaster.

    The daemon is the one at `TRAINMASTER_SERVER` (`localhost:7070`), with the token and the certificates that
    `trainmaster` finds for it.

    Raises `TrainmasterError` if there is no such daemon, or if this version of Ray Train can't follow a plan.
    """

    def __init__(self) -> None:
        # The driver makes this object, and the controller on the same node gets a copy. It has no secrets.
        if found := differences():
            text = "; ".join(found)
            raise TrainmasterError(f"{text}; without RAY_TRAIN_CALLBACKS, Ray Train runs without Trainmaster")
        self._address = os.environ.get("TRAINMASTER_SERVER") or "localhost:7070"
        named = {key: os.environ.get(name) for key, name in _FILES.items()}
        self._files = {key: str(Path(path).expanduser().absolute()) for key, path in named.items() if path}
        self._run: Run | None = None
        jobs = self._jobs()
        jobs.list()  # fails now instead of during the run
        jobs.close()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Only the controller gets a copy, before it begins. Its policy would ask the autoscaler for the most workers.
        ScalingPolicy.after_controller_start = lambda policy, train_run_context: None
        # A node that ends is the plan's to leave. While Ray Train waits for the end, it would follow no plan.
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")

    def _jobs(self) -> Jobs:
        return Jobs(self._address, **self._files)

    def after_controller_start(self, train_run_context: Any) -> None:
        if getattr(train_run_context.backend_config.backend_cls, "has_replica_groups", False):
            raise TrainmasterError("torchft: it replaces workers in their places, but the plan says where they are")
        job = job_of(train_run_context.get_run_config().name, train_run_context.scaling_config)
        self._run = Run(self._jobs(), job)
        self._run.take_over()

    def after_worker_group_start(self, worker_group: Any) -> None:
        if self._run:
            self._run.started()

    def after_worker_group_shutdown(self, worker_group_context: Any) -> None:
        if self._run:
            self._run.left()

    def after_worker_group_abort(self, worker_group_context: Any) -> None:
        self.after_worker_group_shutdown(worker_group_context)

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        if self._run:
            self._run.report(metrics[0] if metrics else {}, training_report.checkpoint is not None)

    def after_controller_finish(self, result: Any) -> None:
        if self._run:
            # Ray Train knows nothing of workers that it failed to start.
            self._run.left()
            self._run.end(result.error)

    def before_controller_abort(self) -> None:
        if self._run:
            self._run.end(Refused("it was interrupted"))


class Run:
    """A run of Ray Train, in its controller's process."""

    def __init__(self, jobs: Jobs, job: Job) -> None:
        self._jobs = jobs
        self._job = job
        self._number, self._token = jobs.submit(job)
        self._begin = self._idle_since = time.monotonic()
        # The incarnation, and since when it may run. The wait before that is not part of the restart's cost.
        self._allowed = (0, self._begin)
        self._plan: Plan | None = None
        # The last group, and its plan until the workers have started.
        self._group: PlacementGroup | None = None
        self._starting: Plan | None = None
        self._running: Running | None = None
        # Whether Ray Train has been told to end the workers for a plan.
        self._leaving = False
        self._reporter: Reporter | None = None
        self._reported = 0
        self._step = self._saved_step = 0
        # When the last checkpoint was reported, and since when the plan has differed from what runs.
        self._saved_at: float | None = None
        self._differs_since: float | None = None
        self._unmeasured = False
        # Whether there is nothing to do until the plan changes, and whether the controller knows.
        self._idle = self._paced = False
        self._shown = ""
        self._warned_unread = False
        self._ended = False
        self._write("active")
        log.info("%s: job %d", job.name, self._number)

    def take_over(self) -> None:
        """Answers in place of Ray Train's policies from now on. A controller's process has one run."""
        for policy in (ElasticScalingPolicy, FixedScalingPolicy):
            policy.make_decision_for_non_running_worker_group = lambda policy: self.start(policy)
            policy.make_decision_for_running_worker_group = lambda policy, worker_group_state, worker_group_status: (
                self.resize(policy)
            )
        WorkerGroup._create_placement_group = lambda group, scaling_config, worker_group_context: self.group(
            worker_group_context.num_workers, worker_group_context.resources_per_worker
        )
        decide = DefaultFailurePolicy.make_decision

        def make_decision(policy: Any, training_failed_error: Any) -> Any:
            # A plan that changes isn't counted as a failure.
            if isinstance(training_failed_error, Waits):
                return FailureDecision.RETRY
            return decide(policy, training_failed_error)

        DefaultFailurePolicy.make_decision = make_decision

    def _pace(self) -> None:
        """Makes the controller's loop pause while it waits. It would let nobody tell it to end otherwise."""
        for controller in ray._private.worker.global_worker.actors.values():
            if isinstance(controller, TrainController) and not self._paced:
                self._paced = True
                iterate = controller._run_control_loop_iteration

                async def iteration(iterate: Callable[[], Awaitable[None]] = iterate) -> None:
                    self._idle = False
                    await iterate()
                    if self._idle:
                        await asyncio.sleep(_TICK)

                controller._run_control_loop_iteration = iteration

    # What Ray Train asks

    def start(self, policy: Any) -> Any:
        """Whether workers start now, and how many."""
        self._pace()
        plan = self._look()
        if self._running:
            # A worker is lost. At this answer Ray Train ends the others, and `group` knows what comes after them.
            self._leaving = True
            return self._sized(policy, plan.shape[0] if plan else 0)
        if plan and step(None, plan).kind is Kind.START and self._nodes(plan):
            return self._sized(policy, plan.shape[0])
        self._idle = True
        return NoopDecision()

    def resize(self, policy: Any) -> Any:
        """Whether the workers stop for another shape, or for none."""
        plan = self._look()
        todo = step(self._running, plan) if plan and self._running else Step(Kind.KEEP)
        if plan and self._running and todo == Step(Kind.RESIZE):
            # The plan has the job's current slots with another revision.
            self._running, todo = replace(self._running, revision=plan.revision), Step(Kind.KEEP)
            self._write("active")
            self._acknowledge(plan.revision, leaving=False)
        if todo.kind is Kind.KEEP:
            self._differs_since = None
            return NoopDecision()
        now = time.monotonic()
        if self._differs_since is None:
            self._differs_since = now
        saved, since = self._saved_at, self._differs_since
        if saved is not None and saved < since and now < since + self._grace():
            return NoopDecision()
        self._leaving = True
        return self._sized(policy, plan.shape[0] if plan else 0)

    def _sized(self, policy: Any, workers: int) -> Any:
        scaling = policy.scaling_config
        return ResizeDecision(
            num_workers=workers or scaling.min_workers, resources_per_worker=scaling._resources_per_worker_not_none
        )

    def _grace(self) -> float:
        assignment = self._reporter.assignment if self._reporter else None
        return assignment.grace_ms / 1000 if assignment and assignment.grace_ms else _GRACE

    def group(self, workers: int, resources: dict[str, float]) -> DefaultPlacementGroupHandle:
        """The placement group on the plan's servers.

        Raises `Waits` if the plan has other workers, or none. Ray Train asks again then.
        """
        plan = self._look()
        if self._group and not self._running and plan and self._begins(plan):
            return _Group(self._group, self)
        # Workers that failed at their start can have left a group.
        self.left()
        if self._group:
            raise self._waits("its last group can't be removed yet")
        nodes = self._nodes(plan) if plan and step(None, plan).kind is Kind.START else None
        if plan is None or nodes is None or len(nodes) != workers:
            raise self._waits("the plan has other workers")
        if self._allowed[0] != plan.incarnation:
            self._allowed = (plan.incarnation, time.monotonic())
        placed = slots.ordered(plan.placed)
        name = slots.group_name(self._number, plan.incarnation, plan.revision, placed)
        try:
            self._group = placement_group(
                [resources] * workers,
                name=name,
                bundle_label_selector=[{"ray.io/node-id": nodes[slot]} for slot in placed],
            )
        except gcs.AWAY as error:
            # Or there is a group with this name, from a call whose answer was lost.
            with contextlib.suppress(ValueError, *gcs.AWAY):
                remove_placement_group(get_placement_group(name))
            raise self._waits(printable(str(error))) from None
        self._starting = plan
        return _Group(self._group, self)

    def _waits(self, why: str) -> Waits:
        self._idle = True
        return Waits(f"{self._job.name}: {why}")

    def _nodes(self, plan: Plan) -> dict[slots.Slot, str] | None:
        """The Ray node of each slot. None if a server has no node now."""
        try:
            alive = gcs.live_nodes()
            nodes = {server: gcs.server_node(server) for server in set(plan.placed.values())}
        except gcs.AWAY as error:
            log.debug("the control store is away: %s", error)
            return None
        found = {slot: node for slot, server in plan.placed.items() if (node := nodes[server]) in alive and node}
        return found if len(found) == len(plan.placed) else None

    def _begins(self, plan: Plan) -> bool:
        """Whether the last group is this plan's."""
        begun = self._starting
        same = begun and (plan.incarnation, plan.revision) == (begun.incarnation, begun.revision)
        return bool(same) and plan.action == "run" and not plan.refused

    def wait(self, group: PlacementGroup) -> None:
        """Waits a moment for a group. Raises `Waits` if it isn't there: Ray Train asks again, and may be ended between.

        A group that is gone, or not the plan's any more, is given up.
        """
        limit = time.monotonic() + _PLACING
        while True:
            state = "PENDING"
            with contextlib.suppress(*gcs.AWAY):
                state = placement_group_table(group).get("state", "REMOVED")
            if state == "CREATED":
                return
            plan = self._look()
            if state == "REMOVED" or not plan or not self._begins(plan):
                self.left()
                raise self._waits("the plan has changed, or a group on its servers could not be made")
            if time.monotonic() > limit:
                raise self._waits("a group on the plan's servers isn't there yet")
            time.sleep(_TICK)

    # What Ray Train tells

    def started(self) -> None:
        """The workers have started."""
        plan = self._starting
        assert plan, "its group was made"
        placed = slots.ordered(plan.placed)
        self._running = Running(plan.incarnation, plan.revision, plan.placed, [tuple(placed)])
        self._report_for(plan)
        if self._reporter:
            self._reporter.shape(len(placed), 0)
        # What was trained after the last checkpoint is lost.
        self._step = self._saved_step
        self._unmeasured, self._differs_since = True, None
        self._write("active")

    def left(self) -> None:
        """All workers have ended. Their group goes, if it isn't gone."""
        if self._group:
            try:
                remove_placement_group(self._group)
                self._group = None
            except gcs.AWAY as error:
                log.debug("the control store is away: %s", error)
        self._starting = None
        running, leaving = self._running, self._leaving
        self._running, self._leaving = None, False
        if not running:
            return
        self._idle_since = time.monotonic()
        if self._reporter:
            self._reporter.interrupted()
        todo = step(running, self._plan) if self._plan and leaving else Step(Kind.KEEP)
        if self._plan and todo.kind in (Kind.REBUILD, Kind.RESIZE):
            # The same incarnation goes on in other slots.
            self._acknowledge(self._plan.revision, leaving=False)
        elif todo.kind is Kind.LEAVE:
            self._acknowledge(running.revision, leaving=True)
        self._write("active")

    def _acknowledge(self, revision: int, *, leaving: bool) -> None:
        if self._reporter:
            self._reporter.acknowledge(revision, leaving=leaving, step=self._saved_step)
            self._reporter.flush(2.0)

    def report(self, metrics: dict[str, Any], saved: bool) -> None:
        """All workers have reported. Each report is a step for Trainmaster."""
        now = time.monotonic()
        self._step += 1
        if saved:
            self._saved_step, self._saved_at = self._step, now
        if not self._reporter:
            return
        if self._unmeasured:
            self._unmeasured = False
            self._reporter.restarted((now - max(self._idle_since, self._allowed[1])) * 1000)
        epoch = _number(metrics.get("epoch"))
        self._reporter.report(
            Report(
                self._step,
                loss=_number(metrics.get("loss")),
                epoch=int(epoch) if epoch is not None and 0 <= epoch < 2**32 else None,
            )
        )

    def end(self, error: BaseException | None) -> None:
        """The run has ended."""
        if self._ended:
            return
        self._ended = True
        if self._reporter:
            if error is None:
                self._reporter.finish(Report(self._step), converged=False)
                self._reporter.flush(10.0)
            self._reporter.close()
        self._running = None
        if error is None:
            self._write("completed", "its training is over")
        else:
            self._write("failed", _last_line(error))
        self._jobs.close()

    # The plan

    def _look(self) -> Plan | None:
        """The newest plan that could be read. Raises `Refused` if it ends the job."""
        try:
            plan = gcs.plan(self._number)
            if plan and plan.shape[1]:
                raise BadDocument("slots: the plan has parameter servers, but the job has none")
            if plan and plan.shape[0] > self._job.worker.counts()[1]:
                raise BadDocument(f"slots: the plan has {plan.shape[0]} workers, more than the job allows")
            self._warned_unread = False
        except gcs.AWAY as error:
            log.debug("the control store is away: %s", error)
            plan = None
        except BadDocument as fault:
            if not self._warned_unread:
                log.warning("%s: the plan can't be read, the last one stays in force: %s", self._job.name, fault)
            self._warned_unread, plan = True, None
        # A daemon with a lost store numbers its jobs from 1 again, so the plan can be another job's.
        if plan and plan.name in ("", self._job.name):
            self._plan = plan
        self._show()
        if self._plan and step(self._running, self._plan).kind is Kind.END:
            raise Refused(f"{self._job.name}: {self._plan.action}: {self._plan.reason}")
        return self._plan

    def _show(self) -> None:
        plan = self._plan
        if plan:
            news = plan.refused or (plan.reason if plan.action != "run" else "")
        else:
            late = time.monotonic() > self._begin + _NO_PLAN
            news = f"there is no plan yet; see trainmaster explain {self._job.name}" if late else ""
        if news and news != self._shown:
            log.warning("%s: %s", self._job.name, news)
        self._shown = news

    def _report_for(self, plan: Plan) -> None:
        """Makes one reporter per incarnation. The feed would ignore unsent reports of the last incarnation."""
        if self._reported == plan.incarnation:
            return
        if self._reporter:
            self._reporter.close(0.0)
        index = min(slot.index for slot in plan.placed)
        feed_slot = FeedSlot(str(self._number), self._token, plan.incarnation, index=index)
        self._reporter = Reporter(self._jobs.address, feed_slot, ca=self._jobs.ca)
        self._reported = plan.incarnation

    def _write(self, phase: str, message: str = "") -> None:
        """Writes the job's document for the adapter. A failure is repaired by the next one."""
        document = job_document(self._job.name, gcs.driver_id(), phase, message, self._running, self._reported)
        try:
            gcs.put_job_document(self._number, document)
        except gcs.AWAY as error:
            log.warning("%s: the control store is away: %s", self._job.name, printable(str(error)))


class _Group(DefaultPlacementGroupHandle):  # type: ignore[misc]
    """A group that is waited for in short turns, as long as the plan has it."""

    def __init__(self, group: PlacementGroup, run: Run) -> None:
        super().__init__(group)
        self._run = run

    def wait(self, timeout_seconds: float = 0) -> bool:
        self._run.wait(self.placement_group)
        return True


def _last_line(error: BaseException) -> str:
    """What went wrong. Ray Train's own errors begin with a general sentence."""
    cause = getattr(error, "controller_failure", error)
    lines = [line for line in str(cause).splitlines() if line.strip()]
    return printable(lines[-1].strip()) if lines else type(cause).__name__


def _number(value: object) -> float | None:
    """A metric, if it is a finite number."""
    if isinstance(value, (bool, str, bytes)) or value is None:
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except Exception:  # of whatever type a script reports
        return None
    return number if math.isfinite(number) else None
