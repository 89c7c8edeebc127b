"""A run of 1,000 ranks × 1,000 steps, made up: what a report has to cope with at its largest.

Records as ranks write them, with the noise of a real machine: every rank a speed of its own,
steps that scatter, one slow rank, one stretch in which all are slow.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalebench.records.measured.rank import Block, RankRecord
from scalebench.records.run import CellResult
from scalebench.spec import Cell
from tests.builders.runs import make_cell, make_record, make_result, make_stored_run

GLOBAL_BATCH = 8000
WARMUP = 20
SLOW_RANK, SLOWER = 617, 0.06


def write_large_run(root: Path, num_ranks: int = 1000, num_steps: int = 1000) -> Path:
    """Write the run folder and return it."""
    random = np.random.default_rng(0)
    sizes = [("plain", 1, 1.0), ("ddp", 1, 1.02), ("ddp", num_ranks, 1.16 / num_ranks * 8)]
    results = [
        _result(
            make_cell(case, n, global_batch=GLOBAL_BATCH, rank_batch=GLOBAL_BATCH // n),
            step_s,
            num_steps,
            random,
        )
        for case, n, step_s in sizes
    ]
    return make_stored_run(root, results).root


def _result(cell: Cell, step_s: float, num_steps: int, random: np.random.Generator) -> CellResult:
    shape = (cell.world_size, num_steps)
    own = 1 + 0.01 * random.standard_normal((cell.world_size, 1))
    times = step_s * own * np.exp(0.02 * random.standard_normal(shape))
    times[:, num_steps // 2 : num_steps // 2 + num_steps // 20] *= 1.1
    times[:, :WARMUP] *= 1 + np.linspace(4, 0, WARMUP)
    if cell.world_size > SLOW_RANK:
        times[SLOW_RANK] *= 1 + SLOWER
    ranks = [_rank(rank, row, random) for rank, row in enumerate(times)]
    return make_result(cell, ranks=ranks)


def _rank(rank: int, step_s: NDArray[np.float64], random: np.random.Generator) -> RankRecord:
    num_steps = len(step_s)
    loss = np.float32(5.5 - np.linspace(0, 1, num_steps)) + np.float32(random.normal(0, 0.01))
    clean = Block(phase="clean", first=WARMUP, count=num_steps - WARMUP)
    return make_record(
        rank,
        local_rank=rank % 8,
        host=f"host-{rank // 8}",
        step_s=[round(float(s), 9) for s in step_s],
        loss=[float(x) for x in loss],
        blocks=[Block(phase="warmup", first=0, count=WARMUP), clean],
    )
