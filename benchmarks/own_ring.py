"""The ring written here against gloo's own all-reduce, 25 MB: ``python -m benchmarks.own_ring``.

Both run in one job, turn about, so that they share what the machine does to them. The time of one
all-reduce is that of the rank that took longest, from a barrier on. Target: at most 1.3 times as
long as gloo. More ranks than cores is measured, too, and says little about either.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from benchmarks.paired import paired_difference
from benchmarks.verdict import against_limit
from scalebench.launch.local import loopback_environment
from scalebench.worker.collectives import ALL_REDUCES
from scalebench.worker.process.setup import die_with_parent, schedule_as_batch

TARGET = 1.3
NUM_BYTES = 25_000_000
NUM_WARMUP = 5


def measure(own: Callable[[torch.Tensor], None], num_pairs: int) -> torch.Tensor:
    """Return the seconds of each all-reduce, ``[pair, own or gloo]``, the same on all ranks."""
    data = torch.ones(NUM_BYTES // 4)
    seconds = torch.zeros(NUM_WARMUP + num_pairs, 2, dtype=torch.float64)
    for pair in range(len(seconds)):
        for which in (0, 1) if pair % 2 else (1, 0):
            data.fill_(1.0)
            dist.barrier()
            began = time.perf_counter()
            own(data) if which == 0 else dist.all_reduce(data)
            seconds[pair, which] = time.perf_counter() - began
            dist.barrier()  # what follows takes no processor from a rank that is not done
            if not (data == dist.get_world_size()).all():
                raise RuntimeError(f"{('own', 'gloo')[which]}: the sum is wrong")
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds[NUM_WARMUP:]


def run_rank(rank: int, world_size: int, store: Path, parent: int, arguments: Any) -> None:
    """Measure as one rank; rank 0 prints."""
    die_with_parent(parent)
    schedule_as_batch()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=FileStore(os.fspath(store), world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    options = {"segment_bytes": arguments.segment} if arguments.segment else {}
    if arguments.both_ways:
        options["both_ways"] = True
    own = partial(ALL_REDUCES[arguments.algorithm], **options)
    seconds = measure(own, arguments.pairs)
    if rank == 0:
        print_result(seconds, world_size, arguments)
    dist.destroy_process_group()


def print_result(seconds: torch.Tensor, world_size: int, arguments: Any) -> None:
    """Print the ratio beside its target."""
    own_s, gloo_s = seconds.T.tolist()
    difference = paired_difference(own_s, gloo_s)
    ratio = median(a / b for a, b in zip(own_s, gloo_s, strict=True))
    cores = len(os.sched_getaffinity(0))
    print(
        f"N={world_size}{f' (oversubscribed: {cores} cores)' if world_size > cores else ''}: "
        f"{arguments.algorithm} {1e3 * median(own_s):.1f} ms, gloo {1e3 * median(gloo_s):.1f} ms, "
        f"medians of {arguments.pairs}\n"
        f"  median ratio {against_limit(ratio, TARGET, 'times gloo')}\n"
        f"  paired: own takes {difference} longer",
        flush=True,
    )


def main() -> None:
    """Fork the ranks of each world size from this process, which has torch imported."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument(
        "--algorithm", choices=sorted(set(ALL_REDUCES) - {"hierarchical"}), default="ring"
    )
    parser.add_argument("--both-ways", action="store_true", help="ring only")
    parser.add_argument("--segment", type=int, help="bytes of a message")
    arguments = parser.parse_args()
    os.environ.update(loopback_environment())
    fork = multiprocessing.get_context("fork")
    for world_size in arguments.world_sizes:
        with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
            place = (Path(folder) / "store", os.getpid(), arguments)
            ranks = [
                fork.Process(target=run_rank, args=(rank, world_size, *place))
                for rank in range(world_size)
            ]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
            if any(process.exitcode for process in ranks):
                raise SystemExit(f"the ranks of world size {world_size} failed")


if __name__ == "__main__":
    main()
