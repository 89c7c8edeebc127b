"""What scalebench adds to the stall of a checkpoint: its saves beside the same saves by hand.

``python -m benchmarks.checkpoint_stall [--ranks 2] [--rounds 150] [--directory /dev/shm]
[--methods sharded async]``. One training over gloo; in every round it is saved by scalebench, by
hand, and by hand again (A/A), in random order, with a step before each save, for each method. By
hand means: what a script calls that wants to continue bit for bit, which is torch.save or
torch.distributed.checkpoint with the same tensors. The stall is that of the slowest rank. In memory
(/dev/shm) a save is shortest, so what is added is the largest share of it. Target: upper 95 % bound
< 1 %.

A user's own script keeps its calls, and a clock around them is all that is added: its cost is
printed as well.
"""

import argparse
import multiprocessing
import os
import pickle
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.checkpoint import FileSystemWriter, async_save
from torch.distributed.checkpoint import save as save_sharded

from benchmarks.paired import judge, paired_difference
from benchmarks.verdict import print_section
from scalebench.launch.local import loopback_environment
from scalebench.spec import Cell, Ddp, StepPlan
from scalebench.spec.presets import PRESETS
from scalebench.spec.recovery import SaveMethod
from scalebench.worker.attach.between import Between
from scalebench.worker.checkpoints.methods import Saver, open_saver
from scalebench.worker.checkpoints.store import CheckpointStore
from scalebench.worker.checkpoints.trainee import Trainee
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.setup import die_with_parent, schedule_as_batch

LIMIT = 0.01
METHODS: tuple[SaveMethod, ...] = ("full", "sharded", "async")
OURS, HAND, AGAIN = "scalebench", "hand", "again"
ARMS = (OURS, HAND, AGAIN)
WARMUP_ROUNDS = 3
TIMEOUT_S = 60
CLOCK_CALLS = 100_000


class Job:
    """One rank's training, and both ways to save it.

    Args:
        context: Of the rank.
        folder: For checkpoints; empty.
    """

    def __init__(self, context: RankContext, folder: Path) -> None:
        self.context = context
        self.trainee = Trainee(context)
        self.saver: Saver = open_saver(context)
        self.store = CheckpointStore(folder)

    def stall_s(self, arm: str, method: SaveMethod) -> float:
        """Train a step and save; return the stall of this rank, seconds."""
        self.trainee.train(1)
        at_home = self.context.rank == 0
        if at_home:
            self.store.begin(self.trainee.step)
            if arm == OURS:
                self.trainee.write_facts(self.store)
        self.context.barrier()
        began = time.monotonic_ns()
        if arm == OURS:
            saving = self.trainee.begin_save(self.store, self.saver, method)
            stall_ns = saving.returned_ns - began
            saving.wait()
        else:
            finish = BY_HAND[method](self, self.store.partial(self.trainee.step))
            stall_ns = time.monotonic_ns() - began
            finish()
        self.context.barrier()
        if at_home:
            shutil.rmtree(self.store.root)
        return stall_ns / 1e9

    def model(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the module, without DDP's prefix."""
        module: Any = self.trainee.training.module
        state: dict[str, torch.Tensor] = getattr(module, "module", module).state_dict()
        return state

    def full(self, folder: Path) -> Callable[[], None]:
        """Have rank 0 save everything, with the random state of every rank."""
        at_home = self.context.rank == 0
        states: list[Any] = [None] * self.context.cell.world_size
        own = torch.get_rng_state(), random.getstate(), np.random.get_state()
        if self.context.control is not None:
            dist.gather_object(own, states if at_home else None, group=self.context.control)
        if at_home:
            optimizer = self.trainee.training.optimizer.state_dict()
            content = {"model": self.model(), "optimizer": optimizer, "random": states}
            torch.save(content, folder / "state.pt")
        self.context.barrier()
        return lambda: None

    def parts(self) -> dict[str, Any]:
        """Return the tensors for torch.distributed.checkpoint, under flat names."""
        named = list(getattr(self.trainee.training.module, "module", None).named_parameters())  # type: ignore[union-attr]
        held = self.trainee.training.optimizer.state
        found = {f"model.{name}": tensor for name, tensor in self.model().items()}
        for name, parameter in named:
            found |= {f"optimizer.{name}.{key}": value for key, value in held[parameter].items()}
        random_states = torch.get_rng_state(), random.getstate(), np.random.get_state()
        content = bytearray(pickle.dumps(random_states, pickle.HIGHEST_PROTOCOL))
        return found | {f"random.{self.context.rank}": torch.frombuffer(content, dtype=torch.uint8)}

    def sharded(self, folder: Path) -> Callable[[], None]:
        """Have every rank save its part."""
        group = self.saver.group
        writer = FileSystemWriter(folder)
        save_sharded(
            self.parts(), storage_writer=writer, process_group=group, no_dist=group is None
        )
        return lambda: None

    def in_background(self, folder: Path) -> Callable[[], None]:
        """Have every rank copy its part and write it in the background."""
        group = self.saver.group
        writer = FileSystemWriter(folder)
        pending: Any = async_save(
            self.parts(), storage_writer=writer, process_group=group, no_dist=group is None
        )
        return lambda: pending.result()


BY_HAND: dict[SaveMethod, Callable[[Job, Path], Callable[[], None]]] = {
    "full": Job.full,
    "sharded": Job.sharded,
    "async": Job.in_background,
}


def make_cell(world_size: int) -> Cell:
    """Return a cell of the case ``ddp`` of suite recovery."""
    return Cell(
        suite="recovery",
        case="ddp",
        strategy=Ddp(),
        workload=PRESETS["gpt-tiny"],
        scaling="strong",
        world_size=world_size,
        global_batch=16,
        rank_batch=16 // world_size,
        device="cpu",
        backend="gloo",
        threads=1,
        purpose="save",
        steps=StepPlan(),
    )


def measure(
    job: Job, rounds: int, methods: tuple[SaveMethod, ...]
) -> dict[SaveMethod, dict[str, list[float]]]:
    """Return the stalls of the slowest rank, seconds: method → arm → one for each round."""
    chance = random.Random(26)  # the same order on every rank
    found: dict[SaveMethod, dict[str, list[float]]] = {m: {a: [] for a in ARMS} for m in methods}
    for number in range(-WARMUP_ROUNDS, rounds):
        for method in methods:
            for arm in chance.sample(ARMS, len(ARMS)):
                (slowest,) = job.context.agree_max([job.stall_s(arm, method)])
                if number >= 0:
                    found[method][arm].append(slowest)
    return found


def clock_s() -> float:
    """Return what the clock around a script's call costs, seconds a call."""
    timed = Between().saving(lambda: None)
    began = time.perf_counter()
    for _ in range(CLOCK_CALLS):
        timed()
    return (time.perf_counter() - began) / CLOCK_CALLS


def report(method: SaveMethod, stalls: dict[str, list[float]], clock: float) -> None:
    """Print one method's comparison."""
    hand_s = median(stalls[HAND])
    ours = paired_difference(stalls[OURS], stalls[HAND])
    same = paired_difference(stalls[AGAIN], stalls[HAND])
    print_section(
        f"Stall of a checkpoint, {method}",
        f"by hand                 {1e3 * hand_s:.2f} ms",
        f"A/A, by hand twice      {same}",
        f"A/B, by scalebench      {ours}",
        f"  {judge(ours, same, LIMIT)}",
        f"clock in a script       {1e6 * clock:.1f} µs, {100 * clock / hand_s:.3f} % of the stall",
    )


def run_rank(
    rank: int,
    world_size: int,
    rounds: int,
    methods: tuple[SaveMethod, ...],
    folder: Path,
    parent: int,
) -> None:
    """Measure as one rank; rank 0 prints."""
    die_with_parent(parent)
    schedule_as_batch()
    torch.set_num_threads(1)
    timeout = timedelta(seconds=TIMEOUT_S)
    store = FileStore(os.fspath(folder / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    control = dist.new_group(backend="gloo", timeout=timeout)
    context = RankContext(make_cell(world_size), rank, rank, torch.device("cpu"), control)
    stalls = measure(Job(context, folder / "checkpoints"), rounds, methods)
    if rank == 0:
        clock = clock_s()
        for method in methods:
            report(method, stalls[method], clock)
    dist.destroy_process_group()


def main() -> None:
    """Fork the ranks from this process, which has torch imported."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    given = parser.parse_args()
    os.environ.update(loopback_environment())
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="scalebench-bench-", dir=given.directory) as folder:
        shared = (given.ranks, given.rounds, tuple(given.methods), Path(folder), os.getpid())
        ranks = [fork.Process(target=run_rank, args=(rank, *shared)) for rank in range(given.ranks)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise SystemExit("a rank failed")


if __name__ == "__main__":
    main()
