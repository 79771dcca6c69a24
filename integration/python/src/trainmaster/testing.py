"""A real daemon for tests of training programs, on this machine.

with Daemon(folder, f"local={folder / 'cluster.toml'}", "--end-jobs") as daemon:
    number, token = daemon.jobs().submit(job)
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from .channel import Jobs

#: Seconds for which tests wait for what has to happen, on a busy machine, too.
PATIENCE = 600.0


def wait_for(what: str, condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Waits until the condition returns a true value, and returns it."""
    limit = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > limit:
            raise TimeoutError(f"waited {patience:g} s for {what}")
        time.sleep(0.1)
    return value


_given: set[int] = set()


def free_port() -> int:
    """A port that no program uses, and that was not returned before.

    None of those that the system gives to connections: one could take it before its server listens.
    """
    while True:
        port = random.randrange(10_000, 20_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


class Daemon:
    """`trainmaster serve`, on the same address after every start."""

    scheme = "http"

    def __init__(self, folder: Path, adapter: str, *arguments: str, env: Mapping[str, str] = os.environ) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.log = folder / "daemon.log"
        listen, state = f"--listen={self.address}", f"--state-dir={folder / 'state'}"
        self._command = [daemon_binary(), "serve", listen, state, f"--adapter={adapter}", *arguments]
        # The folder for the discovery file.
        self._env = {"XDG_STATE_HOME": str(folder), **env}
        # The administrator's token, and one for drivers.
        self.admin_token_file = folder / "state/admin.token"
        self.token_file = folder / "submit.token"
        self.start()
        self.make_token("drivers", self.token_file, "--role=submit", "--tenant=default")

    def start(self) -> None:
        with self.log.open("ab") as log:
            before = log.tell()
            self._process = subprocess.Popen(self._command, env=self._env, stdout=log, stderr=log)

        def serves() -> bool:
            if self._process.poll() is not None:
                raise RuntimeError(f"the daemon ended:\n{self.log.read_text()}")
            # The port is open earlier, but does not answer yet.
            return b"serving at " in self.log.read_bytes()[before:]

        wait_for("the daemon", serves)

    def make_token(self, name: str, file: Path, *role: str) -> None:
        """Creates a token with the administrator's token, which the discovery file names."""
        server = f"--server={self.scheme}://{self.address}"
        command = [daemon_binary(), "token", "create", name, server, f"--out={file}", *role]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def jobs(self) -> Jobs:
        """A client with the drivers' token."""
        return Jobs(self.address, token_file=self.token_file)

    def kill(self) -> None:
        """Kills the daemon with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()


def daemon_binary() -> str:
    """`TRAINMASTER_BIN`, or the program in `PATH`."""
    return os.environ.get("TRAINMASTER_BIN", "trainmaster")
