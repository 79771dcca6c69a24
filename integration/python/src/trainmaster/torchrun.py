"""The entry point by which PyTorch finds Trainmaster's rendezvous, where `PET_RDZV_BACKEND=trainmaster` is set.

Every `torchrun` of an environment loads it, so that it imports no more than it has to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def handler() -> Callable[[Any], Any]:
    """Returns the function that makes a rendezvous from PyTorch's parameters."""

    def create(params: Any) -> Any:
        from .rendezvous import PlanRendezvous

        return PlanRendezvous(params)

    return create
