"""A run of 1,000 ranks × 1,000 steps, made up: what a report has to cope with at its largest.

Records as ranks write them, with the noise of a real machine: every rank a speed of its own,
steps that scatter, one slow rank, one stretch in which all are slow.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalebench.records.measured.rank import Block, Memory, RankRecord
from scalebench.records.paths import RunPaths
from scalebench.records.run import CellResult, RunInfo, RunSpec
from scalebench.records.storage.files import write_model
from scalebench.spec import Case, Cell, Ddp, Plain, StepPlan, Strategy, Suite
from scalebench.spec.presets import PRESETS

CREATED = "2026-01-01T00:00:00+00:00"
WARMUP = 20
SLOW_RANK, SLOWER = 617, 0.06


def write_large_run(root: Path, num_ranks: int = 1000, num_steps: int = 1000) -> Path:
    """Write the run folder and return it."""
    random = np.random.default_rng(0)
    sizes: list[tuple[str, Strategy, int, float]] = [
        ("plain", Plain(), 1, 1.0),
        ("ddp", Ddp(), 1, 1.02),
        ("ddp", Ddp(), num_ranks, 1.16 / num_ranks * 8),
    ]
    cells = [_cell(case, strategy, n) for case, strategy, n, _ in sizes]
    paths = RunPaths(root)
    paths.cells.mkdir(parents=True)
    write_model(paths.run_json, _info(cells))
    for cell, (_, _, _, step_s) in zip(cells, sizes, strict=True):
        write_model(paths.cell(cell.id), _result(cell, step_s, num_steps, random), indent=None)
    return root


def _cell(case: str, strategy: Strategy, world_size: int) -> Cell:
    return Cell(
        suite="ddp",
        case=case,
        strategy=strategy,
        workload=PRESETS["gpt-tiny"],
        scaling="strong",
        world_size=world_size,
        global_batch=8000,
        rank_batch=8000 // world_size,
        device="cpu",
        backend=None if strategy.kind == "plain" else "gloo",
        threads=1,
        purpose="measure",
        repeat=0,
        steps=StepPlan(),
    )


def _info(cells: list[Cell]) -> RunInfo:
    cases = {cell.case: Case(name=cell.case, strategy=cell.strategy) for cell in cells}
    return RunInfo(
        run_id="20260101T000000Z_ddp_cpu_0000000",
        version="0.1.0",
        created=CREATED,
        command=["scalebench", "run", "ddp"],
        spec=RunSpec(
            suites=(Suite(name="ddp", question="How large?", cases=tuple(cases.values())),),
            world_sizes=tuple(sorted({cell.world_size for cell in cells})),
            device="cpu",
            scaling="strong",
            threads=1,
            steps=StepPlan(),
            repeats=1,
        ),
        environment={"torch": "2.13.0", "devices": [], "cpu": "a processor", "cores": 1000},
        plan=cells,
        notices=["Made up for a benchmark: nothing here was measured"],
        status="complete",
    )


def _result(cell: Cell, step_s: float, num_steps: int, random: np.random.Generator) -> CellResult:
    shape = (cell.world_size, num_steps)
    own = 1 + 0.01 * random.standard_normal((cell.world_size, 1))
    times = step_s * own * np.exp(0.02 * random.standard_normal(shape))
    times[:, num_steps // 2 : num_steps // 2 + num_steps // 20] *= 1.1
    times[:, :WARMUP] *= 1 + np.linspace(4, 0, WARMUP)
    if cell.world_size > SLOW_RANK:
        times[SLOW_RANK] *= 1 + SLOWER
    return CellResult(
        cell=cell,
        status="ok",
        started=CREATED,
        launch_s=2.0,
        wall_s=60.0,
        ranks=[_rank(rank, row, random) for rank, row in enumerate(times)],
    )


def _rank(rank: int, step_s: NDArray[np.float64], random: np.random.Generator) -> RankRecord:
    num_steps = len(step_s)
    loss = np.float32(5.5 - np.linspace(0, 1, num_steps)) + np.float32(random.normal(0, 0.01))
    return RankRecord(
        rank=rank,
        local_rank=rank % 8,
        pid=1000 + rank,
        host=f"host-{rank // 8}",
        step_s=[round(float(s), 9) for s in step_s],
        loss=[float(x) for x in loss],
        blocks=[
            Block(phase="warmup", first=0, count=WARMUP),
            Block(phase="clean", first=WARMUP, count=num_steps - WARMUP),
        ],
        steady=True,
        first_step_ns=1,
        num_parameters=421_000,
        tokens_per_sample=64,
        memory=Memory(rss_bytes=500_000_000),
    )
