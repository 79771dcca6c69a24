"""FSDP2, whose checkpoints PyTorch loads on any number of processes."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

import trainmaster
import trainmaster.torch
from tests.stacks.common import BATCH, EPOCHS, EXAMPLES, Net, Numbers, began

LAST = Path("checkpoints/last")

dist.init_process_group("gloo")
sampler = trainmaster.torch.ElasticBatchSampler(EXAMPLES, BATCH)
loader = DataLoader(Numbers(), batch_sampler=sampler)
model = fully_shard(Net(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


class Everything:
    """What a checkpoint has."""

    def state_dict(self) -> dict[str, Any]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "sampler": sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        sampler.load_state_dict(state["sampler"])


if LAST.exists():
    dcp.load({"all": Everything()}, checkpoint_id=LAST)
began(sampler.step)


def save() -> None:
    start = time.monotonic()
    dcp.save({"all": Everything()}, checkpoint_id="checkpoints/new")
    if dist.get_rank() == 0:
        shutil.rmtree(LAST, ignore_errors=True)
        os.replace("checkpoints/new", LAST)
    trainmaster.saved(sampler.step, time.monotonic() - start)


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
            save()
            return False
    return True


while sampler.epoch < EPOCHS and train():
    pass
if sampler.epoch == EPOCHS and dist.get_rank() == 0:
    Path("complete").write_text(str(sampler.step))
dist.destroy_process_group()
