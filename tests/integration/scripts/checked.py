"""Training with DDP that is right, or wrong in the ways that its argument names."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

wrong = sys.argv[1].split("+")
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 32), torch.randint(0, 10, (256,)))
sampler = None if "data" in wrong else DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
held_out = DataLoader(data, 8, sampler=DistributedSampler(data))  # evaluated in one order
next(iter(loader))  # a look at a batch begins no epoch
torch.manual_seed(dist.get_rank())
norm = nn.BatchNorm1d(64) if "norm" in wrong else nn.LayerNorm(64)
body = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), norm, nn.ReLU(), nn.Linear(64, 64)))
head = nn.Linear(64, 10)
if "outside" in wrong:
    model = nn.Sequential(body, head)
else:
    model = DistributedDataParallel(nn.Sequential(body.module, head))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(100_000):
    if sampler is not None and "order" not in wrong:
        sampler.set_epoch(epoch)
    with torch.no_grad():
        model(next(iter(held_out))[0])
    for inputs, labels in loader:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if "noise" in wrong:
            with torch.no_grad():
                head.weight.add_(1e-4 * dist.get_rank())
        optimizer.zero_grad()
