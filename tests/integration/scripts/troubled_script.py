"""A script with one of several troubles."""
# ruff: noqa: E402

import argparse
import importlib.util
import os
import time

assert importlib.util.find_spec("torch") is not None  # as datasets, transformers and others ask

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(steps, fails_at=None, distributed=True, wrapped=True, steppers=()):
    """Train, and fail on the last rank if asked."""
    rank = int(os.environ["RANK"])
    if distributed:
        dist.init_process_group()
    model = nn.Linear(16, 16) if wrapped else nn.Sequential(nn.Linear(16, 2048))
    model = DistributedDataParallel(model) if distributed and wrapped else model
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 16)).square().mean()
        loss.backward()
        if not steppers or rank in steppers:
            optimizer.step()
        if not wrapped:
            dist.all_reduce(loss.detach())  # to print it
        if step == fails_at and rank == int(os.environ["WORLD_SIZE"]) - 1 > 0:
            raise RuntimeError("a trouble of its own")


def worker(rank):
    """Would be spawned."""
    train(4096)


parser = argparse.ArgumentParser()
parser.add_argument("trouble")
trouble = parser.parse_args().trouble
if trouble == "never-steps":
    print("nothing to train")
elif trouble.startswith("short"):
    with open(f"rank{os.environ['RANK']}.txt", "w") as file:
        file.write(str(time.time_ns()))
    train(16)
    if trouble == "short-at-once":
        os._exit(0)
elif trouble == "too-short":
    train(2)
elif trouble == "fails":
    train(5000, fails_at=15)
elif trouble == "alone":
    train(5000, distributed=False)
elif trouble == "apart":  # as where mpi4py tells each that it is alone
    os.environ["RANK"], os.environ["WORLD_SIZE"] = "0", "1"
    os.environ["MASTER_PORT"] = "0"
    train(5000)
elif trouble == "one-steps":
    train(50_000, steppers=(0,))
elif trouble == "unwrapped":
    train(50_000, wrapped=False)
elif trouble == "nests":
    os.execvp("env", ["env", "OMP_NUM_THREADS=1", "torchrun", "train.py"])
elif trouble == "spawns":
    torch.multiprocessing.spawn(worker, nprocs=2)
elif trouble == "starts-ranks":
    ranks = [torch.multiprocessing.Process(target=worker, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
elif trouble == "catches-exit":
    for _ in range(4):
        try:
            train(5000, distributed=False)
        except SystemExit:
            print("caught", flush=True)
elif trouble == "by-hand":
    model = nn.Linear(16, 16)
    while True:
        model(torch.randn(4, 16)).square().mean().backward()
        for parameter in model.parameters():
            parameter.data -= 1e-3 * parameter.grad
            parameter.grad = None
elif trouble == "resumes":
    if os.path.exists("snapshot.pt"):
        print("Resuming at epoch", torch.load("snapshot.pt")["epoch"])
    else:
        train(16)
        torch.save({"epoch": 40}, "snapshot.pt")
