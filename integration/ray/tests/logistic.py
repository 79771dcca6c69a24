"""A driver that trains a small model and writes the result. Used by tests and demo."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import trainmaster.ray
from trainmaster import Convergence, Job, Role, SpeedSample, TrainmasterError
from trainmaster.ray import AllReduceWorker, Change, Context, PSServer, PSWorker, Trainer
from trainmaster.ray.training import Floats, Indices

FEATURES = 16


class Logistic(Trainer):
    """Logistic regression on generated data. `seconds` emulates an accelerator's time for the job's whole batch.

    When the file `hurry` appears, a batch takes the seconds in it.
    """

    def __init__(self, seconds: float, hurry: Path | None) -> None:
        super().__init__()
        # A test waits for a checkpoint, which slow steps would bring late.
        self.checkpoint_steps = 20 if seconds < 1 else 1
        self._seconds = seconds
        self._hurry = hurry

    def setup(self, ctx: Context) -> None:
        self._batch = min(ctx.job.batch, ctx.job.examples)
        generator = np.random.default_rng(1)
        self._x = generator.standard_normal((ctx.job.examples, FEATURES)).astype(np.float32)
        self._y = (self._x @ generator.standard_normal(FEATURES) > 0).astype(np.float32)

    def init(self) -> Floats:
        return np.zeros(FEATURES, np.float32)

    def gradient(self, params: Floats, indices: Indices) -> tuple[float, Floats]:
        start, share = time.monotonic(), len(indices) / self._batch
        while (left := start + self._now() * share - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
        x, y = self._x[indices], self._y[indices]
        guess = 1 / (1 + np.exp(-x @ params))
        loss = -np.mean(y * np.log(guess + 1e-7) + (1 - y) * np.log(1 - guess + 1e-7))
        return float(loss), (x.T @ (guess - y) / len(y)).astype(np.float32)

    def _now(self) -> float:
        """The seconds that a batch takes at present."""
        if self._hurry and self._hurry.exists():
            self._seconds, self._hurry = float(self._hurry.read_text()), None
        return self._seconds

    def accuracy(self, params: Floats) -> float:
        return float(np.mean((self._x @ params > 0) == (self._y > 0)))


class PSLogistic(Logistic, PSWorker):
    """With parameter servers."""


class AllReduceLogistic(Logistic, AllReduceWorker):
    """Without parameter servers."""


def job(options: dict[str, Any]) -> Job:
    least, most, requested = options.get("workers", (1, 4, 1))
    mode = options.get("mode", "sync")
    p = 0 if mode == "allreduce" else options.get("servers", 1)
    seconds = options.get("seconds", 0.0)
    return Job(
        name=options["name"],
        mode=mode,
        resize=options.get("resize", "workers"),
        batch=64,
        examples=512,
        convergence=Convergence(delta=0.0, max_epochs=options.get("epochs", 5)),
        worker=Role(gpu=options.get("gpu", 0.5), cpu=options.get("cpu", 0.5), min=least, max=most, requested=requested),
        # With known speeds, an engine need not try shapes first.
        profile=[SpeedSample(p, w, w / seconds) for w in range(1, most + 1)] if seconds else (),
        server=None if mode == "allreduce" else Role(cpu=0.5, max=max(p, options.get("most_servers", p)), requested=p),
    )


def main() -> None:
    options = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(name)s %(message)s")
    for noisy in ("filelock", "asyncio", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    out = Path(options["out"])
    seconds = options.get("seconds", 0.0)
    hurry = Path(options["hurry"]) if "hurry" in options else None
    allreduce = options.get("mode") == "allreduce"
    kind = AllReduceLogistic if allreduce else PSLogistic
    marker = options.get("crash_once")

    def worker() -> Logistic:
        if Path(options.get("broken", "")).is_file():
            raise ValueError("there is no data")
        if marker:
            return Crashing(Path(marker), seconds, hurry)
        return kind(seconds, hurry)

    def changed(change: Change) -> None:
        with out.with_suffix(".changes").open("a") as file:
            print(json.dumps(dataclasses.asdict(change)), file=file, flush=True)

    try:
        with trainmaster.ray.connect(
            options["address"], token_file=options["token_file"], checkpoint_dir=options["dir"]
        ) as tm:
            if gate := options.get("gate"):
                out.with_suffix(".ready").touch()
                while not Path(gate).exists():
                    time.sleep(0.001)
            result = tm.fit(
                job(options),
                worker=worker,
                server=None if allreduce else lambda: PSServer(learning_rate=0.5),
                on_driver_death=options.get("on_driver_death", "cancel"),
                resume=options.get("resume", False),
                runtime_env=options.get("runtime_env"),
                on_change=changed,
            )
        document: dict[str, Any] = {"result": dataclasses.asdict(result)}
    except TrainmasterError as error:
        document = {"error": str(error), "kind": type(error).__name__}
    partial = out.with_suffix(".partial")
    partial.write_text(json.dumps(document, default=str))
    partial.rename(out)


class Crashing(PSLogistic):
    """Ends its process once, at step 30."""

    def __init__(self, marker: Path, seconds: float, hurry: Path | None) -> None:
        super().__init__(seconds, hurry)
        self._marker = marker
        self._count = 0

    def gradient(self, params: Floats, indices: Indices) -> tuple[float, Floats]:
        self._count += 1
        if self._count == 30 and not self._marker.exists():
            self._marker.touch()
            os._exit(1)
        return super().gradient(params, indices)


if __name__ == "__main__":
    main()
