"""`trainmaster.report` and related functions for any Python loop, without Ray."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Mapping

from . import stop
from ._proto import feed_pb2, job_pb2
from .reporter import Reporter, Slot
from .tally import Report

log = logging.getLogger("trainmaster")

_lock = threading.Lock()
_reporter: Reporter | None = None
_looked = False
_last: Report | None = None
_converged: bool | None = None

# Set in workers on Ray: the context takes the reports and knows whether to stop.
sink: Callable[[Report], None] | None = None
stopping: Callable[[], bool] | None = None


def report(
    *,
    step: int,
    loss: float | None = None,
    examples: int = 0,
    epoch: int | None = None,
    accuracy: float | None = None,
    steps_per_epoch: int = 0,
    steps: int | None = None,
    batch: int | None = None,
    grad_sqr: float | None = None,
    grad_var: float | None = None,
) -> None:
    """Reports the progress of training. Call it at every step, or less often.

    `step` counts from the start of the job, across restarts. `examples` is the number of examples since the last call.
    `epoch` is the number of completed epochs. The function never blocks and never raises. In a program that Trainmaster
    did not start, it does nothing. With torchrun, only rank 0 reports.

    A job whose batch the scheduler may choose counts `step`, `epoch` and `steps_per_epoch` in steps of its submitted
    batch, `steps` in real ones since the last call, and tells its batch and the noise of its gradients: see
    `AdaptiveBatch`.
    """
    global _last
    try:
        progress = Report(
            step,
            loss,
            examples,
            epoch,
            accuracy,
            steps_per_epoch,
            steps=steps,
            batch=batch,
            grad_sqr=grad_sqr,
            grad_var=grad_var,
        )
        if sink:
            # Actors on Ray aren't told a batch, so no other one may be chosen.
            sink(dataclasses.replace(progress, batch=None, grad_sqr=None, grad_var=None))
        elif reporter := _find():
            if _last is None and (milliseconds := _age_ms()):
                reporter.restarted(milliseconds)
            _last = progress
            reporter.report(progress)
    except Exception as error:
        log.warning("report dropped: %s", error)


def is_job() -> bool:
    """Whether Trainmaster started this program."""
    return bool(stopping or os.environ.get("TRAINMASTER_JOB"))


def reports() -> bool:
    """Whether this process is the one whose reports are sent."""
    try:
        return bool(sink or _find())
    except Exception as error:
        log.warning("cannot report: %s", error)
        return False


def saved(step: int, seconds: float) -> None:
    """Reports that the checkpoint of this step took so long, which doesn't count as time of training."""
    try:
        reporter = None if sink else _find()
        if reporter:
            reporter.interrupted()
            revision = reporter.assignment.revision if reporter.assignment else 0
            reporter.acknowledge(revision, leaving=False, step=step, checkpoint_ms=seconds * 1000)
    except Exception as error:
        log.warning("report of a checkpoint dropped: %s", error)


def interrupted() -> None:
    """Leaves the time until the next report, such as that of an evaluation, out of the time of training."""
    try:
        if not sink and (reporter := _find()):
            reporter.interrupted()
    except Exception as error:
        log.warning("an interruption was not reported: %s", error)


def finish(converged: bool = False) -> None:
    """Says that training is done, once the program ends: that report ends the job, with all that still runs.

    In a worker on Ray, return from `run` instead.
    """
    global _converged
    if _converged is None and not sink and _find():
        _converged = converged
        # Before the reporter is closed: what was registered last runs first.
        atexit.register(_finish)


def _finish() -> None:
    try:
        reporter = _find()
        if reporter and _last:
            # Its steps and examples were counted already.
            again = dataclasses.replace(_last, examples=0, steps=None if _last.steps is None else 0)
            reporter.finish(again, bool(_converged))
            reporter.flush(10.0)
    except Exception as error:
        log.warning("the end of training was not reported: %s", error)


def should_stop() -> bool:
    """Whether to save a checkpoint and exit now, because the job gets another shape or no slots.

    Call it once a step, on every rank: all get the same answer at the same step. From the first call on, SIGTERM makes
    this function return true, and doesn't end the program any more.
    """
    if stopping:
        return stopping()
    try:
        return stop.should_stop(_told_to_stop)
    except Exception as error:
        log.warning("cannot determine whether to stop: %s", error)
        return False


def _told_to_stop() -> bool:
    reporter = _find()
    if not reporter or not reporter.assignment:
        return False
    ends = reporter.assignment.phase == feed_pb2.ASSIGNMENT_PHASE_STOP
    return ends or reporter.assignment.incarnation != number(os.environ, "TRAINMASTER_INCARNATION", 1)


def assigned_batch() -> feed_pb2.Batch | None:
    """The batch that the scheduler chose last. None if it is fixed, or not known."""
    reporter = None if sink else _find()
    assignment = reporter.assignment if reporter else None
    if not assignment or not assignment.HasField("batch"):
        return None
    # Another incarnation's is for other workers.
    own = assignment.incarnation == number(os.environ, "TRAINMASTER_INCARNATION", 1)
    return assignment.batch if own else None


def _age_ms() -> float | None:
    """The time since the start of this process."""
    try:
        with open("/proc/self/stat") as stat, open("/proc/uptime") as uptime:
            # The name of the program, in parentheses, may have spaces.
            started = int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
            return max(float(uptime.read().split()[0]) - started, 0.0) * 1000
    except (OSError, ValueError, IndexError):
        return None


def _find() -> Reporter | None:
    global _reporter, _looked
    with _lock:
        if not _looked:
            _looked = True
            if slot := slot_of(os.environ):
                feed = os.environ["TRAINMASTER_FEED"]
                _reporter = Reporter(feed, slot, ca=os.environ.get("TRAINMASTER_FEED_CA"))
                atexit.register(_reporter.close)
        return _reporter


def slot_of(environment: Mapping[str, str]) -> Slot | None:
    """The slot whose reports this process sends. None if it sends no reports."""
    job = environment.get("TRAINMASTER_JOB")
    if not job or not environment.get("TRAINMASTER_FEED"):
        return None
    index = number(environment, "TRAINMASTER_INDEX", 0)
    role = environment.get("TRAINMASTER_ROLE", "worker")
    # torchrun numbers the processes of all slots. Without torchrun, each slot has one process.
    if role != "worker" or number(environment, "RANK", index) != 0:
        return None
    incarnation = number(environment, "TRAINMASTER_INCARNATION", 1)
    return Slot(job, environment.get("TRAINMASTER_TOKEN", ""), incarnation, job_pb2.SLOT_ROLE_WORKER, index)


def number(environment: Mapping[str, str], name: str, default: int) -> int:
    """A variable with a whole number."""
    text = environment.get(name, "")
    if not text:
        return default
    if not text.isdecimal():
        raise ValueError(f"{name}: {text!r} must be a whole number")
    return int(text)
