"""Ray Train in the shapes of Trainmaster's plans, with no changed line in the training script:

    RAY_TRAIN_CALLBACKS=trainmaster.ray.train.Callback python train.py

Ray Train's controller asks a scaling policy for the number of workers, and makes a placement group for them. With this
callback the plan answers, and the group is on the plan's servers. All this happens in the controller's process. Ray's
own coordinator of the autoscaler gets no request for the job, because Trainmaster asks for the nodes of its plans.

Ray Train has no public interface for this. `differences` compares the installed version with the tested one.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.callback import ControllerCallback, ReportCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.scaling_policy import (
    ElasticScalingPolicy,
    FixedScalingPolicy,
    NoopDecision,
    ResizeDecision,
)
from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.config import ScalingConfig
from ray.util.placement_group import placement_group

from ..channel import Jobs
from ..errors import Refused, TrainmasterError
from ..job import Job, Role
from ..reporter import Reporter
from ..reporter import Slot as FeedSlot
from ..tally import Report
from ..text import printable
from . import gcs, slots
from .document import BadDocument
from .plan import Kind, Plan, Running, Step, step

log = logging.getLogger("trainmaster")

TESTED = ("2.60",)

_TICK = 0.2
# A change waits for the next checkpoint of a job that saves some, at most for so many seconds.
_HOLD = 30.0
# A running daemon plans within this time.
_NO_PLAN = 10.0
_NAMES = {"CPU": "cpu", "GPU": "gpu"}
_FILES = {
    "token_file": "TRAINMASTER_TOKEN_FILE",
    "ca": "TRAINMASTER_CA",
    "cert": "TRAINMASTER_CERT",
    "key": "TRAINMASTER_KEY",
}


def differences(version: str = ray.__version__) -> list[str]:
    """The differences from the tested Ray Train. Empty if this one can follow a plan."""
    found = []
    if version.split(".")[:2] not in [tested.split(".") for tested in TESTED]:
        found.append(f"Ray is {version}; tested: {', '.join(TESTED)}")
    used: list[tuple[Any, str, list[str] | None]] = [
        (WorkerGroup, "_create_placement_group", ["self", "scaling_config", "worker_group_context"]),
        (DefaultPlacementGroupHandle, "__init__", ["self", "pg"]),
        (WorkerGroupStartupTimeoutError, "__init__", ["self", "num_workers"]),
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

    def _jobs(self) -> Jobs:
        return Jobs(self._address, **self._files)

    def after_controller_start(self, train_run_context: Any) -> None:
        job = job_of(train_run_context.get_run_config().name, train_run_context.scaling_config)
        run = self._run = Run(self._jobs(), job)
        for policy in (ElasticScalingPolicy, FixedScalingPolicy):
            policy.make_decision_for_non_running_worker_group = lambda policy: run.start(policy)
            policy.make_decision_for_running_worker_group = lambda policy, worker_group_state, worker_group_status: (
                run.resize(policy)
            )
        WorkerGroup._create_placement_group = lambda group, scaling_config, worker_group_context: run.group(
            worker_group_context.num_workers, worker_group_context.resources_per_worker
        )

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
        self._plan: Plan | None = None
        # The plan whose group was made, until its workers have started.
        self._starting: Plan | None = None
        self._running: Running | None = None
        self._reporter: Reporter | None = None
        self._reported = 0
        self._step = self._saved_step = 0
        # When the last checkpoint was reported, and since when the plan has differed from what runs.
        self._saved_at: float | None = None
        self._differs_since: float | None = None
        self._unmeasured = False
        self._shown = ""
        self._ended = False
        self._write("active")
        log.info("%s: job %d", job.name, self._number)

    # What Ray Train asks

    def start(self, policy: Any) -> Any:
        """Whether workers start now, and how many."""
        policy._cancel_resource_request()
        plan = self._look()
        if plan and step(None, plan).kind is Kind.START:
            return self._sized(policy, plan.shape[0])
        # The controller asks again at once.
        time.sleep(_TICK)
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
        saves, since = self._saved_at is not None, self._differs_since
        if saves and (self._saved_at or 0) < since and now < since + _HOLD:
            return NoopDecision()
        assert plan, "it differs from what runs"
        # If the job has to wait, `group` refuses to start workers after the present ones have ended.
        return self._sized(policy, plan.shape[0] or policy.scaling_config.min_workers)

    def _sized(self, policy: Any, workers: int) -> Any:
        return ResizeDecision(
            num_workers=workers, resources_per_worker=policy.scaling_config._resources_per_worker_not_none
        )

    def group(self, workers: int, resources: dict[str, float]) -> DefaultPlacementGroupHandle:
        """The placement group on the plan's servers. Raises Ray Train's error for a start that is tried again."""
        plan = self._look()
        nodes = self._nodes(plan) if plan and step(None, plan).kind is Kind.START else None
        if plan is None or nodes is None or len(nodes) != workers:
            raise WorkerGroupStartupTimeoutError(num_workers=workers)
        placed = slots.ordered(plan.placed)
        handle = placement_group(
            [resources] * workers,
            name=slots.group_name(self._number, plan.incarnation, plan.revision, placed),
            bundle_label_selector=[{"ray.io/node-id": nodes[slot]} for slot in placed],
        )
        self._starting = plan
        return DefaultPlacementGroupHandle(handle)

    def _nodes(self, plan: Plan) -> dict[slots.Slot, str] | None:
        """The Ray node of each slot. None if a server has no node now."""
        alive = gcs.live_nodes()
        nodes = {slot: gcs.server_node(server) for slot, server in plan.placed.items()}
        found = {slot: node for slot, node in nodes.items() if node in alive and node is not None}
        return found if len(found) == len(nodes) else None

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
        self._unmeasured, self._differs_since = True, None
        self._write("active")

    def left(self) -> None:
        """All workers have ended, and their group is gone."""
        running, self._running, self._starting = self._running, None, None
        if not running:
            return
        self._idle_since = time.monotonic()
        # What was trained since the last checkpoint is lost.
        self._step = self._saved_step
        if self._reporter:
            self._reporter.interrupted()
        todo = step(running, self._plan) if self._plan and not self._ended else Step(Kind.KEEP)
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
        self._step += 1
        if saved:
            self._saved_step, self._saved_at = self._step, time.monotonic()
        if not self._reporter:
            return
        if self._unmeasured:
            self._unmeasured = False
            self._reporter.restarted((time.monotonic() - self._idle_since) * 1000)
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
            lines = str(error).strip().splitlines()
            self._write("failed", printable(lines[0]) if lines else type(error).__name__)
        self._jobs.close()

    # The plan

    def _look(self) -> Plan | None:
        """The newest plan that could be read. Raises `Refused` if it ends the job."""
        try:
            plan = gcs.plan(self._number)
            if plan and plan.shape[1]:
                raise BadDocument("slots: the plan has parameter servers, but the job has none")
        except (BadDocument, *gcs.AWAY) as error:
            log.debug("%s: the plan can't be read, the last one stays in force: %s", self._job.name, error)
            plan = None
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
        running = self._running
        document = {
            "v": 1,
            "name": self._job.name,
            "driver": gcs.driver_id(),
            "on_driver_death": "cancel",
            "phase": phase,
            "message": message,
            "running": {
                "incarnation": running.incarnation if running else self._reported,
                "revision": running.revision if running else 0,
                "slots": slots.write(running.placed) if running else "",
            },
            "refused": None,
        }
        try:
            gcs.put_job_document(self._number, document)
        except gcs.AWAY as error:
            log.warning("%s: the control store is away: %s", self._job.name, printable(str(error)))


def _number(value: object) -> float | None:
    """A metric, if it is a finite number."""
    convert: Callable[..., float] = float
    if isinstance(value, (bool, str, bytes)) or value is None:
        return None
    try:
        number = convert(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
