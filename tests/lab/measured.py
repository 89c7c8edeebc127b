"""Workloads that time something from inside a virtual host, copied next to the run.

Each rank writes what it measured into a file of its own: the other side of the test reads it
without asking scalebench.
"""

import os
import resource
import socket
import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import nn

from scalebench import Workload

LOG = Path(os.environ["MEASURED_LOG"])
NUM_BYTES = int(os.environ.get("MEASURED_BYTES", "0"))
SPIN_S = 0.25
PAUSE_S = 0.001


def write(shard, *values):
    with LOG.with_suffix(f".rank{shard.rank}").open("a") as log:
        log.write(" ".join(str(value) for value in values) + "\n")


def tiny(shard, loss):
    batches = [torch.ones(shard.batch_size, 2)]
    return Workload(module=nn.Linear(2, 1), batches=batches, loss=loss)


def all_reduces(shard):
    """Time an all-reduce of NUM_BYTES at every step."""
    tensor = torch.ones(max(NUM_BYTES // 4, 1))

    def loss(module, batch):
        if shard.world_size > 1:
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(tensor)
            write(shard, time.perf_counter() - began)
            tensor.fill_(1)
        return module(batch).mean()

    return tiny(shard, loss)


def connections(shard):
    """Count this rank's connections to other hosts at every step, and those that Reno controls."""

    def loss(module, batch):
        if shard.world_size > 1:
            controls = list(congestion_controls())
            write(shard, len(controls), controls.count("reno"))
        return module(batch).mean()

    return tiny(shard, loss)


def congestion_controls():
    for there in psutil.Process().net_connections("tcp"):
        if there.raddr and there.raddr.ip.rpartition(":")[2].startswith("10.0.0."):
            with socket.socket(fileno=os.dup(there.fd)) as one:
                name = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            yield name.rstrip(b"\0").decode()


def spins(shard):
    """Keep a core busy at every step; note wall clock, CPU time and the middle pause."""

    def loss(module, batch):
        began, used, pauses = time.perf_counter(), cpu_s(), []
        before = began
        while (now := time.perf_counter()) < began + SPIN_S:
            if now - before > PAUSE_S:
                pauses.append(now - before)
            before = now
        middle = sorted(pauses)[len(pauses) // 2] if pauses else 0.0
        write(shard, time.perf_counter() - began, cpu_s() - used, middle)
        return module(batch).mean()

    return tiny(shard, loss)


def cpu_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
