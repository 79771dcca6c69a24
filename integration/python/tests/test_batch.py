"""Jobs whose batch the scheduler may choose."""

import random
from typing import Any

import pytest

from trainmaster import AdaptiveBatch
from trainmaster._proto import feed_pb2 as pb
from trainmaster.tally import Report, Tally


def gradients(rng: random.Random, mean: list[float], deviation: float, examples: int) -> list[float]:
    """The mean gradient of some examples."""
    return [g + rng.gauss(0, deviation / examples**0.5) for g in mean]


def take(tally: Tally) -> pb.Progress:
    progress = tally.take()
    assert progress is not None
    return progress


def test_noise_is_estimated_from_gradients_of_two_sizes() -> None:
    rng = random.Random(3)
    mean, deviation, replicas, share = [0.1] * 50, 0.5, 4, 16
    batch = AdaptiveBatch(replicas * share, {})
    assert batch.noise is None
    assert (batch.gain, batch.fields()) == (1.0, {"batch": 64})
    for _ in range(400):
        parts = [gradients(rng, mean, deviation, share) for _ in range(replicas)]
        whole = [sum(column) / replicas for column in zip(*parts, strict=True)]
        small = sum(sum(g * g for g in part) for part in parts) / replicas
        batch.observe(small, sum(g * g for g in whole), share)
    assert batch.noise is not None
    sqr, var = batch.noise
    assert sqr == pytest.approx(50 * 0.1**2, rel=0.25)
    assert var == pytest.approx(50 * 0.5**2, rel=0.25)


def test_a_step_with_a_larger_batch_is_worth_its_gain() -> None:
    told = {"": "256", "_SUBMITTED": "64", "_LOCAL": "32", "_PASSES": "2"}
    batch = AdaptiveBatch(1, {f"TRAINMASTER_BATCH{name}": value for name, value in told.items()})
    assert (batch.size, batch.submitted, batch.local, batch.passes) == (256, 64, 32, 2)
    assert batch.gain == 1.0, "nothing is known of the noise yet"
    # |g|² = 1 and tr Σ = 128 lead to 1 + 128/64 and 1 + 128/256.
    for _ in range(13):
        batch.observe(small_sqr=3.0, large_sqr=1.5, small=64)
    assert batch.noise is None, "a few steps can be far off"
    batch.observe(small_sqr=3.0, large_sqr=1.5, small=64)
    assert batch.noise == pytest.approx((1.0, 128.0))
    assert batch.gain == pytest.approx(4 * 192 / 384)
    # Neither a step without a number nor one that can't be true counts.
    batch.observe(float("nan"), 1.0, 64)
    batch.observe(1.0, float("inf"), 64)
    assert batch.noise == pytest.approx((1.0, 128.0))


def test_impossible_shares_are_refused() -> None:
    batch = AdaptiveBatch(64, {})
    for small in (0, -1, 64, 65):
        with pytest.raises(ValueError, match=f"small: {small} must be from 1 to below 64"):
            batch.observe(1.0, 1.0, small)


def test_all_noise_makes_larger_batches_as_good_as_more_steps() -> None:
    batch = AdaptiveBatch(64, {})
    batch.size = 512
    for _ in range(20):
        batch.observe(small_sqr=1.0, large_sqr=0.05, small=32)
    # The estimate of the gradient's norm is negative.
    assert batch.noise is not None
    assert batch.noise[0] == 0
    assert batch.gain == pytest.approx(8.0)
    # Larger means than parts can't come from noise.
    batch = AdaptiveBatch(64, {})
    for _ in range(20):
        batch.observe(small_sqr=1.0, large_sqr=2.0, small=32)
    assert batch.noise is None
    assert batch.fields() == {"batch": 64}


def test_reports_carry_the_batch_and_real_steps() -> None:
    tally = Tally()
    tally.add(Report(10, at=0.0, steps=1, batch=64))
    for at in (1, 2, 3):
        # Each step counts as two of the submitted batch.
        tally.add(Report(10 + 2 * at, at=float(at), steps=1, batch=64, grad_sqr=1.0, grad_var=50.0 + at))
    progress = take(tally)
    assert (progress.step, progress.steps, progress.duration_ms) == (16, 3, 3000.0)
    assert (progress.batch, progress.grad_sqr, progress.grad_var) == (64, 1.0, 53.0)
    tally.add(Report(18, at=4.0, steps=1))
    progress = take(tally)
    assert (progress.steps, progress.duration_ms) == (1, 1000.0)
    assert not progress.HasField("batch")
    assert not progress.HasField("grad_sqr")


def test_a_report_of_another_batch_begins_a_new_progress() -> None:
    tally = Tally()
    tally.add(Report(1, at=0.0, steps=1, batch=64))
    tally.add(Report(2, at=1.0, steps=1, batch=64))
    assert not tally.continues(Report(3, at=2.0, steps=1, batch=128))
    assert take(tally).batch == 64
    assert tally.continues(Report(3, at=2.0, steps=1, batch=128))
    tally.add(Report(3, at=3.0, steps=1, batch=128))
    progress = take(tally)
    assert (progress.batch, progress.steps, progress.duration_ms) == (128, 1, 2000.0)


def test_real_steps_count_though_progress_stands_still() -> None:
    tally = Tally()
    for at in range(4):
        # A step with a smaller batch is worth a tenth of one.
        tally.add(Report(7, at=float(at), steps=1, batch=8))
    progress = take(tally)
    assert (progress.step, progress.steps, progress.duration_ms) == (7, 3, 3000.0)


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"batch": 0, "steps": 1}, "batch"),
        ({"batch": 64.5, "steps": 1}, "batch"),
        ({"batch": 2**41, "steps": 1}, "batch"),
        ({"batch": 64}, "steps"),
        ({"steps": -1}, "steps"),
        ({"steps": 1.5}, "steps"),
        ({"steps": 2**33}, "steps"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": 2**32}, "epoch"),
        ({"examples": 2**64}, "examples"),
        ({"steps_per_epoch": -1}, "steps_per_epoch"),
        ({"grad_sqr": 1.0}, "grad_sqr"),
        ({"grad_var": 1.0}, "grad_sqr"),
    ],
)
def test_wrong_values_are_named(wrong: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=f"^{key}: "):
        Report(1, **wrong)


def test_values_of_other_types_are_converted() -> None:
    tally = Tally()
    values: dict[str, Any] = {"steps": True, "batch": 64.0, "grad_sqr": 1, "grad_var": 2}
    for at in (0.0, 1.0):
        tally.add(Report(1, at=at, **values))
    progress = take(tally)
    assert (progress.steps, progress.batch, progress.grad_var) == (1, 64, 2.0)


def test_sums_stay_within_the_message() -> None:
    tally = Tally()
    for at in (0.0, 1.0, 2.0):
        tally.add(Report(2**64 - 1, at=at, steps=2**32 - 1, batch=2**40, examples=2**64 - 1))
    progress = take(tally)
    assert (progress.step, progress.steps, progress.examples) == (2**64 - 1, 2**32 - 1, 2**64 - 1)
