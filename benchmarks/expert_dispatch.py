"""Tokens sent to experts and back, beside a permute: ``python -m benchmarks.expert_dispatch``.

The same rows are put in the order of their experts and back on one rank, which sends nothing, and
exchanged by the dispatch of `Expert`; the experts do nothing. Beside them an even all-to-all of the
same bytes, there and back, which is what the link alone takes. All of it in one job, turn about.
The time is that of the rank that took longest, from a barrier on. A link between two processes of
one machine is its memory: on a network, dispatch costs more.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import init_device_mesh

from scalebench import units
from scalebench.launch.local import loopback_environment
from scalebench.worker.process.setup import die_with_parent, schedule_as_batch
from scalebench.worker.strategies.expert import LoadHistory, dispatched
from scalebench.worker.workloads.moe import route

NUM_WARMUP = 5
EXPERTS, TOP_K = 8, 2
SHAPES = ((1024, 128), (4096, 512), (8192, 1024))
"""Tokens of a rank, and their width."""


def contestants(tokens: int, width: int, skew: float) -> dict[str, Callable[[], object]]:
    """Return what is timed: forward passes on rows of this rank, none of which keeps anything.

    Args:
        tokens: Of the rank.
        width: Of a token.
        skew: Added to the router's logit of expert 0: the more, the busier it is.
    """
    world_size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("expert",))
    x = torch.randn(tokens, width)
    logits = torch.randn(1, tokens, EXPERTS)
    logits[..., 0] += skew
    routing = route(logits, TOP_K, None)
    rows = x[routing.token]
    load = LoadHistory(1, world_size)
    even = torch.empty_like(rows)

    def permute() -> object:
        worked = x[routing.token]
        return torch.zeros_like(x).index_add(0, routing.token, worked)

    def dispatch() -> object:
        worked = dispatched(
            lambda came, *_: came, mesh, load, 0, x[routing.token], routing.counts, routing.chosen
        )
        return torch.zeros_like(x).index_add(0, routing.token, worked)

    def link() -> object:
        dist.all_to_all_single(even, rows)
        return dist.all_to_all_single(rows, even)

    if not torch.allclose(torch.as_tensor(permute()), torch.as_tensor(dispatch()), atol=1e-5):
        raise RuntimeError("dispatch does not bring back what it was given")
    return {"permute": permute, "dispatch": dispatch, "even all-to-alls": link}


def measure(timed: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round of each, the same on all ranks."""
    seconds = torch.zeros(NUM_WARMUP + rounds, len(timed), dtype=torch.float64)
    for index in range(len(seconds)):
        for place, run in enumerate(timed.values()):
            dist.barrier()
            began = time.perf_counter()
            run()
            seconds[index, place] = time.perf_counter() - began
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return dict(zip(timed, seconds[NUM_WARMUP:].T.tolist(), strict=True))


def run_rank(rank: int, world_size: int, store: Path, parent: int, rounds: int) -> None:
    """Measure as one rank; rank 0 prints."""
    die_with_parent(parent)
    schedule_as_batch()
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo",
        store=FileStore(os.fspath(store), world_size),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    for tokens, width in SHAPES:
        for skew in (0.0, 2.0):
            found = measure(contestants(tokens, width, skew), rounds)
            if rank == 0:
                print(line(world_size, tokens, width, skew, found), flush=True)
    dist.destroy_process_group()


def line(
    world_size: int, tokens: int, width: int, skew: float, found: dict[str, list[float]]
) -> str:
    """Return the medians, and their ratios to the permute of the same round."""
    size = units.bytes_(4 * TOP_K * tokens * width)
    sent = "even" if not skew else "one expert busy"
    told = ", ".join(f"{name} {units.seconds(median(s))}" for name, s in found.items())
    plain = found["permute"]
    ratio = median(a / b for a, b in zip(found["dispatch"], plain, strict=True))
    over = median(a / b for a, b in zip(found["dispatch"], found["even all-to-alls"], strict=True))
    return (
        f"{world_size} ranks, {tokens} tokens of {width} each, {size} a way, {sent}: {told}; "
        f"dispatch is {ratio:.1f} times a permute, {over:.2f} times the link alone"
    )


def main() -> None:
    """Measure at each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    os.environ |= loopback_environment()
    cores = len(os.sched_getaffinity(0))
    fork = multiprocessing.get_context("fork")
    for world_size in arguments.ranks:
        if world_size > cores:
            print(f"{world_size} ranks on {cores} cores are oversubscribed: mechanics only")
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            ranks = [
                fork.Process(
                    target=run_rank, args=(rank, world_size, store, os.getpid(), arguments.rounds)
                )
                for rank in range(world_size)
            ]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()


if __name__ == "__main__":
    main()
