"""A generator and a discriminator: two optimizers, each with a backward pass of its own."""

import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 16

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
loader = DataLoader(TensorDataset(torch.randn(512, 8)), SAMPLES, shuffle=True)
generator = DistributedDataParallel(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 8)))
judge = DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1)))
of_generator = torch.optim.Adam(generator.parameters())
of_judge = torch.optim.Adam(judge.parameters())
steps = 0
try:
    for _ in range(2000):
        for (real,) in loader:
            steps += 1
            fake = generator(torch.randn(SAMPLES, 4))
            of_judge.zero_grad()
            (judge(fake.detach()).mean() - judge(real).mean()).backward()
            of_judge.step()
            of_generator.zero_grad()
            (-judge(generator(torch.randn(SAMPLES, 4))).mean()).backward()
            of_generator.step()
finally:
    print("STEPS", json.dumps(steps), flush=True)
