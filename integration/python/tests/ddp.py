"""A training script as users have it: `DistributedDataParallel`, a checkpoint every few steps. Nothing of Trainmaster.

It notes where each process began, and each step of rank 0. With the variable STEPS it ends after so many steps, with
BROKEN it fails at once.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY, BATCH = int(os.environ.get("STEPS", "1000000")), 10, 24
LAST = Path("checkpoints/last.pt")


def main() -> None:
    if "BROKEN" in os.environ:
        raise SystemExit("broken")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    if LAST.exists():
        saved = torch.load(LAST)
        model.module.load_state_dict(saved["model"])
        step = saved["step"]
    with Path("began").open("a") as file:
        file.write(f"{rank} {world} {step}\n")
    while step < STEPS:
        x = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))
        mine = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
        loss = ((model(x[mine]) - x[mine].sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(0.02)
        if rank == 0:
            with Path("steps").open("a") as file:
                file.write(f"{step} {world}\n")
            if step % EVERY == 0:
                LAST.parent.mkdir(exist_ok=True)
                torch.save({"model": model.module.state_dict(), "step": step}, LAST.with_name("new.pt"))
                LAST.with_name("new.pt").replace(LAST)
                if "SLOW_CHECKPOINTS" in os.environ:
                    time.sleep(2)
    dist.destroy_process_group()


main()
