"""Steps that differ by design, mostly asleep: a loader's bursts, or play before some updates.

The mean step by the script's own clock is printed at the end.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

NAP_S = 0.16
"""What a loader's worker takes for a batch of 8, and what play takes before 8 updates."""
FIRST = 16
"""Behind the batches that workers have made before the first step."""


class Slow(Dataset):
    """Samples that take long."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(NAP_S / 8)
        return torch.zeros(16), index % 2


dist.init_process_group("gloo")
loads = sys.argv[1] == "loader"
model = nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = iter(DataLoader(Slow(), 8, num_workers=4)) if loads else None
ends = []
try:
    while True:
        if batches is not None:
            inputs, _ = next(batches)
        else:
            inputs = torch.zeros(8, 16)
            time.sleep(NAP_S if len(ends) % 8 == 0 else 0.002)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        ends.append(time.perf_counter())
        optimizer.step()
        if len(ends) % 16 == 0 and dist.get_world_size() > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
finally:
    long = [i for i in range(FIRST, len(ends)) if ends[i] - ends[i - 1] > NAP_S / 4]
    whole_s = ends[long[-1]] - ends[long[0]]  # from the end of a long step to that of another
    print("MEAN", json.dumps(whole_s / (long[-1] - long[0])), flush=True)
