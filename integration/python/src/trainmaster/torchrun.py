"""The entry point by which PyTorch finds Trainmaster's rendezvous, where `PET_RDZV_BACKEND=trainmaster` is set.

Every `torchrun` of an environment loads it, so that it imports no more than it has to. As a program it is `torchrun`,
which then needs no entry point.
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


def main() -> None:
    import contextlib

    from torch.distributed import run
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    # An entry point has registered it already.
    with contextlib.suppress(ValueError):
        rendezvous_handler_registry.register("trainmaster", handler())
    run.main()


if __name__ == "__main__":
    main()
