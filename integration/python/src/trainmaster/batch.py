"""The batch of a job whose batch the scheduler may choose, and the noise of its gradients."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TypedDict

from . import loop

# Weight of a new step in the means, and the weight from which they count: that of fourteen steps.
_WEIGHT = 0.05
_ENOUGH = 0.5


class BatchFields(TypedDict, total=False):
    """Arguments of `trainmaster.report`."""

    batch: int
    grad_sqr: float
    grad_var: float


class AdaptiveBatch:
    """The batch to train with, for a job file with a range: `batch = { size = 64, max = 4096 }`.

    A step trains `size` examples: each replica of the model adds up the gradients of `passes` passes over `local`
    examples. `update` takes over what the scheduler chose, `observe` measures the gradients' noise, and `gain` says how
    many steps of the submitted batch one step is worth. Multiply the learning rate by it (AdaScale), and count progress
    with it:

    >>> batch, progress = AdaptiveBatch(64, {}), 0.0
    >>> for _ in range(20):
    ...     batch.observe(small_sqr=3.0, large_sqr=2.0, small=32)
    ...     progress += batch.gain
    >>> fields = batch.fields()  # trainmaster.report(step=int(progress), steps=1, loss=..., **fields)
    >>> fields["batch"], round(fields["grad_sqr"], 6), round(fields["grad_var"], 6)
    (64, 1.0, 64.0)
    """

    def __init__(self, size: int = 1, environment: Mapping[str, str] = os.environ) -> None:
        """`size` is the batch in a program that Trainmaster did not start."""

        def number(name: str, default: int) -> int:
            return loop.number(environment, f"TRAINMASTER_BATCH{name}", default)

        self.size = number("", size)
        self.submitted = number("_SUBMITTED", self.size)
        self.local = number("_LOCAL", self.size)
        self.passes = number("_PASSES", 1)
        for name in ("size", "submitted", "local", "passes"):
            if getattr(self, name) < 1:
                raise ValueError(f"the batch's {name}: {getattr(self, name)} must be 1 or more")
        self._sqr = self._var = self._weight = 0.0

    def update(self) -> bool:
        """Takes over the batch that the scheduler chose last. Returns whether it changed.

        Only the process that reports (rank 0) learns of it, so it has to tell the others.
        """
        chosen = loop.assigned_batch()
        if chosen is None or (chosen.size, chosen.local, chosen.passes) == (self.size, self.local, self.passes):
            return False
        self.size, self.local, self.passes = chosen.size, chosen.local, chosen.passes
        self.submitted = chosen.submitted
        return True

    def observe(self, small_sqr: float, large_sqr: float, small: float, large: float | None = None) -> None:
        """Adds one step: the mean squared norm of gradients of `small` examples each, and the squared norm of their
        mean over `large` examples, by default the whole batch.

        With several replicas, `small` is a replica's share of the batch, before the all-reduce. Norms that aren't
        numbers are left out.
        """
        large = self.size if large is None else large
        if not 0 < small < large:
            raise ValueError(f"small: {small} must be from 1 to below {large} examples")
        if not (math.isfinite(small_sqr) and math.isfinite(large_sqr)):
            return
        # McCandlish et al. (2018), Appendix A.1: both have the right mean, though one step's can be negative.
        sqr = (large * large_sqr - small * small_sqr) / (large - small)
        var = (small_sqr - large_sqr) / (1 / small - 1 / large)
        self._sqr += _WEIGHT * (sqr - self._sqr)
        self._var += _WEIGHT * (var - self._var)
        self._weight += _WEIGHT * (1 - self._weight)

    @property
    def noise(self) -> tuple[float, float] | None:
        """Squared norm of the gradient, and variance of one example's. None while they aren't known.

        The norm is 0 if all that was seen is noise.
        """
        if self._weight < _ENOUGH or self._var <= 0:
            return None
        return max(self._sqr, 0.0) / self._weight, self._var / self._weight

    @property
    def gain(self) -> float:
        """The number of steps of the submitted batch that one step is worth. From 1 to size / submitted."""
        return self.gain_of(self.size)

    def gain_of(self, size: int) -> float:
        """The same for a step with another batch."""
        ratio = size / self.submitted
        if self.noise is None:
            return min(ratio, 1.0)
        sqr, var = self.noise
        return ratio * (var + sqr * self.submitted) / (var + sqr * size)

    @property
    def sums(self) -> tuple[float, float, float]:
        """What was observed, for a checkpoint: the weighted sums of squared norm and variance, and their weight."""
        return self._sqr, self._var, self._weight

    @sums.setter
    def sums(self, sums: tuple[float, float, float]) -> None:
        self._sqr, self._var, self._weight = sums

    def fields(self) -> BatchFields:
        """The arguments of `trainmaster.report` that say which batch was trained, and how noisy its gradients are."""
        if self.noise is None:
            return {"batch": self.size}
        sqr, var = self.noise
        return {"batch": self.size, "grad_sqr": sqr, "grad_var": var}
