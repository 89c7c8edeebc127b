"""Gradient accumulation, and a batch that is a dictionary of tokens."""

import json
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

MICROBATCHES = 4
SAMPLES = 8
TOKENS = 32

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
rows = [{"input_ids": torch.randint(0, 100, (TOKENS,))} for _ in range(256)]
loader = DataLoader(rows, SAMPLES)
module = nn.Sequential(nn.Embedding(100, 32), nn.Flatten(), nn.Linear(32 * TOKENS, 10))
model = DistributedDataParallel(module)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
steps = 0
try:
    for _ in range(2000):
        for i, batch in enumerate(loader):
            is_last = i % MICROBATCHES == MICROBATCHES - 1
            with nullcontext() if is_last else model.no_sync():
                model(batch["input_ids"]).square().mean().backward()
            if is_last:
                steps += 1
                optimizer.step()
                optimizer.zero_grad()
finally:
    print("STEPS", json.dumps(steps), flush=True)
