"""A script whose batch the scheduler chooses. The noise of its gradients is known: an example's is the example."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import trainmaster
import trainmaster.torch

EXAMPLES, WIDTH, MEAN, EPOCHS = 600, 8, float(os.environ.get("MEAN", "0.5")), int(os.environ.get("EPOCHS", "1000"))


class Numbers(Dataset[tuple[int, torch.Tensor]]):
    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, at: int) -> tuple[int, torch.Tensor]:
        return at, MEAN + torch.randn(WIDTH, generator=torch.Generator().manual_seed(at))


def main() -> None:
    dist.init_process_group("gloo")
    last = Path("checkpoints/last.pt")
    sampler = trainmaster.torch.AdaptiveBatchSampler(EXAMPLES, 24)
    # A process of its own draws in advance.
    loader = DataLoader(Numbers(), batch_sampler=sampler, num_workers=1)
    model = DistributedDataParallel(torch.nn.Linear(WIDTH, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    sampler.follow(model, optimizer)
    if last.exists():
        sampler.load_state_dict(torch.load(last))
    if dist.get_rank() == 0:
        with Path("began").open("a") as file:
            file.write(f"0 {dist.get_world_size()} {sampler.done}\n")
    while sampler.epoch < EPOCHS:
        for numbers, x in loader:
            loss = model(x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rounds = sampler.rounds
            sampler.advance()
            trainmaster.torch.report(loss, sampler)
            with Path(f"trained-{dist.get_rank()}").open("a") as file:
                file.write(f"{rounds} {sampler.last_size} {','.join(map(str, numbers.tolist()))}\n")
            time.sleep(float(os.environ.get("PACE", "0.02")))
            if trainmaster.should_stop():
                if dist.get_rank() == 0:
                    last.parent.mkdir(exist_ok=True)
                    torch.save(sampler.state_dict(), last)
                dist.destroy_process_group()
                return
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
