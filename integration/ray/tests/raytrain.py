"""A script of Ray Train as its documentation shows one. It doesn't know of Trainmaster."""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, get_checkpoint, report
from ray.train.torch import TorchConfig, TorchTrainer

EPOCHS, EXAMPLES, BATCH = 40, 120, 12


def train(config: dict[str, Any]) -> None:
    folder = Path(config["folder"])
    rank, world = dist.get_rank(), dist.get_world_size()
    model, start = torch.nn.Linear(1, 1), 0
    # How often each example was trained.
    seen = torch.zeros(EXAMPLES)
    if checkpoint := get_checkpoint():
        with checkpoint.as_directory() as saved:
            state = torch.load(Path(saved, "state.pt"))
        model.load_state_dict(state["model"])
        start, seen = state["epoch"] + 1, state["seen"]
    with (folder / "began").open("a") as out:
        out.write(f"{rank} {world} {start} {os.getpid()}\n")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(start, EPOCHS):
        order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            mine, new = batch[rank::world], torch.zeros(EXAMPLES)
            new[mine] = 1
            x = mine.float().unsqueeze(1) / EXAMPLES
            loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
            dist.all_reduce(new)
            optimizer.step()
            seen += new
            if not (folder / "hurry").exists():
                time.sleep(0.5)
        metrics = {"loss": loss.item(), "epoch": epoch}
        if rank or not config["saves"]:
            report(metrics)
            continue
        with tempfile.TemporaryDirectory() as saved:
            torch.save({"model": model.state_dict(), "epoch": epoch, "seen": seen}, Path(saved, "state.pt"))
            report(metrics, checkpoint=Checkpoint.from_directory(saved))
    if rank == 0:
        torch.save(seen, folder / "seen.pt")


if __name__ == "__main__":
    ray.init(address=sys.argv[1])
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": sys.argv[2], "saves": sys.argv[4:]},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=eval(sys.argv[3]), use_gpu=True, resources_per_worker={"CPU": 0.5, "GPU": 1}
        ),
        run_config=RunConfig(
            name="net",
            storage_path=sys.argv[2],
            failure_config=FailureConfig(max_failures=3),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    )
    print(trainer.fit().metrics)
