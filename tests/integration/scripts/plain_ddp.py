"""DistributedDataParallel as in PyTorch's tutorial, with a clock and a counter of its own."""

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torch.utils.data.distributed import DistributedSampler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--delay", type=float, default=0.0, help="of a batch, seconds")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
    loaded = []

    def collate(samples):
        if dist.get_rank() == arguments.slow_rank:
            time.sleep(arguments.delay)
        return default_collate(samples)

    def clocked(batches):
        before = time.monotonic()
        for batch in batches:
            loaded.append(time.monotonic() - before)
            yield batch
            before = time.monotonic()

    sampler = DistributedSampler(data)
    loader = DataLoader(data, arguments.batch, sampler=sampler, collate_fn=collate)
    module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()
    ends = []
    try:
        while len(ends) < arguments.steps:
            sampler.set_epoch(len(ends))
            for inputs, labels in clocked(loader):
                optimizer.zero_grad()
                loss_of(model(inputs), labels).backward()
                optimizer.step()
                ends.append(time.monotonic())
                if len(ends) == arguments.steps:
                    break
    finally:
        ends.append(time.monotonic())  # scalebench ends the script inside its last step
        print("OWN", json.dumps(ends), flush=True)
        print("LOADED", json.dumps(loaded), flush=True)
        scheduled = [os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))]
        print("SCHEDULED", json.dumps(scheduled), flush=True)
        print("SESSION", json.dumps(os.getsid(0)), flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
