"""Tells where it was started, and trains until it is ended."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
OTHERS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK")

print("PLACE", json.dumps([int(os.environ[name]) for name in NAMES]), flush=True)
print("OTHERS", json.dumps([name for name in OTHERS if name in os.environ]), flush=True)
print("RUN_DIR", json.dumps(os.path.isdir(sys.argv[1])), flush=True)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(1_000_000):  # longer than any measurement
    optimizer.zero_grad()
    model(torch.ones(8, 64)).square().mean().backward()
    optimizer.step()
