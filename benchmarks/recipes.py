"""Which learning rates the cases of suite ``batch`` get: ``python -m benchmarks.recipes``.

Every optimizer is compared at its own best of a small grid, the plain one included. One process
trains gpt-tiny on 4,096 samples with each rate; printed is the loss on the held-out samples after
each quarter. About ten minutes on two cores.
"""

import argparse

import torch

from scalebench.spec.presets import PRESETS
from scalebench.spec.race import OptimizerName, Recipe
from scalebench.spec.workload import Shard
from scalebench.worker.optimizers import optimizer_of, set_rate
from scalebench.worker.workloads import build_workload

GRID: list[tuple[OptimizerName, int, tuple[float, ...]]] = [
    ("adamw", 4, (5e-4, 1e-3, 2e-3, 4e-3)),
    ("adamw", 32, (1e-3, 2e-3, 4e-3, 8e-3)),
    ("nesterov", 32, (0.05, 0.2, 0.8)),
    ("lamb", 32, (5e-3, 1e-2, 2e-2, 4e-2)),
    ("lars", 32, (1.0, 4.0, 16.0, 64.0)),
]
"""Optimizer, batch, rates."""

SAMPLES, WARMUP = 4096, 256
DECAY: dict[OptimizerName, float] = {"nesterov": 1e-4, "lars": 1e-4}


def losses(recipe: Recipe, batch: int, seed: int) -> list[float]:
    """Return the losses on the held-out samples after each quarter of the samples."""
    torch.manual_seed(seed)
    shard = Shard(0, 1, batch, seed, torch.device("cpu"))
    workload = build_workload(PRESETS["gpt-tiny"], shard)
    optimizer = optimizer_of(recipe, workload.module.parameters())
    held_out, found = list(workload.evaluation or ()), []
    for step, samples in zip(workload.batches, range(batch, SAMPLES + 1, batch), strict=False):
        set_rate(optimizer, recipe.rate_after(samples))
        optimizer.zero_grad()
        workload.loss(workload.module, step).backward()
        optimizer.step()
        if samples % (SAMPLES // 4) == 0:
            with torch.no_grad():
                each = [float(workload.loss(workload.module, b)) for b in held_out]
            found.append(sum(each) / len(each))
    return found


def main() -> None:
    """Print the grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    torch.set_num_threads(1)
    print(f"loss after each quarter of {SAMPLES} samples, seed {seed}")
    for optimizer, batch, rates in GRID:
        for rate in rates:
            recipe = Recipe(
                optimizer=optimizer,
                learning_rate=rate,
                warmup_samples=WARMUP,
                weight_decay=DECAY.get(optimizer, 0.01),
            )
            told = "  ".join(f"{loss:.3f}" for loss in losses(recipe, batch, seed))
            print(f"{optimizer:>9} batch {batch:>3} rate {rate:<7g} {told}", flush=True)


if __name__ == "__main__":
    main()
