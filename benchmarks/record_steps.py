"""Record real step times with known slowdowns in them, as the fixture that gate rules are tried on.

``python -m benchmarks.record_steps FILE``. One process trains gpt-tiny; short blocks of steps take
turns between four arms: the step as it is, twice (A and B: nothing differs), with 2 %, and with
5 % of its median spent in a spin at its end. A window is one round there and back over the arms, so
that a drift hits all alike. In a second recording other processes keep the cores busy from half way
on. About 5 minutes on two quiet cores. Nothing is judged here; see
benchmarks/gate_recorded.py.
"""

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from scalebench.spec.presets import PRESETS
from scalebench.spec.workload import Shard
from scalebench.worker.workloads import build_workload

ARMS = {"a": 0.0, "b": 0.0, "slower-2": 0.02, "slower-5": 0.05}
THERE_AND_BACK = (*ARMS, *reversed(ARMS))
STEPS = 6
"""Of a block; the first counts for nothing and is not kept."""

WINDOWS, WINDOWS_WITH_LOAD = 320, 160
BATCH = 4


class Trainer:
    """gpt-tiny in one thread, and how long its steps take."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        cpu = torch.device("cpu")
        self.workload = build_workload(PRESETS["gpt-tiny"], Shard(0, 1, BATCH, 0, cpu))
        self.optimizer = torch.optim.AdamW(self.workload.module.parameters(), lr=1e-3)
        self.batch = next(iter(self.workload.batches))

    def step(self) -> None:
        """Train on one batch, always the same."""
        self.optimizer.zero_grad()
        self.workload.loss(self.workload.module, self.batch).backward()
        self.optimizer.step()

    def block(self, spin_s: float) -> list[float]:
        """Run a block; return its steps but the first, seconds."""
        marks = [time.perf_counter()]
        for _ in range(STEPS):
            self.step()
            until = time.perf_counter() + spin_s
            while time.perf_counter() < until:
                pass
            marks.append(time.perf_counter())
        return np.diff(marks)[1:].tolist()


def record(trainer: Trainer, num_windows: int, load_from: int) -> tuple[np.ndarray, float]:
    """Return step times, shape [windows, blocks there and back, steps], and the median before.

    Both in seconds. The slowdowns are parts of that median, whatever the steps then really take.
    """
    median_s = statistics.median(x for _ in range(20) for x in trainer.block(0.0))
    windows = []
    with busy_neighbours() as start:
        for index in range(num_windows):
            if index == load_from:
                start()
            windows.append([trainer.block(ARMS[arm] * median_s) for arm in THERE_AND_BACK])
    return np.array(windows, dtype=np.float32), median_s


@contextmanager
def busy_neighbours() -> Iterator:
    """Yield what starts a process for each core that has nothing to do but to keep it busy."""
    others = [
        multiprocessing.Process(target=_spin, daemon=True) for _ in range(os.cpu_count() or 1)
    ]

    def start() -> None:
        for other in others:
            other.start()

    yield start
    for other in others:
        if other.is_alive():
            other.kill()
            other.join()


def _spin() -> None:
    while True:
        pass


def main() -> None:
    """Record both, and write them into one compressed file."""
    trainer = Trainer()
    quiet, quiet_median_s = record(trainer, WINDOWS, load_from=WINDOWS)
    loaded, loaded_median_s = record(trainer, WINDOWS_WITH_LOAD, load_from=WINDOWS_WITH_LOAD // 2)
    np.savez_compressed(
        sys.argv[1],
        quiet_s=quiet,
        loaded_s=loaded,
        quiet_median_s=quiet_median_s,
        loaded_median_s=loaded_median_s,
        arms=np.array(THERE_AND_BACK),
        torch=np.array(torch.__version__),
    )
    print(f"{np.median(quiet) * 1e3:.2f} ms median step; {quiet.shape} and {loaded.shape}")


if __name__ == "__main__":
    main()
