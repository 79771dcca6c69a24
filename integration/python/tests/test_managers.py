"""The loops of all stacks on each manager, with real schedulers: jobs grow and shrink as others come and go."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from trainmaster.testing import wait_for

pytest.importorskip("torch")

from .agents import began
from .managers import Local, Manager, Slurm, Yarn, torchrun
from .stacks.common import BATCH, EPOCHS, EXAMPLES, WHOLE
from .test_stacks import HERE, PASSES, STACKS, trained, worlds

MANAGERS: list[type[Manager]] = [Local, Slurm, Yarn]


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("manager", MANAGERS)
def test_each_example_is_trained_once_an_epoch(binary: str, tmp_path: Path, manager: type[Manager], stack: str) -> None:
    net = tmp_path / "net"
    net.mkdir()
    with manager(tmp_path / "manager") as site:

        def trains(*sizes: int) -> None:
            wait_for(f"ranks of {sizes}", lambda: worlds(net) == list(sizes))
            before = trained(net)
            wait_for("steps", lambda: trained(net) > before + 3 * BATCH)

        try:
            first = site.occupy("first", tmp_path)
            wait_for("the first job", lambda: site.state("first") == "running")
            site.submit("net", net, torchrun(HERE / f"stacks/train_{stack}.py"), 1, 3)
            trains(1)
            first.touch()
            trains(1, 3)
            site.crash()
            second = site.occupy("second", tmp_path)
            trains(1, 3, 1)
            second.touch()
            trains(1, 3, 1, 3)
            (net / "hurry").touch()
            wait_for("the end", lambda: site.state("net") == "completed")
        except (TimeoutError, AssertionError) as error:
            raise AssertionError(f"{error}; worlds {worlds(net)}\n{site.logs()}") from None
    examples = WHOLE if stack in PASSES else EXAMPLES
    steps = -(-examples // BATCH) * EPOCHS
    assert (net / "complete").read_text() == str(steps)
    starts = [step for rank, _, step in began(net) if rank == 0]
    assert 0 == starts[0] < starts[1] < starts[2] < starts[3] < steps
    counts = Counter(int(line) for path in net.glob("trained-*") for line in path.read_text().splitlines())
    assert counts == dict.fromkeys(range(examples), EPOCHS), {at: n for at, n in counts.items() if n != EPOCHS}
