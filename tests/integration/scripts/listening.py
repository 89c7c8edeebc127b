"""Tells at which addresses it and the process that started it listen, and trains until ended."""

import json
import os
import sys

import psutil
import torch
import torch.distributed as dist
from torch import nn

by_url = {}
if sys.argv[1:]:
    by_url = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    by_url["init_method"] = f"tcp://127.0.0.1:{sys.argv[1]}"
dist.init_process_group("gloo", **by_url)
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
here = psutil.Process()
found = [c for p in (here, here.parent()) for c in p.net_connections(kind="inet")]
ports = sorted({c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN})
print("LISTENS", json.dumps(ports), flush=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(1_000_000):  # longer than any measurement
    optimizer.zero_grad()
    model(torch.ones(8, 64)).square().mean().backward()
    optimizer.step()
