"""The programs in docs/ray.md run as they stand there."""

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


@pytest.mark.parametrize(("name", "lines"), [("port", 23), ("loop", 22)])
def test_a_program_of_the_docs_runs(cluster: Cluster, tmp_path: Path, name: str, lines: int) -> None:
    program = PROGRAMS[name]
    assert len(program.splitlines()) <= lines
    daemon = cluster.serve()
    path = tmp_path / f"{name}.py"
    path.write_text(program.replace("localhost:7070", daemon.address))
    env = cluster.env | {"HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, str(path)], env=env, capture_output=True, text=True)
    daemon.end()
    forget()
    assert done.returncode == 0, done.stderr
    loss = float(done.stdout.split()[0])
    assert loss < 0.1, done.stdout
