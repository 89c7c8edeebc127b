"""A parameter server's push and pull of 25 MB on virtual hosts: ``python -m benchmarks.push_pull``.

All ranks push a gradient at the same time and wait for the parameters: one synchronous step,
without a model. The first ranks serve and are workers, too, so that W = N − 1 workers are at the
other ends of a server's link. The laws, with S the bytes of all parameters and B what the link
carries:

    central, one server        2·W·S / B
    sharded over k servers     2·S·W / (k·B)

Beside them gloo's all-reduce of the same bytes, which is what DDP does: 2(N−1)/N · S / B. Target:
the server's times within 10 % of the laws. Other load on the machine slows links of high rates.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from benchmarks.cells import cpu_cell
from scalebench.launch.lab.lab import Lab
from scalebench.spec import ParameterServer, StepPlan
from scalebench.spec.virtual_hosts import PAYLOAD_SHARE, VirtualHosts, parse_rate
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.place import enter
from scalebench.worker.process.setup import die_with_parent, schedule_as_batch
from scalebench.worker.strategies.asynchronous.parameter_server import ParameterServerTraining

TARGET = 0.10
NUM_BYTES = 25_000_000
LIMIT_S = 300


def parameters_only(module: torch.nn.Module) -> Workload:
    """Return a workload whose model is never called; a step of SGD is the cheapest there is."""
    return Workload(
        module=module,
        batches=[],
        loss=lambda *_: torch.zeros(()),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    )


def server_seconds(rank: int, world_size: int, servers: int, repeats: int) -> list[float]:
    """Return the time of each push and pull, that of the rank which took longest."""
    strategy = ParameterServer(servers=servers, staleness_bound=0)
    cell = cpu_cell(world_size, StepPlan(steps=1), world_size, strategy)
    module = torch.nn.Linear(NUM_BYTES // 4, 1, bias=False)
    context = RankContext(cell, rank, rank, torch.device("cpu"), dist.group.WORLD)
    training = ParameterServerTraining(strategy, parameters_only(module), context)
    gradient = torch.ones(NUM_BYTES // 4)
    seconds = []
    for _ in range(1 + repeats):  # the first one opens the connections
        dist.barrier()
        began = time.perf_counter()
        training.parts.exchange(gradient)
        seconds.append(longest(time.perf_counter() - began))
    training.finish()
    return seconds[1:]


def all_reduce_seconds(repeats: int) -> list[float]:
    """Return the time of each all-reduce of the same bytes."""
    data = torch.ones(NUM_BYTES // 4)
    seconds = []
    for _ in range(1 + repeats):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(data)
        seconds.append(longest(time.perf_counter() - began))
    return seconds[1:]


def longest(own_s: float) -> float:
    """Return the longest of all ranks' times."""
    value = torch.tensor([own_s], dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return float(value)


def run_rank(
    rank: int, world_size: int, store: Path, parent: int, place: dict[str, Any], given: Any
) -> None:
    """Measure as one rank; rank 0 prints."""
    die_with_parent(parent)
    enter(place["place"])
    os.environ.update(place["environment"])
    schedule_as_batch()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=FileStore(os.fspath(store), world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=LIMIT_S),
    )
    byte_per_s = parse_rate(given.link) / 8 * PAYLOAD_SHARE
    others = world_size - 1
    for servers in (1, world_size):
        name = "central" if servers == 1 else f"{servers} servers"
        found = server_seconds(rank, world_size, servers, given.repeats)
        law_s = 2 * NUM_BYTES * others / (servers * byte_per_s)
        if rank == 0:
            print(told(f"N={world_size} {name}", found, law_s), flush=True)
    found = all_reduce_seconds(given.repeats)
    if rank == 0:
        law_s = 2 * others / world_size * NUM_BYTES / byte_per_s
        print(told(f"N={world_size} all-reduce", found, law_s), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def told(name: str, seconds: list[float], law_s: float) -> str:
    """Return a line with the median, the law, and how far apart they are."""
    off = median(seconds) / law_s - 1
    word = "met" if abs(off) <= TARGET else "MISSED"
    return (
        f"{name:>16}: {median(seconds):.3f} s (of {len(seconds)}: {min(seconds):.3f} to "
        f"{max(seconds):.3f}), law {law_s:.3f} s, {100 * off:+.1f} % (target ±{100 * TARGET:.0f} %:"
        f" {word})"
    )


def main() -> None:
    """Make the hosts, and fork the ranks of each world size from this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--link", default="50mbit")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    fork = multiprocessing.get_context("fork")
    for world_size in given.world_sizes:
        lab = Lab(VirtualHosts(link_bit_per_s=(parse_rate(given.link),)), world_size)
        try:
            with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
                ranks = [
                    fork.Process(
                        target=run_rank,
                        args=(
                            *(rank, world_size, Path(folder) / "store", os.getpid()),
                            *(lab.of(rank), given),
                        ),
                    )
                    for rank in range(world_size)
                ]
                for process in ranks:
                    process.start()
                for process in ranks:
                    process.join()
        finally:
            lab.close()
        if any(process.exitcode for process in ranks):
            raise SystemExit(f"the ranks of world size {world_size} failed")


if __name__ == "__main__":
    main()
