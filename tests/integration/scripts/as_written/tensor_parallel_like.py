"""PyTorch's example of tensor parallelism: all ranks take the same batch, layers are divided."""

import os

import torch
from own_clock import own_clock
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class ToyModel(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.in_proj = nn.Linear(128, 2048)
        self.relu = nn.ReLU()
        self.out_proj = nn.Linear(2048, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the second makes of the first."""
        return self.out_proj(self.relu(self.in_proj(x)))


mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
plan = {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()}
model = parallelize_module(ToyModel(), mesh, plan)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, foreach=True)
with own_clock() as mark:
    for i in range(100_000):
        torch.manual_seed(i)
        inputs = torch.rand(64, 128)
        model(inputs).sum().backward()
        mark()
        optimizer.step()
