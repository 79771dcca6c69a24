"""Runs a command, and ends all of its processes when the program that holds the other end of stdin is gone.

A program of its own, because an actor that is killed ends nothing itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    # Processes whose parents have ended become children of this one.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started: list[subprocess.Popen[bytes]] = []

    def end(*_: object) -> None:
        if not started:
            raise SystemExit(128 + signal.SIGTERM)
        started[0].terminate()

    signal.signal(signal.SIGTERM, end)
    command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    started.append(command)

    def watch() -> None:
        while sys.stdin.buffer.read(1):
            pass
        command.kill()

    threading.Thread(target=watch, daemon=True).start()
    code = command.wait()
    _end_rest()
    os._exit(code if code >= 0 else 128 - code)


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
