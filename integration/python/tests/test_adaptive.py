"""Jobs of PyTorch whose batch the scheduler chooses."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainmaster._proto import feed_pb2 as pb
from trainmaster.testing import wait_for
from trainmaster.torch import AdaptiveBatchSampler

from .adaptive_ddp import EXAMPLES, MEAN, WIDTH
from .agents import Agent, Feed, began
from .managers import Local, job_file, torchrun

SCRIPT = Path(__file__).with_name("adaptive_ddp.py")


def sampler(length: int, batch: int, rank: int = 0, world: int = 1, told: str = "", submitted: str = "") -> Any:
    environment = {"TRAINMASTER_BATCH": told, "TRAINMASTER_BATCH_SUBMITTED": submitted}
    environment = {name: value for name, value in environment.items() if value}
    return AdaptiveBatchSampler(length, batch, rank=rank, world=world, environment=environment)


def test_each_example_is_trained_once_a_pass_whatever_the_batches_and_processes_are() -> None:
    draws = random.Random(1)
    for _ in range(100):
        length = draws.randint(20, 200)
        state = sampler(length, 8).state_dict()
        seen: list[int] = []
        while state["rounds"] < 2:
            world = draws.randint(1, 8)
            group = [sampler(length, 8, rank, world) for rank in range(world)]
            for one in group:
                one.load_state_dict(state)
            parts = [iter(one) for one in group]
            rounds = group[0].rounds
            for _ in range(draws.randint(1, 5)):
                if group[0].rounds > rounds:
                    break
                before = group[0].done
                step = [next(part) for part in parts]
                assert all(step), "each process has an example"
                chosen = draws.choice((draws.randint(1, 2 * length), 2**64 - 1))
                for one in group:
                    one.advance()
                    one._take(chosen)
                examples = [at for part in step for at in part]
                seen += examples[: (group[0].done or length) - before]
            states = [one.state_dict() for one in group]
            state = states[0]
            assert all(other == state for other in states)
        assert Counter(seen) == dict.fromkeys(range(length), 2)


def test_a_batch_is_counted_by_what_it_is_worth() -> None:
    one = sampler(160, 32, told="64", submitted="32")
    assert (one.size, one.steps_per_epoch, len(one)) == (64, 5, 3)
    for _ in one:
        one.advance()
    # The noise isn't known: a step counts as one with the submitted batch.
    assert (one.progress, one.rounds, one.done, one.epoch) == (3.0, 1, 0, 0)
    assert one.fields() == {"batch": 64, "step": 3, "steps": 3, "examples": 160, "epoch": 0, "steps_per_epoch": 5}
    assert one.fields()["examples"] == 0, "of the steps since the last report"
    # |G|² = 1 and tr Σ = 64.
    for _ in range(20):
        one._batch.observe(small_sqr=3.0, large_sqr=2.0, small=32, large=64)
    next(iter(one))
    assert one.gain == pytest.approx(2 * (64 + 32) / (64 + 64))
    one.advance()
    assert one.progress == pytest.approx(4.5)
    again = sampler(160, 32, told="64", submitted="32")
    again.load_state_dict(one.state_dict())
    assert (again.progress, again.gain, again.done) == (one.progress, one.gain, 64)
    with pytest.raises(RuntimeError, match="no batch was drawn"):
        one.advance()


def test_a_small_last_batch_counts_by_its_examples() -> None:
    one = sampler(600, 24, told="500", submitted="24")
    # |G|² = 1 and tr Σ = 10,000: nearly all is noise.
    for _ in range(20):
        one._batch.observe(small_sqr=1 + 10000 / 250, large_sqr=1 + 10000 / 500, small=250, large=500)
    gains = []
    for _ in one:
        gains.append(one.gain)
        one.advance()
    assert gains == [pytest.approx(size / 24 * (10000 + 24) / (10000 + size)) for size in (500, 100)]
    assert one.last_size == 500
    # One with fewer examples than the submitted batch counts as one step of it, as without a range.
    one = sampler(50, 24)
    for _ in one:
        assert one.gain == 1.0
        one.advance()
    assert one.progress == 3.0


def test_a_batch_of_several_passes_is_trained_in_one_of_them() -> None:
    environment = {"TRAINMASTER_BATCH": "64", "TRAINMASTER_BATCH_LOCAL": "8", "TRAINMASTER_BATCH_PASSES": "4"}
    one = AdaptiveBatchSampler(100, 64, rank=0, world=2, environment=environment)
    assert one.size == 16
    assert len(next(iter(one))) == 8
    # Of other processes than it was chosen for.
    assert AdaptiveBatchSampler(100, 64, rank=0, world=1, environment=environment).size == 8


def test_a_batch_of_more_than_all_examples_is_a_pass() -> None:
    one = sampler(50, 100)
    for _ in one:
        assert (one.gain, one.size) == (1.0, 50)
        one.advance()
    assert (one.epoch, one.rounds, one.steps_per_epoch) == (1, 1, 1)


def test_a_checkpoint_of_another_submitted_batch_is_converted() -> None:
    one = sampler(100, 10)
    for _ in one:
        one.advance()
    other = sampler(100, 20)
    other.load_state_dict(one.state_dict())
    assert (one.progress, other.progress, other.epoch, other.size) == (10.0, 5.0, 1, 20)


def test_bad_numbers_are_named() -> None:
    with pytest.raises(ValueError, match="batch: 2 must be from 3, the number of processes, to 2"):
        sampler(2, 2, 0, 3)
    with pytest.raises(ValueError, match="the batch's submitted: 0 must be 1 or more"):
        sampler(10, 5, submitted="0")
    with pytest.raises(ValueError, match="TRAINMASTER_BATCH: 'x' must be a whole number"):
        sampler(10, 5, told="x")
    one = sampler(100, 10)
    state = one.state_dict()
    with pytest.raises(ValueError, match="length: the checkpoint has 99, this sampler 100"):
        one.load_state_dict(state | {"length": 99})
    wrong: list[dict[str, Any]] = [
        {"rounds": -1},
        {"done": 100},
        {"done": None},
        {"submitted": 0},
        {"progress": float("nan")},
        {"noise": [0.0, 0.0]},
        {"noise": [0.0, 0.0, float("inf")]},
        {"noise": None},
    ]
    for change in wrong:
        with pytest.raises(ValueError, match="this isn't the checkpoint of a sampler with 100 examples"):
            one.load_state_dict(state | change)
    assert one.state_dict() == state
    with pytest.raises(ValueError, match="model: Linear must be a DistributedDataParallel"):
        one.follow(torch.nn.Linear(1, 1))


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_one_process_measures_noise_between_two_steps() -> None:
    net = torch.nn.Linear(WIDTH, 1, bias=False)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    one = sampler(6000, 10, told="20", submitted="10")
    one.follow(model, optimizer)
    examples = MEAN + torch.randn(6000, WIDTH, generator=torch.Generator().manual_seed(1))
    for at in one:
        before = net.weight.detach().clone()
        optimizer.zero_grad()
        model(examples[at]).mean().backward()
        gain = one.gain
        optimizer.step()
        assert torch.allclose(before - net.weight, 0.5 * gain * examples[at].mean(0), atol=1e-4)
        assert optimizer.param_groups[0]["lr"] == 0.5, "as the script set it"
        one.advance()
    fields = one.fields()
    assert fields["grad_sqr"] == pytest.approx(WIDTH * MEAN**2, rel=0.25)
    assert fields["grad_var"] == pytest.approx(WIDTH, rel=0.25)
    assert one.gain == pytest.approx(2 * (4 + 10) / (4 + 20), rel=0.1)
    with pytest.raises(ValueError, match="trained by 1 processes, not by 2"):
        sampler(100, 10, 0, 2).follow(model)


@pytest.mark.usefixtures("alone")
def test_a_step_that_fails_leaves_the_learning_rate_and_two_backward_passes_measure_nothing() -> None:
    net = torch.nn.Linear(WIDTH, 1, bias=False, dtype=torch.float64)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    one = sampler(2000, 10, told="20", submitted="10")
    one.follow(model, optimizer)

    def broken() -> float:
        raise ArithmeticError

    for _ in range(2):
        with pytest.raises(ArithmeticError):
            optimizer.step(broken)
    examples = MEAN + torch.randn(2000, WIDTH, dtype=torch.float64)
    for at in one:
        for half in (at[:10], at[10:]):
            model(examples[half]).mean().backward()
        optimizer.step()
        one.advance()
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert "grad_sqr" not in one.fields()
    for at in one:
        optimizer.zero_grad()
        model(examples[at]).mean().backward()
        optimizer.step()
        one.advance()
    assert one.fields()["grad_sqr"] == pytest.approx(WIDTH * MEAN**2, rel=0.3)


@pytest.mark.usefixtures("alone")
def test_other_optimizers_take_the_root_of_the_batch() -> None:
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    one = sampler(100, 10, told="40", submitted="10")
    one.follow(model, optimizer)
    rates: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    next(iter(one))
    model(torch.ones(4, 1)).sum().backward()
    optimizer.step()
    assert rates == [0.2]
    assert optimizer.param_groups[0]["lr"] == 0.1


def trained(folder: Path, rank: int) -> list[list[str]]:
    """A process's steps: passes before it, batch, and own examples."""
    path = folder / f"trained-{rank}"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_processes_change_their_batch_at_the_same_step(tmp_path: Path) -> None:
    feed, agents = Feed(), list[Agent]()
    # Agents that start later can be told another batch.
    told = [{"TRAINMASTER_BATCH": size, "TRAINMASTER_BATCH_SUBMITTED": "24"} for size in ("24", "30", "36")]

    def train(batch: int) -> None:
        """Waits for some steps with this batch."""
        wait_for(
            f"steps with {batch}", lambda: sum(int(size) == batch for _, size, _ in trained(tmp_path, 0)[-40:]) == 40
        )

    try:
        feed.plan(0, 1)
        agents += [Agent(feed, tmp_path, index, str(SCRIPT), **told[index]) for index in (0, 1)]
        train(24)
        feed.choose(pb.Batch(size=96, local=48, passes=1, submitted=24))
        train(96)
        # A third process. The scheduler's next batch is for three.
        feed.plan(0, 1, 2)
        agents.append(Agent(feed, tmp_path, 2, str(SCRIPT), **told[2]))
        wait_for("the third process", lambda: trained(tmp_path, 2))
        feed.choose(pb.Batch(size=630, local=30, passes=7, submitted=24))
        # More than one pass isn't made.
        train(90)
    finally:
        for agent in agents:
            agent.end()
        feed.go_away()
    everything = [trained(tmp_path, rank) for rank in range(3)]
    assert [world for _, world, _ in began(tmp_path)] == [2, 3]
    counts = Counter[tuple[int, int]]()
    whole = min(int(rank_lines[-1][0]) for rank_lines in everything)
    assert whole > 2
    for rank_lines in everything:
        for rounds, _, numbers in rank_lines:
            counts.update((int(rounds), int(at)) for at in numbers.split(","))
    # Each of the passes that all have completed.
    wrong = {at: n for at, n in counts.items() if at[0] < whole and n != 1}
    assert not wrong
    assert sum(at[0] < whole for at in counts) == whole * EXAMPLES
    last = feed.reported[-1]
    assert last.batch == 90
    assert last.grad_sqr == pytest.approx(WIDTH * MEAN**2, rel=0.3)
    assert last.grad_var == pytest.approx(WIDTH, rel=0.3)
    assert {24, 96, 90} == {progress.batch for progress in feed.reported if progress.batch}
    # With this noise, of 4 examples, a step with 96 is worth 1.12 of those with 24.
    steps = len(everything[0])
    assert 0.9 * steps < last.step < 1.12 * steps


def test_the_scheduler_chooses_larger_batches_for_noisy_gradients(binary: str, tmp_path: Path) -> None:
    # The gradient's squared norm is 0.02, and an example's variance 8.
    env = {"MEAN": "0.05", "EPOCHS": "40"}
    file = tmp_path / "job.toml"
    text = job_file("adaptive", tmp_path, torchrun(SCRIPT), 2, 2, "cpu = 1", env)
    file.write_text(f"{text}batch = {{ size = 24, max = 300 }}\nepochs = 40\nexamples = {EXAMPLES}\n")
    site = Local(tmp_path / "manager")
    with site:
        site.run("submit", str(file))
        wait_for("its end", lambda: site.state("adaptive") == "completed")
    steps = [trained(tmp_path, rank) for rank in (0, 1)]
    sizes = [int(size) for _, size, _ in steps[0]]
    assert sizes == [int(size) for _, size, _ in steps[1]]
    assert sizes[0] == 24
    assert sizes[-1] > 24, sorted(Counter(sizes).items())
    # As much work as 40 passes, with fewer steps.
    assert len(sizes) < 40 * EXAMPLES / 24
