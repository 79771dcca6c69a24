"""Channels to a daemon, and a client of its Jobs service."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import grpc

from ._proto import jobs_pb2, jobs_pb2_grpc
from .credentials import check, find, read_certificate, read_secret
from .errors import Refused, TrainmasterError, Unreachable
from .job import Job
from .text import printable

log = logging.getLogger("trainmaster")

_CALL_SECONDS = 5.0
_MOST_NOTES = 8
_OPTIONS = [
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 3000),
    # The daemon is reached directly, so that the web proxy of the environment is not used.
    ("grpc.enable_http_proxy", 0),
    # Lists of many jobs with many slots are long.
    ("grpc.max_receive_message_length", 256 << 20),
]
_TOKEN = "token_file=…, or the name of its file in TRAINMASTER_TOKEN_FILE"
_HINTS = {
    grpc.StatusCode.UNAUTHENTICATED: f"; give a token: {_TOKEN}",
    grpc.StatusCode.PERMISSION_DENIED: f"; give a token with this permission: {_TOKEN}",
}


def channel(
    address: str, ca: str | Path | None = None, cert: Path | None = None, key: Path | None = None
) -> grpc.Channel:
    """Makes a channel to "host:port", "http://host:port" or, with TLS, "https://host:port". It connects at the first
    call.
    """
    url = _url(address)
    if url.scheme == "http":
        return grpc.insecure_channel(url.netloc, options=_OPTIONS)
    pem = (
        None if ca is None else read_certificate("ca", Path(ca)),
        None if key is None else read_secret("key", key),
        None if cert is None else read_certificate("cert", cert),
    )
    return grpc.secure_channel(url.netloc, grpc.ssl_channel_credentials(*pem), options=_OPTIONS)


def _url(address: str) -> SplitResult:
    url = urlsplit(address if "://" in address else f"http://{address}")
    if url.username is not None:
        raise TrainmasterError("address: must be host:port without user and password; use token_file for a token")
    if url.scheme not in ("http", "https") or not url.hostname or url.path not in ("", "/"):
        raise TrainmasterError(f"address: {address!r} must be host:port, http://host:port or https://host:port")
    try:
        port = url.port
    except ValueError:
        port = None
    if port is None:
        raise TrainmasterError(f"address: {address!r} has no port from 1 to 65535, as in localhost:7070")
    return url


def host_of(address: str) -> tuple[str, int]:
    """The host and the port of an address."""
    url = _url(address)
    return url.hostname or "", url.port or 0


def _place(url: SplitResult) -> str:
    """The name of the daemon's discovery file."""
    return f"{'127.0.0.1' if url.hostname == 'localhost' else url.hostname}:{url.port}"


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {check(token)}"),) if token else ()


class Jobs:
    """Client of the daemon's Jobs service. Finds a missing token in the same way as `trainmaster.ray.connect`."""

    def __init__(
        self,
        address: str,
        token: str = "",
        ca: str | Path | None = None,
        *,
        token_file: str | Path | None = None,
        cert: str | Path | None = None,
        key: str | Path | None = None,
    ) -> None:
        self.address = address
        url = _url(address)
        if url.scheme == "http" and (cert or key):
            raise TrainmasterError(f"cert: only an https daemon accepts a client certificate; {address} is not https")
        known = find(_place(url), token, token_file, ca, cert, key)
        self.ca = known.ca
        self._channel = channel(address, known.ca, known.cert, known.key)
        self._stub = jobs_pb2_grpc.JobsStub(self._channel)  # type: ignore[no-untyped-call]
        self._metadata = bearer(known.token)

    def submit(self, job: Job) -> tuple[int, str]:
        """Submits a job. Returns its number, and its token for the feed."""
        reply = self._call(self._stub.Submit, jobs_pb2.SubmitRequest(job=job.message()))
        for note in reply.notes[:_MOST_NOTES]:
            log.warning("%s", printable(note))
        return reply.job, reply.token

    def cancel(self, job: str) -> None:
        self._call(self._stub.Cancel, jobs_pb2.CancelRequest(job=job))

    def pause(self, job: str, resume: bool = False) -> None:
        self._call(self._stub.Pause, jobs_pb2.PauseRequest(job=job, resume=resume))

    def list(self, all: bool = False) -> Sequence[jobs_pb2.JobStatus]:
        return tuple(self._call(self._stub.List, jobs_pb2.ListRequest(all=all)).jobs)

    def find(self, job: str) -> jobs_pb2.JobStatus | None:
        """The job with this name or number. If several jobs have the name, the newest."""
        found = [status for status in self.list(all=True) if job in (status.name, str(status.job))]
        return max(found, key=lambda status: status.job, default=None)

    def explain(self, job: str) -> Sequence[str]:
        return tuple(map(printable, self._call(self._stub.Explain, jobs_pb2.ExplainRequest(job=job)).lines))

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: Callable[..., Any], request: object) -> Any:
        try:
            # The call waits for a daemon that is restarting.
            return method(request, timeout=_CALL_SECONDS, metadata=self._metadata, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise Unreachable(f"no daemon answers at {self.address} within {_CALL_SECONDS:g} s") from None
            raise Refused(printable(error.details() or error.code().name) + _HINTS.get(error.code(), "")) from None
