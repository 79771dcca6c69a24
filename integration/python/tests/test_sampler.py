"""Batches of which no example is lost or trained twice."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

from trainmaster.torch import ElasticBatchSampler, accumulation, ranks


def samplers(world: int, **options: int) -> list[ElasticBatchSampler]:
    return [ElasticBatchSampler(**options, rank=rank, world=world) for rank in range(world)]  # type: ignore[arg-type]


@pytest.mark.parametrize("drop_last", [False, True])
def test_any_changes_of_the_number_of_processes_change_no_batch(drop_last: bool) -> None:
    draws = random.Random(1)
    for _ in range(100):
        length = draws.randint(20, 200)
        options = {"length": length, "batch": draws.randint(8, 20), "drop_last": drop_last, "seed": draws.randint(0, 9)}
        (alone,) = samplers(1, **options)
        whole = list(alone)
        state = alone.state_dict()
        seen: list[list[int]] = []
        while not state["epoch"]:
            group = samplers(draws.randint(1, 8), **options)
            for one in group:
                one.load_state_dict(state)
            parts = [iter(one) for one in group]
            for _ in range(draws.randint(1, 5)):
                if group[0].epoch:
                    break
                step = [next(part) for part in parts]
                assert all(step), "each process has an example"
                assert max(map(len, step)) - min(map(len, step)) <= 1
                batch = [at for part in step for at in part]
                real = whole[len(seen)]
                assert batch[: len(real)] == real
                assert len(batch) == max(len(real), len(group)), "only fewer examples than processes are repeated"
                seen.append(batch)
                for one in group:
                    one.advance()
            states = [one.state_dict() for one in group]
            state = states[0]
            assert all(other == state for other in states)
        assert len(seen) == len(whole)
        if not drop_last:
            assert {at for batch in seen for at in batch} == set(range(length))


def test_epochs_have_different_orders() -> None:
    (one,) = samplers(1, length=64, batch=8)
    first = list(one)
    for _ in first:
        one.advance()
    assert (one.epoch, one.done, one.step) == (1, 0, 8)
    assert list(one) != first
    assert sorted(at for batch in one for at in batch) == list(range(64))


def test_another_sampler_s_state_is_refused() -> None:
    (one,) = samplers(1, length=64, batch=8)
    state = one.state_dict()
    for name, value in {"length": 63, "batch": 9, "seed": 1, "shuffle": 0}.items():
        with pytest.raises(ValueError, match=f"^{name}: the checkpoint has {value}, this sampler"):
            one.load_state_dict(state | {name: value})
    for change in ({"epoch": -1}, {"done": 8}, {"done": "7"}, {"epoch": None}):
        with pytest.raises(ValueError, match="aren't those of a sampler with 8 batches"):
            one.load_state_dict({**state, **change})
    with pytest.raises(ValueError, match=r"^length: the checkpoint has None"):
        one.load_state_dict({})
    assert one.state_dict() == state


def test_bad_numbers_are_named() -> None:
    for options, message in (
        ({"length": 10, "batch": 2, "world": 3, "rank": 0}, "batch: 2 must be from 3, the number of processes, to 10"),
        ({"length": 10, "batch": 11, "world": 1, "rank": 0}, "batch: 11 must be from 1, .* to 10"),
        ({"length": 10, "batch": 5, "world": 2, "rank": 2}, "rank: 2 must be from 0 to below 2"),
    ):
        with pytest.raises(ValueError, match=message):
            ElasticBatchSampler(**options)  # type: ignore[arg-type]
    assert accumulation(64, 8, 2) == 4
    with pytest.raises(ValueError, match="batch: 64 must be a multiple of 24, 3 processes with 8 each"):
        accumulation(64, 8, 3)
    with pytest.raises(ValueError, match="must be 1 or more"):
        accumulation(64, 0, 3)
    assert ranks({"RANK": "2", "WORLD_SIZE": "3"}) == (2, 3)
    with pytest.raises(ValueError, match="RANK: 3 must be below WORLD_SIZE"):
        ranks({"RANK": "3", "WORLD_SIZE": "3"})
