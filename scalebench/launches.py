"""What one launch says by itself: its clean steps, step time, throughput and losses."""

import numpy as np

from scalebench.records import CellResult


def slowest_rank_steps(result: CellResult) -> list[float]:
    """Return the time of the slowest rank for every step, aligned by number; seconds."""
    steps = np.array([rank.step_s for rank in result.ranks])
    return [float(s) for s in steps.max(axis=0)]


def clean_steps(result: CellResult) -> list[float]:
    """Return the clean steps of a launch: the slowest rank's, first of each block left out."""
    slowest = slowest_rank_steps(result)
    return [
        slowest[i]
        for block in result.ranks[0].blocks
        if block.phase == "clean"
        for i in range(block.first + 1, block.first + block.count)
    ]


def launch_step_s(result: CellResult) -> float:
    """Return a launch's step time: the median of its clean steps, seconds."""
    return float(np.median(clean_steps(result)))


def launch_throughput(result: CellResult) -> float:
    """Return a launch's throughput: samples per second of the whole job."""
    return result.cell.global_batch / launch_step_s(result)


def mean_losses(result: CellResult) -> list[float]:
    """Return the loss of the global batch, the mean over the ranks, up to the last clean step.

    In the rounds that follow, some steps are trained without synchronisation.
    """
    losses = np.array([rank.loss for rank in result.ranks], dtype=float)
    return [float(x) for x in losses.mean(axis=0)[: result.ranks[0].num_trained]]
