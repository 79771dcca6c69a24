"""Common parts of the ready trainers, without Ray."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import numpy as np
import pytest

from trainmaster import Convergence, Job, Role
from trainmaster.ray import checkpoint, training
from trainmaster.ray.training import CONVERGED, EXHAUSTED, GO, LEAVE, Gather, Optimizer, Part

pytestmark = pytest.mark.minimum

JOB = Job("a", Role(cpu=1), Role(cpu=1), batch=10, examples=64)


def test_an_epoch_has_each_example_once_in_any_shape() -> None:
    steps = training.steps_per_epoch(JOB)
    assert steps == 7
    for world, epoch in itertools.product((1, 2, 3, 11), (0, 1)):
        shares = [
            training.share(JOB, step, rank, world)
            for step in range(epoch * steps, (epoch + 1) * steps)
            for rank in range(world)
        ]
        assert sorted(np.concatenate(shares)) == list(range(64))
    one = [training.share(JOB, step, 0, 1).tolist() for step in range(7)]
    three = [np.concatenate([training.share(JOB, step, rank, 3) for rank in range(3)]).tolist() for step in range(7)]
    assert one == three, "the global batch of a step doesn't depend on the shape"


def test_the_rule_of_convergence() -> None:
    rule = Convergence(delta=0.01, patience=2, max_epochs=50)
    assert training.finished(rule, [2.0, 1.2, 1.195]) == GO
    assert training.finished(rule, [2.0, 1.2, 1.195, 1.19]) == CONVERGED
    assert training.finished(rule, [1.0 / n for n in range(1, 51)]) == CONVERGED
    assert training.finished(Convergence(delta=0, max_epochs=3), [1, 1, 1]) == EXHAUSTED


def test_the_mean_is_over_examples_and_the_largest_flag_counts() -> None:
    ones = np.ones(2, np.float32)
    whole = training.combine([Part(ones, 1, 4.0, GO), Part(3 * ones, 3, 0.0, LEAVE), Part(9 * ones, 0, 9.0, GO)])
    np.testing.assert_allclose(whole.gradient, [2.5, 2.5])
    assert (whole.weight, whole.loss, whole.flag) == (4, 1.0, LEAVE)


def test_waiting_workers_get_the_same_result() -> None:
    async def join(order: tuple[int, ...]) -> list[Part]:
        gather = Gather()
        parts = [Part(np.full(1, rank, np.float32), 1, float(rank), GO) for rank in range(3)]
        return await asyncio.gather(*(gather.join((1, 0), rank, 3, parts[rank], training.combine) for rank in order))

    for order in itertools.permutations(range(3)):
        joined = asyncio.run(join(order))
        assert all(part is joined[0] for part in joined)
        assert joined[0].loss == pytest.approx(1.0)


def test_momentum_follows_its_definition() -> None:
    optimizer, state = Optimizer(0.1, 0.5), {"params": np.zeros(1, np.float32)}
    for _ in range(2):
        optimizer.apply(state, np.ones(1, np.float32))
    np.testing.assert_allclose(state["params"], [-0.25], rtol=1e-6)
    for bad in ((0.0, 0.0), (0.1, 1.0)):
        with pytest.raises(ValueError, match="must be"):
            Optimizer(*bad)


def test_a_checkpoint_is_complete_or_missing(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    assert checkpoint.newest(folder) is None
    for step in (5, 20, 100):
        with checkpoint.saving(folder, step) as made:
            (made / "x").write_text(str(step))

    def fail() -> None:
        with checkpoint.saving(folder, 200) as made:
            (made / "x").write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    newest = checkpoint.newest(folder)
    assert newest
    assert (newest.name, (newest / "x").read_text(), checkpoint.step_of(newest)) == ("checkpoint-100", "100", 100)
    assert sorted(entry.name for entry in folder.iterdir()) == ["checkpoint-100", "checkpoint-20"]
