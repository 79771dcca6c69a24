"""Runs a command, and ends all of its processes when the program that holds the other end of stdin is gone.

`python guard.py COMMAND…` is a program of its own, because an actor that is killed ends nothing itself. Ray kills an
actor's children and their process group with it. So the command runs below a second process, in a session of its own,
and the first one, Ray's victim, only passes SIGTERM on and ends with the command's code.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

_PR_SET_CHILD_SUBREAPER = 36


class Relay:
    """Passes SIGTERM on, also one that came before there was anybody to pass it to."""

    def __init__(self) -> None:
        self._told = False
        self._end: Callable[[], None] | None = None
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, *_: object) -> None:
        self._told = True
        self._pass_on()

    def to(self, end: Callable[[], None]) -> None:
        self._end = end
        if self._told:
            self._pass_on()

    def _pass_on(self) -> None:
        # It may have ended just now.
        with contextlib.suppress(ProcessLookupError):
            if self._end:
                self._end()


def main() -> None:
    # A new process forgets signals that Python has noticed but not handled yet, but none that wait in the kernel.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    relay = Relay()
    pid = os.fork()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if pid:
        relay.to(lambda: os.kill(pid, signal.SIGTERM))
        _, status = os.waitpid(pid, 0)
        os._exit(_code(os.waitstatus_to_exitcode(status)))
    os.setsid()
    # Processes whose parents have ended become children of this one.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    relay.to(command.terminate)

    def watch() -> None:
        while os.read(0, 1):
            pass
        command.kill()

    threading.Thread(target=watch, daemon=True).start()
    code = command.wait()
    _end_rest()
    os._exit(_code(code))


def _code(code: int) -> int:
    """As a shell says it: 128 and the number of a signal."""
    return code if code >= 0 else 128 - code


def _end_rest() -> None:
    """Ends what the command has left. Each ended process may leave others."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = [int(pid) for pid in file.read().split()]
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
