"""Merging and sending of reports."""

from __future__ import annotations

import itertools

import pytest

from trainmaster._proto import feed_pb2 as pb
from trainmaster.loop import slot_of
from trainmaster.tally import Outbox, Report, Tally

pytestmark = pytest.mark.minimum


def test_reports_are_merged() -> None:
    tally = Tally()
    assert tally.take() is None
    tally.add(Report(10, 1.0, examples=100, epoch=1, at=1.0))
    first = tally.take(2, 1)
    assert first
    assert (first.step, first.steps, first.examples, first.loss, first.epoch) == (10, 0, 100, 1.0, 1)
    tally.add(Report(11, 1.0, examples=100, slot_times={0: 5.0}, at=2.0))
    tally.add(Report(14, 0.5, examples=100, accuracy=0.9, epoch=2, at=3.5))
    tally.add(Report(15, 0.5, examples=200, slot_times={1: 7.0}, at=77.0), leads=False)
    second = tally.take(2, 1)
    assert second
    assert (second.step, second.steps, second.examples, second.loss) == (14, 4, 400, 0.625)
    assert (second.duration_ms, second.workers, second.servers, second.epoch) == (2500.0, 2, 1, 2)
    assert [(time.worker, time.step_ms) for time in second.slot_times] == [(0, 5.0), (1, 7.0)]
    assert tally.take() is None


def test_an_interruption_does_not_count_as_training() -> None:
    tally = Tally()
    tally.add(Report(10, at=1.0))
    tally.take()
    tally.rebase()
    tally.add(Report(11, at=60.0))
    tally.add(Report(13, at=62.0))
    after = tally.take()
    assert after
    assert (after.steps, after.duration_ms) == (2, 2000.0)


def test_a_step_back_to_a_checkpoint_is_not_measured() -> None:
    tally = Tally()
    tally.add(Report(100, at=1.0))
    tally.take()
    tally.add(Report(81, at=5.0))
    back = tally.take()
    assert back
    assert (back.step, back.steps) == (81, 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_left_out(bad: float) -> None:
    tally = Tally()
    tally.add(Report(1, bad, accuracy=bad))
    progress = tally.take()
    assert progress
    assert not progress.HasField("loss")
    assert not progress.HasField("accuracy")


def test_the_outbox_is_bounded_and_drops_the_oldest() -> None:
    outbox = Outbox()
    for step in range(Outbox.LIMIT + 5):
        outbox.add(pb.Progress(step=step))
    assert (len(outbox), outbox.dropped) == (Outbox.LIMIT, 5)
    assert outbox.next(0)[0].step == 5


def test_sequence_numbers_are_unique_in_any_order_of_events() -> None:
    """All orders of adding, sending, answering and losing the answer."""
    for events in itertools.product("asl", repeat=7):
        outbox, last, delivered = Outbox(), 0, []
        for step, event in enumerate(events):
            if event == "a":
                outbox.add(pb.Progress(step=step))
                continue
            batch = outbox.next(last)
            if not batch:
                continue
            last = max(last, batch[-1].seq)
            delivered += [(progress.seq, progress.step) for progress in batch]
            if event == "s":
                outbox.answered(batch)
        numbers = dict(delivered)
        assert len(set(delivered)) == len(numbers), (events, delivered)
        assert sorted(numbers) == list(range(1, len(numbers) + 1))
        assert len(outbox) + len(numbers) >= events.count("a")


@pytest.mark.parametrize(
    ("environment", "index"),
    [
        ({}, None),
        ({"TRAINMASTER_JOB": "3"}, None),
        ({"TRAINMASTER_JOB": "3", "TRAINMASTER_FEED": "http://x:1"}, 0),
        ({"TRAINMASTER_JOB": "3", "TRAINMASTER_FEED": "http://x:1", "TRAINMASTER_INDEX": "1"}, None),
        ({"TRAINMASTER_JOB": "3", "TRAINMASTER_FEED": "http://x:1", "TRAINMASTER_ROLE": "server"}, None),
        ({"TRAINMASTER_JOB": "3", "TRAINMASTER_FEED": "http://x:1", "RANK": "0", "TRAINMASTER_INDEX": "2"}, 2),
        ({"TRAINMASTER_JOB": "3", "TRAINMASTER_FEED": "http://x:1", "RANK": "1"}, None),
    ],
)
def test_only_rank_0_reports(environment: dict[str, str], index: int | None) -> None:
    slot = slot_of(environment)
    assert (slot.index if slot else None) == index


def test_an_invalid_variable_is_named() -> None:
    with pytest.raises(ValueError, match="TRAINMASTER_INDEX: 'x'"):
        slot_of({"TRAINMASTER_JOB": "3", "TRAINMASTER_FEED": "f", "TRAINMASTER_INDEX": "x"})
