"""DeepSpeed with ZeRO, whose parts are divided anew for another number of processes."""

import os
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch.distributed as dist
from torch.utils.data import DataLoader

import trainmaster
import trainmaster.deepspeed
import trainmaster.torch
from tests.stacks.common import BATCH, EPOCHS, WHOLE, Net, Numbers, began

EACH = 4
CONFIG = {
    "train_batch_size": BATCH,
    "train_micro_batch_size_per_gpu": EACH,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    # Its own optimizer for CPUs has to be compiled.
    "zero_force_ds_cpu_optimizer": False,
}

deepspeed.init_distributed(dist_backend="gloo")
sampler = trainmaster.torch.ElasticBatchSampler(WHOLE, BATCH, drop_last=True)
loader = DataLoader(Numbers(WHOLE), batch_sampler=sampler)
net = Net()
config = trainmaster.deepspeed.config(CONFIG, "checkpoints")
engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
if saved := trainmaster.deepspeed.load(engine, "checkpoints"):
    sampler.load_state_dict(saved["sampler"])
began(sampler.step)


def train() -> bool:
    """Trains the rest of an epoch. Returns whether the training goes on."""
    for examples in loader:
        for part in zip(*(values.split(EACH) for values in examples.values()), strict=True):
            loss = engine(*part)["loss"]
            engine.backward(loss)
            engine.step()
        sampler.advance()
        trainmaster.torch.report(loss, sampler)
        if trainmaster.should_stop():
            trainmaster.deepspeed.save(engine, "checkpoints", {"sampler": sampler.state_dict()})
            return False
    return True


while sampler.epoch < EPOCHS and train():
    pass
if sampler.epoch == EPOCHS and dist.get_rank() == 0:
    Path("complete").write_text(str(sampler.step))
dist.destroy_process_group()
