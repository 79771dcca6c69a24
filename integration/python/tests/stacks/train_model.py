"""A ResNet-18 or a small GPT, with DDP or FSDP2: `train_model.py MODEL WRAPPER SEED`.

It saves a checkpoint at each end of an epoch, and where it has to stop. Rank 0 notes the loss of each step.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import trainmaster
import trainmaster.torch
from tests.stacks.checkpoint import Checkpoint
from tests.stacks.common import BATCH, began
from tests.stacks.models import EXAMPLES, MODELS

name, wrapper, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
network, data, rate, epochs = MODELS[name]

dist.init_process_group("gloo")
torch.manual_seed(seed)
model: torch.nn.Module = network()
if wrapper == "fsdp":
    model = fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
sampler = trainmaster.torch.ElasticBatchSampler(EXAMPLES, BATCH, seed=seed)
loader = DataLoader(data(), batch_sampler=sampler)
checkpoint = Checkpoint(model, optimizer, sampler)
checkpoint.load()
began(sampler.step)


def train() -> bool:
    """Trains the rest of an epoch. Returns whether the training goes on."""
    for first, second in loader:
        loss = model(first, second)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sampler.advance()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        trainmaster.torch.report(mean, sampler)
        if dist.get_rank() == 0:
            with Path("losses").open("a") as file:
                file.write(f"{sampler.step} {mean.item()}\n")
        if not Path("hurry").exists():
            time.sleep(float(os.environ.get("PACE", "2")))
        if trainmaster.should_stop():
            checkpoint.save()
            return False
    checkpoint.save()
    return True


while sampler.epoch < epochs and train():
    pass
if sampler.epoch == epochs and dist.get_rank() == 0:
    Path("complete").write_text(str(sampler.step))
dist.destroy_process_group()
