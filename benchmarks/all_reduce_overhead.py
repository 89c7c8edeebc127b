"""What timing an all-reduce through scalebench adds to the same calls in a bare loop.

``python -m benchmarks.all_reduce_overhead``. Two processes over gloo; blocks of operations take
turns between `scalebench.worker.probes.timed` and a loop that does nothing else. Both work on
buffers made alike, one for each operation, and the time is that of the same rank's clock. Target:
at most 1.01 times the bare loop.
"""

import multiprocessing
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from benchmarks.paired import paired_difference
from benchmarks.verdict import against_limit
from scalebench.launch.local import loopback_environment
from scalebench.spec.probes import Sweep, Transfer
from scalebench.worker.collectives.operations import Operation, build
from scalebench.worker.probes import timed
from scalebench.worker.process.context import JobContext
from scalebench.worker.process.setup import die_with_parent, schedule_as_batch

TARGET = 1.01
WORLD_SIZE = 2
SIZES = {64 * 1024: (40, 800), 1_000_000: (20, 600), 25_000_000: (3, 200)}
"""Bytes → operations in a block, and pairs of blocks."""


def bare(operations: list[Operation], _: JobContext[Sweep]) -> float:
    """Return the mean time of an operation in a bare loop, seconds; the first counts not."""
    tensors = [operation.output for operation in operations]
    dist.barrier()
    dist.all_reduce(tensors[0])
    began = time.perf_counter()
    for tensor in tensors[1:]:
        dist.all_reduce(tensor)
    return (time.perf_counter() - began) / (len(tensors) - 1)


def through_scalebench(operations: list[Operation], context: JobContext[Sweep]) -> float:
    """Return the same, as a calibration times it."""
    each_s = timed(operations, context)
    return sum(each_s) / len(each_s)


def rank_context() -> JobContext[Sweep]:
    """Return what scalebench asks of a job, for the group that this process is in."""
    job = SimpleNamespace(world_size=WORLD_SIZE, virtual_hosts=None)
    return SimpleNamespace(  # type: ignore[return-value]
        job=job,
        rank=dist.get_rank(),
        device=torch.device("cpu"),
        barrier=dist.barrier,
        agree_max=list,
    )


def run_rank(rank: int, store: Path, parent: int) -> None:
    """Measure as one rank; rank 0 prints."""
    die_with_parent(parent)
    schedule_as_batch()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=FileStore(os.fspath(store), WORLD_SIZE),
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=60),
    )
    ways, context = (through_scalebench, bare), rank_context()
    for num_bytes, (count, pairs) in SIZES.items():
        seconds = torch.zeros(pairs, 2, dtype=torch.float64)
        for pair in range(-2, pairs):
            for which in (0, 1) if pair % 2 else (1, 0):
                transfer = Transfer(operation="all_reduce", size_bytes=num_bytes)
                operations = [build(transfer, context) for _ in range(count + 1)]
                took = ways[which](operations, context)
                if pair >= 0:
                    seconds[pair, which] = took
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        if rank == 0:
            ours, theirs = seconds.T.tolist()
            difference = paired_difference(ours, theirs)
            print(
                f"{num_bytes:>10,} B  {1e6 * median(ours):>9.0f} µs, bare "
                f"{1e6 * median(theirs):>9.0f} µs  "
                f"{against_limit(1 + difference.value, TARGET, 'times')}; {difference}",
                flush=True,
            )
    dist.destroy_process_group()


def main() -> None:
    """Fork the ranks from this process, which has torch imported."""
    os.environ.update(loopback_environment())
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
        place = (Path(folder) / "store", os.getpid())
        ranks = [fork.Process(target=run_rank, args=(rank, *place)) for rank in range(WORLD_SIZE)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise SystemExit("a rank failed")


if __name__ == "__main__":
    main()
