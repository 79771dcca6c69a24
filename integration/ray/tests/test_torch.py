"""PyTorch models in the ready trainers. Collected only with PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainmaster.ray.torch import TorchModel

from .local_cluster import SOURCES, Cluster
from .test_docs import PROGRAMS, run_program

pytestmark = pytest.mark.minimum

X = torch.linspace(0, 1, 8).unsqueeze(1)


class Line(TorchModel):
    """A model with a parameter that its loss doesn't use."""

    def model(self) -> Any:
        return torch.nn.ModuleDict({"used": torch.nn.Linear(1, 1), "idle": torch.nn.Linear(1, 1)})

    def loss(self, model: Any, indices: Any) -> Any:
        return (model["used"](X[indices]) - 2 * X[indices]).square().mean()


def test_the_gradient_is_that_of_the_loss() -> None:
    line = Line()
    line.setup(None)  # type: ignore[arg-type]
    np.testing.assert_array_equal(line.init(), line.init(), "every worker has the same initial parameters")
    x = X.numpy()[:, 0][[1, 5]]
    loss, gradient = line.gradient(np.array([0.5, 0.25, 7, 7], np.float32), np.array([1, 5]))
    error = 0.5 * x + 0.25 - 2 * x
    assert loss == pytest.approx(float(np.mean(error**2)))
    np.testing.assert_allclose(gradient, [np.mean(2 * error * x), np.mean(2 * error), 0, 0], rtol=1e-5)


@pytest.mark.cluster
def test_the_program_of_the_docs_runs(cluster: Cluster, tmp_path: Path) -> None:
    assert run_program(cluster, tmp_path, "torch") < 0.01


def test_a_loop_that_would_follow_a_batch_runs_outside_a_job() -> None:
    program = PROGRAMS["adaptive"]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={"PYTHONPATH": SOURCES}
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
