"""One model as a workload of scalebench's, and as a script of a user's own.

As a workload: ``--workload benchmarks.same_model:workload``. As a script: ``-- -m
benchmarks.same_model``, under torchrun's environment. With ``--ends FOLDER`` each rank writes down
when its steps ended, seconds of the machine's monotonic clock.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from scalebench import Shard, Workload

BATCH = 32
SAMPLES = 2048
WIDTH = 512


def model() -> nn.Module:
    """Return the model, the same at every call."""
    torch.manual_seed(0)
    layers = (nn.Linear(64, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU())
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def loss(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss over a batch."""
    inputs, labels = batch
    return nn.functional.cross_entropy(module(inputs), labels)


def optimizer(parameters: "object") -> torch.optim.Optimizer:
    """Return the optimizer of both."""
    return torch.optim.AdamW(parameters, lr=1e-3)  # type: ignore[arg-type]


def workload(shard: Shard) -> Workload:
    """Return the model as scalebench trains it."""
    torch.manual_seed(1)
    inputs, labels = torch.randn(SAMPLES, 64), torch.randint(0, 10, (SAMPLES,))
    mine = slice(shard.rank, None, shard.world_size)
    loader = DataLoader(TensorDataset(inputs[mine], labels[mine]), shard.batch_size)
    return Workload(model(), loader, loss, optimizer)


def train(num_steps: int | None) -> list[float]:
    """Train and return when each step ended, seconds; without a number, until it is ended."""
    module = DistributedDataParallel(model())
    stepping = optimizer(module.parameters())
    samples = TensorDataset(torch.randn(SAMPLES, 64), torch.randint(0, 10, (SAMPLES,)))
    epochs = itertools.repeat(DataLoader(samples, BATCH))
    ends = []
    for batch in itertools.islice(itertools.chain.from_iterable(epochs), num_steps):
        stepping.zero_grad()
        loss(module, batch).backward()
        stepping.step()
        ends.append(time.monotonic())
    return ends


def main() -> None:
    """Train as a script does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--ends", type=Path)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    ends = train(given.steps)  # DDP is gone afterwards: otherwise its destructor may hang
    if given.ends:
        (given.ends / f"rank{dist.get_rank()}.json").write_text(json.dumps(ends))
    dist.barrier()  # torchrun ends all ranks when one of them fails
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
