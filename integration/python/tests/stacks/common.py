"""What the scripts of all stacks share: numbered examples, a slow step, and a note of each trained example."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

EXAMPLES, BATCH, EPOCHS = 500, 24, 20
#: For trainers that repeat some examples if an epoch has no whole number of batches.
WHOLE = 504


class Numbers(Dataset[dict[str, Any]]):
    """Examples that know their numbers."""

    def __init__(self, length: int = EXAMPLES) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, at: int) -> dict[str, Any]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(at))
        return {"number": at, "x": x, "y": x.sum(0, keepdim=True)}


class Net(torch.nn.Module):
    """With the signature that Hugging Face's trainer calls. Each forward pass notes its examples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def forward(self, number: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        with Path(f"trained-{os.environ['RANK']}").open("a") as file:
            file.write("".join(f"{at}\n" for at in number.tolist()))
        # Until the test needs no more time.
        if not Path("hurry").exists():
            time.sleep(0.01 if Path("quick").exists() else float(os.environ.get("PACE", "0.3")))
        return {"loss": ((self.layers(x) - y) ** 2).mean()}


def began(step: int) -> None:
    """Notes the beginning of a process: rank, world size, and the step from which it continues."""
    with Path("began").open("a") as file:
        file.write(f"{os.environ['RANK']} {os.environ['WORLD_SIZE']} {step}\n")
