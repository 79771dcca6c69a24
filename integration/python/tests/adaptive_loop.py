"""A training loop without any framework, whose batch the scheduler may choose: least squares with noisy targets.

Writes its batches into the file that it is given, one line for each change.
"""

import random
import sys
import time
from pathlib import Path

import trainmaster

TRUTH = (1.0, -2.0, 0.5, 3.0)
STEPS = 600

rng = random.Random(7)
batch, progress, weights = trainmaster.AdaptiveBatch(), 0.0, [0.0] * len(TRUTH)
told = Path(sys.argv[1])


def gradient(examples: int) -> list[float]:
    total = [0.0] * len(TRUTH)
    for _ in range(examples):
        x = [rng.gauss(0, 1) for _ in TRUTH]
        off = sum((w - t) * v for w, t, v in zip(weights, TRUTH, x, strict=True)) + rng.gauss(0, 20)
        total = [sum_ + 2 * off * v for sum_, v in zip(total, x, strict=True)]
    return [sum_ / examples for sum_ in total]


def square(vector: list[float]) -> float:
    return sum(v * v for v in vector)


def note() -> None:
    with told.open("a") as file:
        print(batch.size, batch.local, batch.passes, file=file)


note()
while progress < STEPS and not trainmaster.should_stop():
    if batch.update():
        note()
    half = batch.size // 2
    parts = [gradient(half), gradient(half)]
    mean = [(a + b) / 2 for a, b in zip(*parts, strict=True)]
    batch.observe(sum(map(square, parts)) / 2, square(mean), small=half, large=2 * half)
    weights = [w - 0.001 * batch.gain * g for w, g in zip(weights, mean, strict=True)]
    time.sleep(0.04)  # what a step costs whatever its batch
    progress += batch.gain
    loss = square([w - t for w, t in zip(weights, TRUTH, strict=True)])
    trainmaster.report(
        step=int(progress), steps=1, loss=loss, examples=batch.size, steps_per_epoch=10, **batch.fields()
    )
trainmaster.finish()
