"""What the order of pushes gains on a slow link: ``python -m benchmarks.priority``.

Two virtual hosts train a model of stages that take a fixed time, with real parameters, through a
synchronous parameter server on rank 0. The first stage is as large as all the others together: its
gradient comes last, and the next forward pass needs it first. Compared are the steps with

    together    one message after the backward pass
    backward    whole tensors during the backward pass, in its order
    priority    chunks, those first that the next forward pass needs first

Beside them the time that a step needs if nothing overlaps, and if the link never waits: its bytes
in the one direction that has most.
"""

import argparse
import multiprocessing
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore

from benchmarks.cells import cpu_cell
from benchmarks.push_pull import LIMIT_S, longest
from scalebench.launch.lab.lab import Lab
from scalebench.spec import ParameterServer, StepPlan
from scalebench.spec.presets import PacedShape
from scalebench.spec.virtual_hosts import PAYLOAD_SHARE, VirtualHosts, parse_rate
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.place import enter
from scalebench.worker.process.setup import die_with_parent, schedule_as_batch
from scalebench.worker.strategies.asynchronous.overlapped_server import OverlappedServerTraining
from scalebench.worker.strategies.asynchronous.parameter_server import ParameterServerTraining
from scalebench.worker.workloads.paced import Stage

Pushes = Literal["together", "backward", "priority"]
ORDERS: tuple[Pushes, ...] = ("together", "backward", "priority")


def stages(sizes: list[int], compute_s: float) -> nn.Sequential:
    """Return stages of some numbers of parameters, which share a step's computing time."""
    built = []
    for size in sizes:
        shape = PacedShape(
            name="stage", stages=1, stage_parameters=size, sample_s=compute_s, batch_size=1
        )
        built.append(Stage(shape, torch.randn(size) / size))
    for stage in built:
        stage.forward_s /= len(sizes)
        stage.backward_s /= len(sizes)
    return nn.Sequential(*built)


def step_seconds(rank: int, world_size: int, pushes: Pushes, given: Any) -> list[float]:
    """Return the time of each block of steps over its steps, that of the slowest rank."""
    torch.manual_seed(0)
    workload = Workload(
        module=stages(sizes_of(given), given.compute),
        batches=[],
        loss=lambda module, batch: module(batch).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    )
    strategy = ParameterServer(staleness_bound=0, pushes=pushes)
    cell = cpu_cell(world_size, StepPlan(steps=1), world_size, strategy)
    context = RankContext(cell, rank, rank, torch.device("cpu"), dist.group.WORLD)
    training: Any
    if pushes == "together":
        training = ParameterServerTraining(strategy, workload, context)
    else:
        training = OverlappedServerTraining(strategy, workload, context)
    batch = torch.ones(1, 16)
    training.step(batch)
    seconds = []
    for _ in range(given.blocks):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(given.steps):
            training.step(batch)
        if pushes != "together":
            training.settle()
        seconds.append(longest(time.perf_counter() - began) / given.steps)
    training.finish()
    return seconds


def sizes_of(given: Any) -> list[int]:
    """Return the parameters of each stage: the first has half of all."""
    total = round(given.megabytes * 1e6 / 4)
    return [total // 2, *[total // 2 // (given.stages - 1)] * (given.stages - 1)]


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
    one_way_s = 4 * sum(sizes_of(given)) * (world_size - 1)
    one_way_s /= parse_rate(given.link) / 8 * PAYLOAD_SHARE
    if rank == 0:
        print(
            f"N={world_size}, {given.link}, {given.megabytes:g} MB in {given.stages} stages, "
            f"{given.compute:.2f} s of computing: a step without overlap "
            f"{given.compute + 2 * one_way_s:.3f} s, "
            f"never below {max(given.compute, one_way_s):.3f} s",
            flush=True,
        )
    found = {pushes: step_seconds(rank, world_size, pushes, given) for pushes in ORDERS}
    if rank == 0:
        plain_s = median(found["backward"])
        for pushes, seconds in found.items():
            print(
                f"{pushes:>10}: {median(seconds):.3f} s a step ({min(seconds):.3f} to "
                f"{max(seconds):.3f}, {given.blocks} blocks of {given.steps} steps), "
                f"{plain_s / median(seconds):.2f} times the pace of backward",
                flush=True,
            )
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Make the hosts, and fork the ranks from this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--megabytes", type=float, default=8.0)
    parser.add_argument("--stages", type=int, default=9)
    parser.add_argument("--compute", type=float, default=0.6, help="seconds of a step")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=3)
    given = parser.parse_args()
    fork = multiprocessing.get_context("fork")
    world_size = given.world_size
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
        raise SystemExit("a rank failed; see above")


if __name__ == "__main__":
    main()
