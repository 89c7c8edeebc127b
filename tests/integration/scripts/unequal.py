"""Steps that differ by design, mostly asleep: play before every eighth update.

Every sixteenth is followed by averaging. The mean step by the script's own clock is printed.
"""

import json
import time

import torch
import torch.distributed as dist
from torch import nn

NAP_S = 0.16
"""What play takes before 8 updates."""

dist.init_process_group("gloo")
model = nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
ends = []
try:
    while True:
        time.sleep(0.002 if len(ends) % 8 else NAP_S)
        optimizer.zero_grad()
        model(torch.zeros(8, 16)).square().mean().backward()
        ends.append(time.perf_counter())
        optimizer.step()
        if len(ends) % 16 == 0 and dist.get_world_size() > 1:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
finally:
    long = [i for i in range(16, len(ends)) if ends[i] - ends[i - 1] > NAP_S / 4]
    whole_s = ends[long[-1]] - ends[long[0]]  # from the end of a long step to that of another
    print("MEAN", json.dumps(whole_s / (long[-1] - long[0])), flush=True)
