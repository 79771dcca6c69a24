"""A loop that somebody wrote by hand, with a sampler, a line for reports, and one for stopping."""

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import trainmaster
import trainmaster.torch
from tests.stacks.common import BATCH, EPOCHS, EXAMPLES, Net, Numbers, began

LAST = Path("checkpoints/last.pt")

dist.init_process_group("gloo")
sampler = trainmaster.torch.ElasticBatchSampler(EXAMPLES, BATCH)
# Agents signal the processes that load data, too.
loader = DataLoader(Numbers(), batch_sampler=sampler, num_workers=1)
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
if LAST.exists():
    saved = torch.load(LAST)
    model.module.load_state_dict(saved["model"])
    sampler.load_state_dict(saved["sampler"])
began(sampler.step)


def train() -> bool:
    """Trains the rest of an epoch. Returns whether the training goes on."""
    for examples in loader:
        loss = model(**examples)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sampler.advance()
        trainmaster.torch.report(loss, sampler)
        if trainmaster.should_stop():
            if dist.get_rank() == 0:
                LAST.parent.mkdir(exist_ok=True)
                start = time.monotonic()
                torch.save({"model": model.module.state_dict(), "sampler": sampler.state_dict()}, LAST)
                trainmaster.saved(sampler.step, time.monotonic() - start)
            return False
    return True


while sampler.epoch < EPOCHS and train():
    pass
if sampler.epoch == EPOCHS and dist.get_rank() == 0:
    Path("complete").write_text(str(sampler.step))
dist.destroy_process_group()
