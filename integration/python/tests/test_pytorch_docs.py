"""Runs docs/pytorch.md on a real daemon: a script grows and shrinks, and loses no step."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("torch")

from trainmaster.testing import PATIENCE, Daemon, daemon_binary, wait_for

from .conftest import ROOT

PAGE = (ROOT / "docs/pytorch.md").read_text()
# While this file isn't there, the second job runs.
END = "end"
BLOCKS = dict(re.findall(r"<!-- test: (\w+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture
def daemon(binary: str, tmp_path: Path) -> Iterator[Daemon]:
    (tmp_path / "cluster.toml").write_text('[[server]]\nname = "a"\ncpu = 3\n')
    settings = tmp_path / "daemon.toml"
    settings.write_text(BLOCKS["settings"])
    adapter = f"local={tmp_path / 'cluster.toml'}"
    with Daemon(tmp_path, adapter, f"--config={settings}", "--end-jobs") as daemon:
        yield daemon


class Shell:
    """A terminal of the page's reader."""

    def __init__(self, folder: Path, daemon: Daemon) -> None:
        path = [str(Path(daemon_binary()).resolve().parent), str(Path(sys.executable).parent), os.environ["PATH"]]
        self._folder = folder
        self._env = {
            **os.environ,
            "PATH": os.pathsep.join(path),
            "TRAINMASTER_SERVER": f"http://{daemon.address}",
            "XDG_STATE_HOME": str(folder),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, line: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            shlex.split(line),
            cwd=self._folder,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, line: str) -> str:
        done = self.start(line)
        printed, _ = done.communicate()
        assert done.returncode == 0, printed
        return printed


def test_the_script_grows_and_shrinks_and_loses_no_step(daemon: Daemon, tmp_path: Path) -> None:
    # A checkpoint of this script takes so long that nothing is done between its end and the change.
    save = 'os.replace("checkpoints/new.pt", LAST)'
    script = BLOCKS["script"].replace(save, f"{save}; time.sleep(2)")
    note = '    with open("steps", "a") as file:\n        file.write(f"{rank} {world} {step}\\n")\n'
    # Alone, the first rank is too slow to end before it grows again.
    note += "    if world == 1:\n        time.sleep(1)\n"
    script = script.replace("    step += 1\n", "    step += 1\n" + note)
    (tmp_path / "train.py").write_text(script)
    shell = Shell(tmp_path, daemon)
    net = shell.start(BLOCKS["run"].strip())

    def steps() -> list[tuple[int, ...]]:
        path = tmp_path / "steps"
        return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []

    def worlds() -> list[int]:
        """The world sizes of rank 0, each once in a row."""
        sizes = [world for rank, world, _ in steps() if rank == 0]
        return [size for at, size in enumerate(sizes) if at == 0 or sizes[at - 1] != size]

    # Before its first checkpoint, a job changes at once, and loses what it did.
    wait_for("three ranks and a checkpoint", lambda: worlds() == [3] and (tmp_path / "checkpoints/last.pt").exists())
    second, jobs, explain = BLOCKS["second"].strip().splitlines()
    assert second.endswith("-- sleep 20")
    other = shell.start(second.replace("sleep 20", f"sh -c 'until [ -e {END} ]; do sleep 0.2; done'"))
    wait_for("one rank", lambda: worlds() == [3, 1])
    wait_for("the second job to run", lambda: re.search(r"other +running", shell.run(jobs)))
    assert "planned 1w+0p" in shell.run(explain)
    # Jobs and their `run` survive the daemon.
    daemon.kill()
    daemon.start()
    (tmp_path / END).touch()
    assert other.wait(PATIENCE) == 0, other.communicate()[0]
    printed, _ = net.communicate(timeout=PATIENCE)
    assert net.returncode == 0, printed
    assert worlds() == [3, 1, 3], printed
    done = [step for rank, _, step in steps() if rank == 0]
    assert done[-1] == 600
    assert all(after == before + 1 for before, after in pairwise(done)), f"steps were lost or done twice: {done}"
    assert "rank 2 of 3 continues at step 0" in printed
    assert re.search(r"trainmaster: job 1: completed", printed), printed
    assert "trainmaster: the daemon is away; job 1 goes on" in printed


def test_the_page_has_what_the_tests_run() -> None:
    assert list(BLOCKS) == [
        *("settings", "script", "run", "second", "report"),
        *("torch", "sampler", "adaptive", "hf", "lightning", "deepspeed", "ray", "stop"),
    ]
    # The lines run in `plain_loop.py` and test_torchrun.py; here they only have to compile.
    compile(BLOCKS["report"], "report", "exec")
    compile("while True:\n" + BLOCKS["stop"], "stop", "exec")
    # Ray's test_torchrun.py runs such a driver.
    compile(BLOCKS["ray"], "ray", "exec")
    # test_stacks.py and test_adaptive.py run what these call.
    stacks = {"torch": "plain", "sampler": "plain", "hf": "hf", "lightning": "lightning", "deepspeed": "deepspeed"}
    scripts = {block: f"stacks/train_{stack}.py" for block, stack in stacks.items()} | {"adaptive": "adaptive_ddp.py"}
    for block, script in scripts.items():
        run = (ROOT / "integration/python/tests" / script).read_text()
        called = set(re.findall(r"(?:trainmaster\.|sampler\.)[\w.]+\(", BLOCKS[block]))
        assert called, block
        assert {name for name in called if name not in run} == set(), block
