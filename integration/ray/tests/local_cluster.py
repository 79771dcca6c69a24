"""A real Ray on this machine: a head and raylets with fake GPUs, and a real daemon. Used by tests and demo.

All processes are ended by id. `ray stop` would end every Ray of the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType

from trainmaster.testing import Daemon, daemon_binary, free_port, wait_for

# The package may not be installed.
SOURCES = str(Path(__file__).resolve().parents[2] / "python/src")
_OBJECT_STORE = 80 << 20
# A raylet ends if one of its two agents takes longer than 15 s to start, which a busy machine can cause.
_TRIES = 8
# Ray waits 30 s for a raylet's registration. Shorter than a test's patience, so that there is another try.
_START = {"RAY_raylet_start_wait_time_s": "240"}
NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}
_MARK = "TRAINMASTER_TEST_CLUSTER"
_SCHEDULER = """
[scheduler]
engine = "optimus"
stability = "off"
[scheduler.parameters]
interval = "3s"
"""


def ray_start(
    log: Path, env: Mapping[str, str], *arguments: str, python: str = sys.executable
) -> subprocess.Popen[bytes]:
    """Starts a raylet or a head. Threads can start several at once."""
    command = [
        str(Path(python).with_name("ray")),
        "start",
        "--block",
        "--node-ip-address=127.0.0.2",
        f"--object-store-memory={_OBJECT_STORE}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
        # Both processes take a second of CPU time to start, and are not used.
        "--include-log-monitor=false",
        "--disable-usage-stats",
        *arguments,
    ]
    for _ in range(_TRIES):
        with _turn(), log.open("wb") as out:
            process = subprocess.Popen(command, env={**env, **_START}, stdout=out, stderr=out, start_new_session=True)
            _prefer(process, -10)
            started = False
            try:
                started = wait_for(f"the raylet of {log}", partial(_started, process, log)) == "yes"
            finally:
                if not started:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if started:
                _prefer(process, 0)
                return process
    raise RuntimeError(f"ray start ended:\n{log.read_text()}")


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """One raylet of this checkout starts at a time, for two reasons: several share the processors, so that each takes
    longer than Ray allows; and a raylet looks for a free socket name before it creates the socket.
    """
    with Path(__file__).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prefer(process: subprocess.Popen[bytes], nice: int) -> None:
    """Sets the niceness of a session against others, if Linux schedules by session and this user may."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{process.pid}/autogroup").write_text(str(nice))


class Cluster:
    """A head and raylets, for a `with` block."""

    def __init__(
        self,
        nodes: int,
        *,
        token_file: Path | None = None,
        poll: str = "300ms",
        dashboard: bool = False,
        python: str = sys.executable,
    ) -> None:
        """With `token_file`, Ray's token authentication is on. `poll` is the daemon's polling interval.

        `python` has Ray, and runs the drivers.
        """
        self._count = nodes
        self._python = python
        self._token_file = token_file
        self._poll = poll
        # Socket paths must be short.
        self.folder = Path(tempfile.mkdtemp(prefix="tm-ray-", dir="/tmp"))
        self.address = f"127.0.0.2:{free_port()}"
        self.dashboard = f"http://127.0.0.1:{free_port()}" if dashboard else None
        self._mark = uuid.uuid4().hex
        self.env = {
            **os.environ,
            _MARK: self._mark,
            "PYTHONPATH": os.pathsep.join([SOURCES, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            **({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file)} if token_file else NO_TOKEN),
            "RAY_DISABLE_IMPORT_WARNING": "1",
            "RAY_ADDRESS": self.address,
            "XDG_STATE_HOME": str(self.folder / "state"),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        # Ray notices a dead raylet by its closed connection. Health checks find other failures.
        self.env |= {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "10"}
        # Its minute is too short on a busy machine.
        self.env["RAY_DASHBOARD_STARTUP_TIMEOUT_S"] = "400"
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._head_arguments: Sequence[str] = ["--no-monitor"]

    def __enter__(self) -> Cluster:
        try:
            self.start_head()
            self.mend()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start_head(self) -> None:
        """Starts the head, always at the same address."""
        self._head = self._start(
            "head",
            "--head",
            f"--port={self.address.rpartition(':')[2]}",
            "--num-cpus=0",
            "--num-gpus=0",
            f"--ray-client-server-port={free_port()}",
            f"--include-dashboard={'true' if self.dashboard else 'false'}",
            f"--dashboard-port={(self.dashboard or ':8265').rpartition(':')[2]}",
            f"--temp-dir={self.folder / 'r'}",
            *self._head_arguments,
        )

    def mend(self) -> None:
        """Starts the missing raylets. Each has its name as the label `name`; all but the first are in one rack."""
        missing = [
            name
            for name in (f"node-{at}" for at in range(self._count))
            if name not in self.nodes or self.nodes[name].poll() is not None
        ]
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._start_node, missing))
        # Sorted by name, in any order of start.
        self.nodes = dict(sorted(self.nodes.items()))

    def _start_node(self, name: str) -> None:
        self.nodes[name] = self._start(
            name,
            f"--address={self.address}",
            "--num-cpus=8",
            "--num-gpus=2",
            # By default, the free memory at the start, which differs between nodes.
            f"--memory={1 << 30}",
            f"--node-name={name}",
            f"--labels=name={name},rack={'r0' if name == 'node-0' else 'r1'}",
        )

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        return ray_start(self.folder / f"{name}.log", self.env, *arguments, python=self._python)

    def kill_node(self, name: str) -> None:
        """Kills a raylet with SIGKILL. Its workers end with it."""
        self._kill_child(self.nodes[name], "raylet")

    def kill_head(self) -> None:
        """Kills the control store with SIGKILL. Raylets and drivers end with it, because Ray keeps it in memory."""
        self._kill_child(self._head, "gcs_server")
        wait_for("the raylets to follow", lambda: all(node.poll() is not None for node in self.nodes.values()))

    def _kill_child(self, parent: subprocess.Popen[bytes], name: str) -> None:
        found = [pid for pid in self.processes() if parent_of(pid) == parent.pid and _name(pid) == name]
        assert len(found) == 1, f"{name}s below {parent.pid}: {found}"
        os.kill(found[0], signal.SIGKILL)
        parent.wait()

    def settings(self) -> str:
        """The adapter's settings for this cluster."""
        token = f'token_file = "{self._token_file}"\n' if self._token_file else ""
        return f'address = "{self.address}"\npoll = "{self._poll}"\nplacement_timeout = "5s"\n{token}'

    def doctor(self, settings: str | None = None) -> str:
        """The output of `trainmaster doctor` for this cluster."""
        path = self.folder / "doctor.toml"
        path.write_text(self.settings() if settings is None else settings)
        command = [daemon_binary(), "doctor", f"--adapter=ray={path}", f"--state-dir={self.folder / 'state'}"]
        return subprocess.run(command, env=self.env, capture_output=True, text=True).stdout

    def serve(self, *arguments: str, adapter: str | None = None) -> Daemon:
        """Starts a daemon for this cluster. It decides often, without stability rules."""
        config = self.folder / "daemon.toml"
        config.write_text(_SCHEDULER)
        settings = self.folder / "ray.toml"
        settings.write_text(self.settings())
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        return Daemon(folder, adapter or f"ray={settings}", f"--config={config}", *arguments, env=self.env)

    def run(self, script: Path, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a driver in its own process."""
        name = "-".join((script.stem, *arguments))[:80].replace("/", "_")
        with (self.folder / f"{name}-{uuid.uuid4().hex[:4]}.log").open("wb") as out:
            command = [self._python, str(script), *arguments]
            return subprocess.Popen(command, env=self.env, stdout=out, stderr=out, start_new_session=True)

    def close(self) -> None:
        """Ends all processes of this cluster, which are found by their mark, and waits for their end."""

        def gone() -> bool:
            # SIGKILL at once: there is nothing to save, and a process that stops gracefully could start others first.
            left = self.processes()
            for pid in left:
                _kill(pid, signal.SIGKILL)
            return not left

        wait_for("the end of all processes", gone)
        if "TRAINMASTER_KEEP_LOGS" not in os.environ:
            shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self) -> list[int]:
        mark = f"{_MARK}={self._mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue  # gone, or another user's
        return found


def _started(process: subprocess.Popen[bytes], log: Path) -> str:
    if process.poll() is not None or _raylet_ended(process.pid):
        return "no"
    return "yes" if "Ray runtime started" in log.read_text() else ""


def _raylet_ended(parent: int) -> bool:
    """Whether `ray start` waits for a raylet that has ended."""
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return any("(raylet) Z" in Path(f"/proc/{child}/stat").read_text() for child in children)
    except OSError:
        return False


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
