"""For the `Trainer` of Hugging Face's transformers, and for those that are built on it (TRL).

trainer = Trainer(..., callbacks=[trainmaster.hf.TrainerCallback()])
trainer.train(resume_from_checkpoint=trainmaster.hf.last_checkpoint(args.output_dir))
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import transformers

from . import loop, stop


class TrainerCallback(transformers.TrainerCallback):
    """Reports loss, speed and epochs, and stops the training at a checkpoint when the scheduler changes the job.

    Then the process ends with code 0 in `train`: what the script does after the training isn't done before it is
    complete. The job's other processes end at the same step, without an evaluation that is due then. Outside of
    Trainmaster, it does nothing.
    """

    def __init__(self) -> None:
        # Whether to stop after this step, and whether its checkpoint is the one to stop at.
        self._asked = self._stops = False
        self._reported = 0
        # When a checkpoint, if one follows, began.
        self._since = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._reported = state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        # The mean since the last log. It comes after its step.
        loss = (logs or {}).get("loss")
        if loss is not None:
            self._report(args, state, float(loss))
        self._since = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._report(args, state, None)
        self._ask()
        if self._asked and state.global_step < state.max_steps:
            self._stops = control.should_save = True
            control.should_evaluate = False
        self._since = time.monotonic()

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._ask()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        loop.interrupted()
        self._since = time.monotonic()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        loop.saved(state.global_step, time.monotonic() - self._since)
        if self._stops:
            raise SystemExit(0)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        stop.complete()

    def _ask(self) -> None:
        # Equally often in all processes, and once more is enough.
        if loop.is_job() and loop.should_stop():
            self._asked = True

    def _report(self, args: Any, state: Any, loss: float | None) -> None:
        steps_per_epoch = round(state.max_steps / args.num_train_epochs) if args.num_train_epochs > 0 else 0
        batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        loop.report(
            step=state.global_step,
            loss=loss,
            examples=batch * (state.global_step - self._reported),
            epoch=int(state.epoch or 0),
            steps_per_epoch=steps_per_epoch if args.max_steps <= 0 else 0,
        )
        self._reported = state.global_step


def last_checkpoint(output_dir: str | Path) -> str | None:
    """The last complete checkpoint of a trainer in this folder, for `resume_from_checkpoint`. None if there is none."""
    # Written last.
    states = Path(output_dir).glob(f"checkpoint-*/{transformers.trainer.TRAINER_STATE_NAME}")
    found = {int(number): str(path.parent) for path in states if (number := path.parent.name[11:]).isdecimal()}
    return found[max(found)] if found else None
