"""A stream of a slot's assignments, which is opened again until it is closed or refused."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import grpc

from ._proto import feed_pb2 as pb

log = logging.getLogger("trainmaster")

FIRST_PAUSE = 0.1
LAST_PAUSE = 3.0
# Errors that a retry would not change.
FINAL = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)


class Watch:
    """Passes each assignment to `told`, in a thread of its own. After a final error, `refused` gets its text, and the
    stream is still tried again: the daemon may be starting.
    """

    def __init__(
        self,
        stub: Any,
        request: pb.WatchRequest,
        metadata: tuple[tuple[str, str], ...],
        told: Callable[[pb.Assignment], None],
        refused: Callable[[str], None],
    ) -> None:
        self._stub, self._request, self._metadata = stub, request, metadata
        self._told, self._refused = told, refused
        self._lock = threading.Condition()
        self._stream: grpc.Call | None = None
        self._closed = False
        threading.Thread(target=self._listen, name="trainmaster-watch", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            if self._stream:
                self._stream.cancel()

    def _listen(self) -> None:
        pause = FIRST_PAUSE
        while not self._closed:
            try:
                stream = self._stub.Watch(self._request, metadata=self._metadata)
                with self._lock:
                    self._stream = stream
                for assignment in stream:
                    pause = FIRST_PAUSE
                    self._told(assignment)
            except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed
                log.debug("the feed is away: %s", error)
                if isinstance(error, grpc.RpcError) and error.code() in FINAL:
                    self._refused(error.details() or error.code().name)
            with self._lock:
                self._lock.wait_for(lambda: self._closed, pause)
            pause = min(pause * 2, LAST_PAUSE)
