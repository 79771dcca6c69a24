"""PyTorch models for the ready trainers. Needs PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from .context import Context
from .training import Floats, Indices, Trainer


class TorchModel(Trainer):
    """Mix in before `PSWorker` or `AllReduceWorker`. A subclass implements `model` and `loss`."""

    def model(self) -> Any:
        """Makes a new `torch.nn.Module`, the same in every worker."""
        raise NotImplementedError

    def loss(self, model: Any, indices: Any) -> Any:
        """Returns the mean loss over these examples, as a tensor with a gradient.

        The model is on `self.device`. The indices are on the CPU, where they can index tensors on any device.
        """
        raise NotImplementedError

    def setup(self, ctx: Context) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._module = self.model().to(self.device)

    def init(self) -> Floats:
        torch.manual_seed(0)
        return _array(parameters_to_vector(self.model().parameters()))

    def gradient(self, params: Floats, indices: Indices) -> tuple[float, Floats]:
        vector_to_parameters(torch.from_numpy(params.copy()).to(self.device), self._module.parameters())
        self._module.zero_grad()
        loss = self.loss(self._module, torch.from_numpy(indices))
        loss.backward()
        parameters = list(self._module.parameters())
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        return float(loss.detach()), _array(parameters_to_vector(gradients))


def _array(vector: Any) -> Floats:
    return vector.detach().cpu().numpy().astype(np.float32)  # type: ignore[no-any-return]
