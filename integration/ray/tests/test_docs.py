"""Runs the programs of docs/ray.md unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import forget
from .local_cluster import Cluster

pytestmark = pytest.mark.cluster

DOCS = Path(__file__).parents[3] / "docs/ray.md"
PROGRAMS = dict(re.findall(r"<!-- test: (\w+) -->\n```python\n(.*?)```", DOCS.read_text(), re.DOTALL))
# Lines that a training loop doesn't have before it is ported.
OURS = re.compile(r"^.*(?:trainmaster|\bctx\b|\bJob\(|\btm\b|\bfolder\b|^class ).*$", re.MULTILINE)


@pytest.mark.parametrize(("name", "lines"), [("port", 23), ("loop", 22)])
def test_a_program_of_the_docs_runs(cluster: Cluster, tmp_path: Path, name: str, lines: int) -> None:
    assert len(PROGRAMS[name].splitlines()) <= lines
    assert len(OURS.findall(PROGRAMS[name])) <= 15
    # The first program is for a reader with an own daemon.
    assert run_program(cluster, tmp_path, name, runs_daemon=name == "port") < 0.1


def run_program(cluster: Cluster, folder: Path, name: str, *, runs_daemon: bool = False) -> float:
    """Runs a program, and returns the loss that it prints first. Without an own daemon, it gets a token for drivers."""
    daemon = cluster.serve()
    path = folder / "program.py"
    path.write_text(PROGRAMS[name].replace("localhost:7070", daemon.address))
    env = cluster.env | {"HOME": str(folder)}
    if not runs_daemon:
        env |= {"XDG_STATE_HOME": str(folder), "TRAINMASTER_TOKEN_FILE": str(daemon.token_file)}
    done = subprocess.run([sys.executable, str(path)], env=env, capture_output=True, text=True)
    daemon.end()
    forget()
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[0])
