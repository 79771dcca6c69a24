"""Trainmaster on this machine, YARN, Slurm and Ray, with room for three workers: for jobs that a test submits.

All use `drf` with a short interval, so that the sizes of jobs depend on which jobs there are alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import pytest

from trainmaster.testing import Daemon, daemon_binary, free_port, wait_for

from .conftest import ROOT

if TYPE_CHECKING:
    from local_cluster import Cluster

#: Environment of all training programs.
ENV = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "integration/python"), os.environ.get("PYTHONPATH")])),
}
#: The environment with Ray finds PyTorch in that of these tests.
RAY_PYTHON = os.environ.get("TRAINMASTER_RAY_PYTHON") or str(ROOT / "target/ray-venv/bin/python")
SETTINGS = """
[scheduler]
engine = "drf"
stability = "off"
[scheduler.parameters]
interval = "3s"
"""


class Manager(ABC):
    """A manager with Trainmaster. `with` ends all that it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "trainmaster.toml").write_text(SETTINGS)

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """Ends what was started, also if only a part was."""

    @abstractmethod
    def submit(self, name: str, folder: Path, command: str, least: int, most: int) -> None:
        """Submits a job of all-reduce whose workers run the command in the folder."""

    def occupy(self, name: str, folder: Path) -> Path:
        """Submits a job of two workers, which ends once the returned file is there."""
        end = folder / f"{name}.end"
        self.submit(name, folder, f"sh -c 'until [ -e {end} ]; do sleep 0.2; done'", 2, 2)
        return end

    @abstractmethod
    def state(self, name: str) -> str:
        """`completed` once a job is complete."""

    @abstractmethod
    def crash(self) -> None:
        """Kills the scheduler, and starts it again."""

    @abstractmethod
    def logs(self) -> str:
        """What the scheduler and the manager printed last."""

    def __enter__(self) -> Manager:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def tails(folder: Path, *patterns: str) -> str:
    """The last lines of these files."""
    found = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
    return "\n".join(f"== {path}\n" + "\n".join(path.read_text().splitlines()[-30:]) for path in found)


def job_file(
    name: str, folder: Path, command: str, least: int, most: int, unit: str, more: Mapping[str, str] | None = None
) -> str:
    """A job of all-reduce, whose programs get `more` variables."""
    sizes = f"min = {least}, max = {most}, requested = {least}"
    env = ", ".join(f"{key} = {json.dumps(value)}" for key, value in (ENV | dict(more or {})).items())
    return (
        f'name = "{name}"\nmode = "allreduce"\nworkdir = "{folder}"\nenv = {{ {env} }}\n'
        f'worker = {{ {unit}, memory = "256MiB", {sizes}, command = {json.dumps(command)} }}\n'
    )


class Local(Manager):
    """A server with three CPUs."""

    unit = "cpu = 1"
    daemon: Daemon | None = None

    def start(self) -> None:
        (self.folder / "cluster.toml").write_text('[[server]]\nname = "a"\ncpu = 3\nmemory = "8GiB"\n')
        self._serve(f"local={self.folder / 'cluster.toml'}", "--end-jobs")

    def _serve(self, adapter: str, *arguments: str) -> None:
        self.daemon = Daemon(self.folder, adapter, f"--config={self.folder / 'trainmaster.toml'}", *arguments)

    def run(self, *arguments: str) -> str:
        assert self.daemon, "it was started"
        env = {
            **os.environ,
            "TRAINMASTER_SERVER": f"http://{self.daemon.address}",
            "XDG_STATE_HOME": str(self.folder),
            "TRAINMASTER_YARN": str(self.folder / "yarn.toml"),
            "USER": "tester",
        }
        done = subprocess.run([daemon_binary(), *arguments], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + self.logs()
        return done.stdout

    def submit(self, name: str, folder: Path, command: str, least: int, most: int) -> None:
        file = self.folder / f"{name}.toml"
        file.write_text(job_file(name, folder, command, least, most, self.unit))
        self._submit(file)

    def _submit(self, file: Path) -> None:
        self.run("submit", str(file))

    def state(self, name: str) -> str:
        jobs = json.loads(self.run("jobs", "--all", "--json"))["jobs"]
        return next((str(job["state"]) for job in jobs if job["name"] == name), "unknown")

    def crash(self) -> None:
        assert self.daemon, "it was started"
        self.daemon.kill()
        self.daemon.start()

    def logs(self) -> str:
        return tails(self.folder, "daemon.log", "state/logs/**/*")

    def stop(self) -> None:
        if self.daemon:
            self.daemon.end()


class Yarn(Local):
    """Two NodeManagers with three GPUs, which YARN only counts, and Trainmaster's ApplicationMaster."""

    _lock: TextIO | None = None

    unit = "gpu = 1, cpu = 1"

    def start(self) -> None:
        # YARN's own tests build its jars meanwhile, with this lock.
        if lock := os.environ.get("TRAINMASTER_MAVEN"):
            self._lock = open(lock)  # noqa: SIM115 # held until the end
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        adapter = f"127.0.0.1:{free_port()}"
        here = ROOT / "integration/yarn"
        cluster = self.folder / "yarn"
        env = {
            **os.environ,
            "NODES": "4096:12:2 4096:12:1",
            "PROPERTIES": f"trainmaster.yarn.checkpoints={self.folder}",
            # Time to save.
            "NM_PROPERTIES": "yarn.nodemanager.sleep-delay-before-sigkill.ms=5000",
        }
        started = subprocess.run(
            [here / "cluster/start", cluster, adapter],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert started.returncode == 0, started.stderr
        said = dict(line.removeprefix("export ").split("=", 1) for line in (cluster / "env").read_text().splitlines())
        (master,) = (here / "master/target").glob("trainmaster-yarn-master.jar")
        classpath = f"{master}:{said['HADOOP_CONF_DIR']}:{shlex.split(said['TRAINMASTER_YARN_CLASSPATH'])[0]}"
        (self.folder / "yarn.toml").write_text(
            f'listen = "{adapter}"\nresourcemanager = "{said["TRAINMASTER_YARN_WEB"]}"\n'
            f'token_file = "{cluster / "plug-ins.token"}"\nbandwidth = "100Gbit"\n'
            f'[master]\nclasspath = "{classpath}"\nmemory = "256MiB"\n'
        )
        self._serve(f"yarn={self.folder / 'yarn.toml'}")

    def _submit(self, file: Path) -> None:
        self.run("yarn", "submit", str(file))

    def logs(self) -> str:
        return tails(self.folder, "daemon.log", "yarn/log/*.log", "yarn/nm*/logs/**/std*")

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            if (self.folder / "yarn").exists():
                subprocess.run([ROOT / "integration/yarn/cluster/stop", self.folder / "yarn"], check=True)
            if self._lock:
                self._lock.close()


class Ray(Local):
    """Three nodes of Ray, of which a worker takes all CPUs. Each job has a driver."""

    _cluster: Cluster | None = None

    unit = "cpu = 8"

    def start(self) -> None:
        if not Path(RAY_PYTHON).exists():
            pytest.skip("Ray is missing: scripts/install python ray")
        # Here, because this module is also imported without the folder of Ray's tests in the path.
        from local_cluster import Cluster

        self._cluster = Cluster(3, python=RAY_PYTHON).__enter__()
        settings = self.folder / "ray.toml"
        settings.write_text(self._cluster.settings())
        self._serve(f"ray={settings}")

    def _submit(self, file: Path) -> None:
        assert self._cluster, "it was started"
        assert self.daemon, "it was started"
        driver = Path(__file__).with_name("ray_driver.py")
        self._cluster.run(driver, str(file), self.daemon.address, str(self.daemon.token_file))

    def logs(self) -> str:
        drivers = tails(self._cluster.folder, "ray_driver*.log") if self._cluster else ""
        return tails(self.folder, "daemon.log") + drivers

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            if self._cluster:
                self._cluster.close()


class Slurm(Manager):
    """A node with three GPUs, which Slurm only counts. The scheduler is a plugin of slurmctld."""

    def __init__(self, folder: Path) -> None:
        # pytest's folders are for one user alone, and munged runs as its own.
        scratch = Path(tempfile.mkdtemp(prefix="tm-slurm"))
        scratch.chmod(0o755)
        folder = scratch / "slurm"
        super().__init__(folder)
        self._ids: dict[str, str] = {}
        self._env = {**os.environ, "SLURM_CONF": str(folder / "etc/slurm.conf")}

    def start(self) -> None:
        here = ROOT / "integration/slurm"
        # Linked from what a test of all packages has built. Slurm's own tests link theirs meanwhile.
        plugins = ROOT / "target/slurm-python"
        built = subprocess.run(
            ["make", "-C", here, "PROFILE=dev", "PACKAGES=--workspace --lib --tests", f"OUT={plugins}"],
            capture_output=True,
            text=True,
        )
        assert built.returncode == 0, built.stderr
        port = free_port()
        (self.folder / "etc").mkdir()
        feed = f'[feed]\nlisten = "127.0.0.1:{port}"\n[slurm]\nfeed = "http://localhost:{port}"\nlease = "20s"\n'
        (self.folder / "etc/trainmaster.toml").write_text('poll = "300ms"\n' + feed + SETTINGS)
        env = {
            **os.environ,
            "EXTRA": "SlurmctldPlugstack=trainmaster\nJobSubmitPlugins=trainmaster",
            "PLUGINS": str(plugins),
        }
        started = subprocess.run(
            [here / "cluster/start", self.folder, "1", "3"], env=env, capture_output=True, text=True
        )
        assert started.returncode == 0, started.stderr + self.logs()

    def _slurm(self, *command: str) -> str:
        done = subprocess.run(command, env=self._env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, name: str, folder: Path, command: str, least: int, most: int) -> None:
        keys = {
            "mode": "allreduce",
            "launcher": "torchrun" if "torchrun" in command else "none",
            "worker.requested": least,
            "worker.min": least,
            "worker.max": most,
            "worker.cpu": 1,
            "worker.gpu": 1,
        }
        exports = [f"export {key}={shlex.quote(value)}" for key, value in ENV.items()]
        lines = [
            "#!/bin/bash",
            f"#SBATCH -N 1 -n {least} --gpus-per-node={least} --open-mode=append",
            *(f"#TRAINMASTER {key} = {value}" for key, value in keys.items()),
            *exports,
            f"export PATH={ROOT / 'integration/slurm'}:$PATH TRAINMASTER_CHECKPOINT_DIR={folder / 'checkpoints'}",
            f"cd {folder} || exit 1",
            f"trainmaster-step -- {command}",
        ]
        script = self.folder / f"{name}.sh"
        script.write_text("\n".join(lines) + "\n")
        out = str(self.folder / f"{name}.out")
        self._ids[name] = self._slurm("sbatch", "--parsable", "-J", name, "-o", out, str(script)).strip()

    def state(self, name: str) -> str:
        shown = self._slurm("scontrol", "-o", "show", "job", self._ids[name])
        return shown.split("JobState=")[1].split()[0].lower()

    def crash(self) -> None:
        # Slurm would repeat changes that it hasn't saved. It saves this job with all that it knows before.
        mark = f"saved-{time.monotonic_ns()}"
        self._slurm("sbatch", "-H", "-J", mark, "-o", "/dev/null", "--wrap", "true")
        saved = self.folder / "state/job_state"
        wait_for("Slurm to save its jobs", lambda: saved.exists() and mark.encode() in saved.read_bytes())
        file = self.folder / "run/slurmctld.pid"
        pid = int(file.read_text())
        os.kill(pid, signal.SIGKILL)
        wait_for("slurmctld to end", lambda: not Path(f"/proc/{pid}").exists())
        self._slurm("slurmctld", "-f", str(self.folder / "etc/slurm.conf"))
        wait_for("slurmctld", lambda: subprocess.run(["scontrol", "ping"], env=self._env).returncode == 0)
        # For the script that stops the cluster.
        with (self.folder / "run/pids").open("a") as pids:
            pids.write(f"{int(file.read_text())}\n")

    def logs(self) -> str:
        return tails(self.folder, "*.out", "log/*.log")

    def stop(self) -> None:
        subprocess.run([ROOT / "integration/slurm/cluster/stop", self.folder], check=True)
        if "TRAINMASTER_KEEP_LOGS" not in os.environ:
            shutil.rmtree(self.folder.parent)


def torchrun(script: Path) -> str:
    return f"{Path(sys.executable).with_name('torchrun')} {script}"
