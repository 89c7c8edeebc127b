"""Gradient accumulation, batches that are dictionaries of tokens, and some carelessness."""

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
model = DistributedDataParallel(module, find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
steps = 0
try:
    for _ in range(2000):
        for i, batch in enumerate(loader):
            is_last = i % MICROBATCHES == MICROBATCHES - 1
            with nullcontext() if is_last else model.no_sync():
                loss = model(batch["input_ids"]).square().mean()
                loss.backward()
            if is_last:
                steps += 1
                optimizer.step()
                optimizer.zero_grad()
                logged = loss.item()
finally:
    print("STEPS", json.dumps(steps), flush=True)
