"""FSDP2, whose checkpoints PyTorch loads on any number of processes."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

import trainmaster
import trainmaster.torch
from tests.stacks.checkpoint import Checkpoint
from tests.stacks.common import BATCH, EPOCHS, EXAMPLES, Net, Numbers, began

dist.init_process_group("gloo")
sampler = trainmaster.torch.ElasticBatchSampler(EXAMPLES, BATCH)
loader = DataLoader(Numbers(), batch_sampler=sampler)
model = fully_shard(Net(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
checkpoint = Checkpoint(model, optimizer, sampler)
checkpoint.load()
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
            checkpoint.save()
            return False
    return True


while sampler.epoch < EPOCHS and train():
    pass
if sampler.epoch == EPOCHS and dist.get_rank() == 0:
    Path("complete").write_text(str(sampler.step))
dist.destroy_process_group()
