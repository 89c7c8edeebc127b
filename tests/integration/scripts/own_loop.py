"""A program of one's own: it watches its training by itself, twice."""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import scalebench

before = torch.optim.Optimizer, nn.Module.train, torch.save, torch.autograd.backward
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(512, 64)), 16)


def train(epochs):
    """Train, and return the number of steps."""
    steps = 0
    for _ in range(epochs):
        for (inputs,) in loader:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            steps += 1
    return steps


def tell(word, value):
    """Write a line at once, so that those of two ranks do not mix."""
    sys.stdout.write(f"{word} {json.dumps(value)}\n")
    sys.stdout.flush()


with scalebench.watch(sys.argv[1], name="my loop", steps=40) as w:
    steps = train(60)
after = torch.optim.Optimizer, nn.Module.train, torch.save, torch.autograd.backward
tell("AS BEFORE", before == after)
tell("STEPS", [steps, len(w.record.step_s)])
tell("RUN", w.run is not None)
try:
    with scalebench.watch(sys.argv[2]) as again:
        pass
except Exception as error:
    tell("NOTHING", [type(error).__name__, str(error)])
if w.run is not None:
    print(w)
dist.destroy_process_group()
