"""The loss of jobs that grow, shrink and lose a process, beside undisturbed trainings, on each manager."""

from __future__ import annotations

import os
import signal
import subprocess
from functools import cache
from pathlib import Path

import pytest

from trainmaster.testing import PATIENCE, wait_for

pytest.importorskip("torch")

from .managers import ENV, Local, Manager, Ray, Slurm, Yarn, torchrun
from .stacks.common import BATCH
from .stacks.models import EXAMPLES, MODELS
from .test_stacks import HERE, STACKS, worlds

SCRIPT = HERE / "stacks/train_model.py"
EPOCH = EXAMPLES // BATCH
SEEDS = range(3)
WRAPPERS = ["ddp", "fsdp"] if "fsdp" in STACKS else ["ddp"]
CASES = [("gpt", wrapper) for wrapper in WRAPPERS] + [("resnet18", "ddp")]


def losses(folder: Path) -> list[float]:
    """The loss of each step. Of a step that was repeated after a failure, the last one."""
    lines = (folder / "losses").read_text().splitlines() if (folder / "losses").exists() else []
    found = {int(step): float(loss) for step, loss in map(str.split, lines)}
    assert sorted(found) == list(range(1, len(found) + 1)), f"steps of {folder} are missing"
    return [found[step] for step in sorted(found)]


def curve(folder: Path) -> list[float]:
    """The mean loss of each epoch."""
    steps = losses(folder)
    return [sum(steps[at : at + EPOCH]) / EPOCH for at in range(0, len(steps), EPOCH)]


@cache
def undisturbed(folder: Path, model: str) -> list[list[float]]:
    """The curves of trainings by one process with PyTorch's own rendezvous, one for each seed."""
    folders = [folder / f"{model}-{seed}" for seed in SEEDS]
    runs = []
    try:
        for seed, here in enumerate(folders):
            here.mkdir(exist_ok=True)
            (here / "hurry").touch()
            command = [*torchrun(SCRIPT).split(), model, "ddp", str(seed)]
            command.insert(1, "--standalone")
            with (here / "log").open("wb") as log:
                environment = {**os.environ, **ENV}
                runs.append(subprocess.Popen(command, cwd=here, env=environment, stdout=log, stderr=log))
        for here, run in zip(folders, runs, strict=True):
            assert run.wait(PATIENCE) == 0, (here / "log").read_text()
    finally:
        for run in runs:
            run.terminate()
            run.wait()
    return [curve(here) for here in folders]


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("alone")


def process_of(folder: Path, rank: int) -> int:
    """The training process of a rank."""
    for entry in Path("/proc").iterdir():
        try:
            command, variables = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes().split(b"\0")
            trains = SCRIPT.name.encode() in command and f"RANK={rank}".encode() in variables
            if trains and (entry / "cwd").readlink() == folder:
                return int(entry.name)
        except OSError:
            continue
    return 0


@pytest.mark.parametrize(("model", "wrapper"), CASES)
@pytest.mark.parametrize("manager", [Local, Slurm, Yarn, Ray])
def test_the_loss_is_that_of_an_undisturbed_training(
    binary: str, tmp_path: Path, alone: Path, manager: type[Manager], model: str, wrapper: str
) -> None:
    net = tmp_path / "net"
    net.mkdir()
    with manager(tmp_path / "manager") as site:

        def trains(size: int, restarts: int) -> None:
            wait_for(f"{size} ranks", lambda: len(worlds(net)) > restarts and worlds(net)[-1] == size)
            before = len(losses(net))
            wait_for("steps", lambda: len(losses(net)) > before + 3)

        try:
            first = site.occupy("first", tmp_path)
            wait_for("the first job", lambda: site.state("first") == "running")
            site.submit("net", net, f"{torchrun(SCRIPT)} {model} {wrapper} 0", 1, 3)
            trains(1, 0)
            first.touch()
            trains(3, 1)
            site.crash()
            started = len(worlds(net))
            victim = wait_for("a process to kill", lambda: process_of(net, 1))
            os.kill(victim, signal.SIGKILL)
            trains(3, started)
            second = site.occupy("second", tmp_path)
            trains(1, 3)
            second.touch()
            trains(3, 4)
            (net / "hurry").touch()
            wait_for("the end", lambda: site.state("net") == "completed")
        except (TimeoutError, AssertionError) as error:
            raise AssertionError(f"{error}; worlds {worlds(net)}\n{site.logs()}") from None
    _, _, _, epochs = MODELS[model]
    assert (net / "complete").read_text() == str(epochs * EPOCH)
    found, others = curve(net), undisturbed(alone, model)
    apart = [max(known) - min(known) for known in zip(*others, strict=True)]
    # That of the same seed. Sums in another order round differently, which grows from step to step.
    differences = [abs(loss - same) for loss, same in zip(found, others[0], strict=True)]
    assert max(differences) <= max(apart) / 5, f"{found} beside {others}"
    print(f"{manager.__name__}, {model}, {wrapper}: {max(differences):.4f}, between seeds {max(apart):.4f}")
