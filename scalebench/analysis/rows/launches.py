"""The launches that make up each row of the summary."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from scalebench.analysis import counted_batch
from scalebench.analysis.attribution import LaunchAttribution, attribute
from scalebench.analysis.run import StoredRun
from scalebench.analysis.timing.paired_blocks import Block
from scalebench.analysis.timing.steps import (
    launch_step_s,
    launch_throughput,
    mean_step,
    steps_of_block,
)
from scalebench.grouping import by_key
from scalebench.records.run import CellResult
from scalebench.spec import Cell, Script
from scalebench.stats import Estimate, estimate_over_launches


@dataclass(frozen=True)
class Launches:
    """All cells of one row, and what became of those that were run.

    Attributes:
        cell: The row's cell (of its first launch).
        inspection: Result of the launch that checked correctness, if it was run.
        measured: Repeat → result, of the launches that were run.
        num_planned: Measuring launches that the plan holds.
        shards: Launches of one rank's shard alone that succeeded.
        checkpoints: Launches that saved and restored, whatever became of them.
        growth: How the work of a user's script grows with N; None: it has no launch that succeeded,
            or it is no script.
    """

    cell: Cell
    inspection: CellResult | None = None
    measured: Mapping[int, CellResult] = field(default_factory=dict)
    num_planned: int = 0
    shards: tuple[CellResult, ...] = ()
    checkpoints: tuple[CellResult, ...] = ()
    growth: counted_batch.Growth | None = None

    @property
    def no_ratio(self) -> str | None:
        """Why this row is compared with no other number of ranks; None: it may be."""
        if self.growth is None or self.cell.world_size == 1:
            return None
        return self.growth.why_unknown

    @cached_property
    def work(self) -> float:
        """What a step of the job does: samples, or what stands for them."""
        found = [counted_batch.work_of_step(result) for result in self.good.values()]
        return float(np.mean(found)) if found else float(self.cell.global_batch)

    @cached_property
    def good(self) -> dict[int, CellResult]:
        """The measuring launches that succeeded."""
        return {r: result for r, result in self.measured.items() if result.status == "ok"}

    @cached_property
    def log_steps(self) -> dict[int, float]:
        """Repeat → logarithm of the step time, of the launches that succeeded."""
        return {repeat: math.log(launch_step_s(result)) for repeat, result in self.good.items()}

    @cached_property
    def step_s(self) -> Estimate | None:
        """Seconds per step; None: no launch succeeded."""
        steps = [launch_step_s(result) for result in self.good.values()]
        return estimate_over_launches(steps) if steps else None

    @cached_property
    def counted(self) -> bool:
        """Whether the samples of a step are known."""
        known: Sequence[CellResult | None] = list(self.good.values()) or (None,)
        return all(counted_batch.knows_samples(self.cell, result) for result in known)

    @cached_property
    def throughput(self) -> Estimate | None:
        """Samples per second of the job; steps per second where a script's samples are unknown."""
        each = [
            launch_throughput(r) if self.counted else 1 / launch_step_s(r)
            for r in self.good.values()
        ]
        return estimate_over_launches(each) if each else None

    @cached_property
    def within(self) -> float:
        """Variance of the logarithm of a launch's step time as its own steps tell it."""
        found = [mean_step(result).variance for result in self.good.values()]
        return float(np.mean(found)) if found else 0.0

    @cached_property
    def blocks(self) -> dict[int, list[Block]]:
        """Repeat → clean blocks, of the launches that took turns with those of other rows."""
        return {n: clean_blocks(result) for n, result in self.good.items() if result.shared_with}

    @cached_property
    def attributed(self) -> dict[int, LaunchAttribution]:
        """The good launches that can be attributed."""
        found = {repeat: attribute(result) for repeat, result in self.good.items()}
        return {repeat: launch for repeat, launch in found.items() if launch is not None}


Table = Mapping[tuple[str, str, int], Launches]
"""(suite, case, world size) → launches."""


def grouped(run: StoredRun) -> Table:
    """Return the launches of every row, in the order of the plan."""
    cells = by_key((cell.row_key, cell) for cell in run.info.plan if cell.purpose == "measure")
    results = by_key((one.cell.row_key, one) for one in run.results.values())

    def of(key: tuple[str, str, int], *purposes: str) -> tuple[CellResult, ...]:
        return tuple(one for one in results.get(key, ()) if one.cell.purpose in purposes)

    table = {
        key: replace(
            _launches(of_row, next(reversed(of(key, "inspect")), None), run),
            shards=tuple(one for one in of(key, "shard") if one.status == "ok"),
            checkpoints=of(key, "save", "restore", "fail"),
        )
        for key, of_row in cells.items()
    }
    return {key: _as_counted(row, table) for key, row in table.items()}


def _as_counted(row: Launches, table: Table) -> Launches:
    """Return a row of a script with the scaling that its launches show, and its share of the work.

    Where samples are not known, the work of a rank takes the place of the batch, so that every
    ratio is of the same work.
    """
    case, n = row.cell.row_key[:2], row.cell.world_size
    of_case = [
        next(iter(r.good.values())) for r in table.values() if r.good and r.cell.row_key[:2] == case
    ]
    if not isinstance(row.cell.strategy, Script):
        return row
    growth = counted_batch.growth_of(row.cell, of_case)
    changes: dict[str, Any] = {} if growth.scaling == "unknown" else {"scaling": growth.scaling}
    if n in growth.rank_work:
        work = growth.rank_work[n]
        changes |= {"rank_batch": work, "global_batch": work * n}
    measured = {
        repeat: result.model_copy(update={"cell": result.cell.model_copy(update=changes)})
        for repeat, result in row.measured.items()
    }
    cell = row.cell.model_copy(update=changes)
    return replace(row, cell=cell, measured=measured, growth=growth)


def clean_blocks(result: CellResult) -> list[Block]:
    """Return the clean blocks of a launch; of independent ranks the mean over them."""
    jobs = [[rank] for rank in result.ranks]
    if result.cell.purpose != "independent":
        jobs = [result.ranks]
    return [
        Block(
            block.start_ns,
            block.end_ns,
            float(np.mean([np.mean(steps_of_block(job, block)) for job in jobs])),
        )
        for block in result.ranks[0].blocks
        if block.phase == "clean"
        and block.count > 1
        and block.start_ns is not None
        and block.end_ns is not None
        and block.end_ns > block.start_ns
    ]


def independent(run: StoredRun) -> Table:
    """Return the launches of plain ranks that know nothing of one another; see `Cell.purpose`.

    Their case is called `independent_case`.
    """
    cells = by_key(
        ((cell.suite, independent_case(cell.case, cell.rank_batch), cell.world_size), cell)
        for cell in run.info.plan
        if cell.purpose == "independent"
    )
    return {
        key: Launches(
            cell=launches[0],
            measured={c.repeat: run.results[c.id] for c in launches if c.id in run.results},
            num_planned=len(launches),
        )
        for key, launches in cells.items()
    }


def independent_case(case: str, rank_batch: int) -> str:
    """Return the name for independent ranks of a plain case, each on ``rank_batch`` samples."""
    return f"{case}, {rank_batch} samples each"


def _launches(cells: Sequence[Cell], inspection: CellResult | None, run: StoredRun) -> Launches:
    """Return the launches of a row; a script's have the batch that its ranks counted."""
    results = {c.repeat: run.results[c.id] for c in cells if c.id in run.results}
    measured = {
        repeat: counted_batch.with_counted_batch(result) for repeat, result in results.items()
    }
    counted = next((r.cell for r in measured.values() if r.status == "ok"), cells[0])
    sizes = {"global_batch", "rank_batch", "backend"}
    cell = cells[0].model_copy(update=counted.model_dump(include=sizes))
    return Launches(cell, inspection, measured, num_planned=len(cells))
