"""Evaluates and saves every 20 steps, on rank 0, for a known time; FSDP2 if asked."""

import argparse
import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EVERY = 20
EVALUATION_S = 0.2
SAMPLES = 16

parser = argparse.ArgumentParser()
parser.add_argument("--fsdp", action="store_true")
parser.add_argument("--into", default=tempfile.gettempdir())
arguments = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 32))
train = DataLoader(data, SAMPLES, sampler=DistributedSampler(data, shuffle=False))
evaluation = DataLoader(TensorDataset(torch.randn(512, 32)), 128)
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 32))
if arguments.fsdp:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
else:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
evaluated = []
steps = 0
try:
    for _ in range(2000):
        for (inputs,) in train:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            steps += 1
            optimizer.step()
            if steps % EVERY == 0 and dist.get_rank() == 0 and not arguments.fsdp:
                with torch.no_grad():
                    for (held_out,) in evaluation:
                        model.module(held_out)
                time.sleep(EVALUATION_S)
                torch.save(model.state_dict(), os.path.join(arguments.into, "model.pt"))
                evaluated.append(steps)
finally:
    print("STEPS", json.dumps(steps), flush=True)
    print("EVALUATED", json.dumps(evaluated), flush=True)
