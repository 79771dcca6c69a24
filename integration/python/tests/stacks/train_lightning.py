"""Lightning's trainer, with a callback."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

import trainmaster.lightning
import trainmaster.torch
from tests.stacks.common import BATCH, EPOCHS, EXAMPLES, Net, Numbers, began


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def on_train_start(self) -> None:
        began(self.trainer.global_step)

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(**batch)["loss"]
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


sampler = trainmaster.torch.ElasticBatchSampler(EXAMPLES, BATCH)
# A process of its own draws from the sampler in advance.
loader = DataLoader(Numbers(), batch_sampler=sampler, num_workers=1)
trainer = Trainer(
    accelerator="cpu",
    strategy="ddp",
    max_epochs=EPOCHS,
    use_distributed_sampler=False,
    enable_progress_bar=False,
    logger=False,
    callbacks=[trainmaster.lightning.Callback(sampler)],
    **trainmaster.lightning.processes(),
)
trainer.fit(Model(), loader, ckpt_path=trainmaster.lightning.last_checkpoint())
if trainer.is_global_zero:
    Path("complete").write_text(str(trainer.global_step))
