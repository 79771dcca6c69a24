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
import sys
import threading

_PR_SET_CHILD_SUBREAPER = 36
#: `sigwait` alone takes them. A handler in Python could run too late: a signal just before a wait for a child doesn't
#: interrupt it.
_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    if pid := os.fork():
        os._exit(_wait(pid))
    os.setsid()
    # Processes whose parents have ended become children of this one.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = os.posix_spawnp(
        sys.argv[1],
        sys.argv[1:],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
        setsigmask=[],
        # Python ignores these.
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
    )

    # Unlike its number, it is never another process's.
    handle = os.pidfd_open(command)

    def watch() -> None:
        while os.read(0, 1):
            pass
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    code = _wait(command)
    _end_rest()
    os._exit(code)


def _wait(pid: int) -> int:
    """Passes SIGTERM on to a child until that has ended. Returns its code as a shell says it: 128 and the number of a
    signal.
    """
    while True:
        if signal.sigwait(_SIGNALS) == signal.SIGTERM:
            os.kill(pid, signal.SIGTERM)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
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
