"""Sends reports to the feed in background threads. Training neither waits for them nor fails because of them."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from ._proto import feed_pb2 as pb
from ._proto import feed_pb2_grpc, job_pb2
from .channel import bearer, channel
from .tally import Outbox, Report, Tally
from .text import printable
from .watch import FINAL, FIRST_PAUSE, LAST_PAUSE, Watch

log = logging.getLogger("trainmaster")

_CALL_SECONDS = 10.0


@dataclass(frozen=True)
class Slot:
    """The sender of reports."""

    job: str
    token: str = field(default="", repr=False)
    incarnation: int = 1
    role: job_pb2.SlotRole = job_pb2.SLOT_ROLE_WORKER
    index: int = 0


class Reporter:
    """Sends the reports of one slot to the feed, and receives its assignments."""

    def __init__(
        self,
        address: str,
        slot: Slot,
        *,
        ca: str | Path | None = None,
        interval: float = 1.0,
    ) -> None:
        self._channel = channel(address, ca)
        self._stub = feed_pb2_grpc.FeedStub(self._channel)  # type: ignore[no-untyped-call]
        self._slot = slot
        self._metadata = bearer(slot.token)
        self._interval = interval
        self._lock = threading.Condition()
        self._tally = Tally()
        self._outbox = Outbox()
        self._acks: list[pb.AcknowledgeRequest] = []
        self._shape = (0, 0)
        self._restart_ms: float | None = None
        self._assignment: pb.Assignment | None = None
        self._last_seq: int | None = None
        self._sending = False
        self._hurry = False
        self._closed = False
        self._pid = os.getpid()
        threading.Thread(target=self._deliver, name="trainmaster-report", daemon=True).start()
        request = pb.WatchRequest(job=slot.job, incarnation=slot.incarnation, role=slot.role, index=slot.index)
        self._watch = Watch(self._stub, request, self._metadata, self._assigned, self._unheard)

    @property
    def assignment(self) -> pb.Assignment | None:
        """The last assignment from the feed. None before the first."""
        return self._assignment

    def report(self, report: Report, leads: bool = True) -> None:
        """Adds a report. Never blocks."""
        # A forked child doesn't have the threads.
        if os.getpid() != self._pid:
            return
        with self._lock:
            if leads and not self._tally.continues(report):
                self._take()
            self._tally.add(report, leads)

    def shape(self, workers: int, servers: int) -> None:
        """Sets the numbers of workers and servers of later reports. Earlier reports keep theirs."""
        with self._lock:
            if (workers, servers) != self._shape:
                self._take()
                self._tally.rebase()
                self._shape = (workers, servers)

    def interrupted(self) -> None:
        """Leaves the time until the next report out of the training time."""
        with self._lock:
            self._take()
            self._tally.rebase()

    def restarted(self, milliseconds: float) -> None:
        """Sends the time of a restart with the next progress, once."""
        with self._lock:
            self._restart_ms = milliseconds

    def acknowledge(self, revision: int, *, leaving: bool, step: int = 0, checkpoint_ms: float = 0.0) -> None:
        """Sends an acknowledgement after all earlier reports."""
        with self._lock:
            self._take()
            self._acks.append(
                pb.AcknowledgeRequest(
                    job=self._slot.job,
                    incarnation=self._slot.incarnation,
                    revision=revision,
                    role=self._slot.role,
                    index=self._slot.index,
                    checkpoint_step=step,
                    checkpoint_ms=checkpoint_ms,
                    leaving=leaving,
                )
            )
            self._wake()

    def finish(self, report: Report, converged: bool) -> None:
        """Sends a last report: training is done."""
        with self._lock:
            self._tally.add(report)
            self._take(finished=True, converged=converged)
            self._wake()

    def flush(self, limit: float) -> bool:
        """Waits until everything is answered, at most `limit` seconds."""
        with self._lock:
            self._take()
            self._wake()
            return self._lock.wait_for(lambda: not self._outbox and not self._acks and not self._sending, limit)

    def close(self, limit: float = 2.0) -> None:
        if os.getpid() != self._pid:
            return
        if not self.flush(limit) or self._outbox.dropped:
            unsent = len(self._outbox)
            log.warning("some reports did not reach the feed: %d dropped, %d unsent", self._outbox.dropped, unsent)
        with self._lock:
            self._closed = True
            self._wake()
        self._watch.close()
        self._channel.close()

    def _wake(self) -> None:
        self._hurry = True
        self._lock.notify_all()

    def _take(self, finished: bool = False, converged: bool = False) -> None:
        progress = self._tally.take(*self._counts())
        if progress is None:
            return
        if self._restart_ms is not None:
            progress.restart_ms, self._restart_ms = self._restart_ms, None
        progress.finished, progress.converged = finished, converged
        self._outbox.add(progress)

    def _counts(self) -> tuple[int, int]:
        if self._shape != (0, 0) or self._assignment is None:
            return self._shape
        roles = [peer.slot.role for peer in self._assignment.peers]
        return roles.count(job_pb2.SLOT_ROLE_WORKER), roles.count(job_pb2.SLOT_ROLE_SERVER)

    def _unheard(self, _: str) -> None:
        # The feed won't accept reports either. They need not wait for the last sequence number.
        with self._lock:
            self._last_seq = self._last_seq or 0
            self._lock.notify_all()

    def _assigned(self, assignment: pb.Assignment) -> None:
        with self._lock:
            self._assignment = assignment
            if self._last_seq is None:
                # A process that is restarted in its incarnation continues its sequence numbers.
                self._last_seq = assignment.last_seq if assignment.incarnation == self._slot.incarnation else 0
            self._lock.notify_all()

    def _deliver(self) -> None:
        pause = FIRST_PAUSE
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._hurry or self._closed, self._interval)
                self._lock.wait_for(lambda: self._last_seq is not None or self._closed)
                if self._closed:
                    return
                self._take()
                assert self._last_seq is not None, "waited for above"
                batch = self._outbox.next(self._last_seq)
                ack = self._acks[0] if self._acks and not batch else None
                self._hurry = bool(batch or ack)
                self._sending = self._hurry
                if batch:
                    self._last_seq = max(self._last_seq, batch[-1].seq)
                if not self._sending:
                    self._lock.notify_all()
                    continue
            done = self._send(batch, ack)
            with self._lock:
                self._sending = False
                if done:
                    pause = FIRST_PAUSE
                    if batch:
                        self._outbox.answered(batch)
                    elif ack:
                        self._acks.pop(0)
                else:
                    self._lock.wait_for(lambda: self._closed, pause)
                    pause = min(pause * 2, LAST_PAUSE)

    def _send(self, batch: list[pb.Progress], ack: pb.AcknowledgeRequest | None) -> bool:
        """Sends a batch or an acknowledgement. Returns whether the feed answered, even if it refused."""
        try:
            if ack:
                self._stub.Acknowledge(ack, timeout=_CALL_SECONDS, metadata=self._metadata)
                return True
            request = pb.ReportRequest(
                job=self._slot.job,
                incarnation=self._slot.incarnation,
                role=self._slot.role,
                index=self._slot.index,
                progress=batch,
            )
            reply = self._stub.Report(request, timeout=_CALL_SECONDS, metadata=self._metadata)
            if not reply.accepted:
                log.debug("the feed ignored a report: %s", printable(reply.reason))
            return True
        except grpc.RpcError as error:
            if error.code() in FINAL:
                log.warning("the feed refuses a report: %s", printable(error.details() or ""))
                return True
            return False
        except ValueError:  # the channel was closed
            return True
