"""Pipelines that a run has its ranks play without their models, once the passes are known.

What messages cost between ranks that compute is more than what a calibrated link says: a rank
wakes up for them, and its core and caches are shared with what carries them. So the ranks play the
very schedule: passes that only take their time, and real messages. It is no training, and nothing
of the row that is predicted goes into it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import grouped
from scalebench.analysis.rows.prediction import PipelineAtOneRank, step_at_one_rank
from scalebench.analysis.run import StoredRun
from scalebench.costmodel.links.times import NoFit
from scalebench.costmodel.pipelines.orders import FROM_TORCH, SPLITS_BACKWARD
from scalebench.costmodel.pipelines.step import rehearsal_of
from scalebench.launch.base import Launcher, ProbeFailed
from scalebench.records.files import write_checked
from scalebench.records.probes import RehearsedPipeline
from scalebench.spec import Cell, Pipeline
from scalebench.spec.probes import PipelineRehearsal, Rehearsal, RehearsedStage

STEPS_AT_ONE_RANK = 20
"""They take no time but that of torch's schedule."""


class _Part(NamedTuple):
    """A row, and what its ranks have to play."""

    cell: Cell
    plan: PipelineRehearsal


def rehearse_pipelines(
    launcher: Launcher, stored: StoredRun, on_progress: Callable[[str, object], None]
) -> bool:
    """Have ranks play the run's pipelines, and keep it with the calibrated links.

    A pipeline that cannot be played is predicted without it.

    Returns:
        Whether that is over; if not, rows to start from were not measured yet.
    """
    cells = _cells(stored)
    if not cells or stored.link is None:
        return True
    if not _bases_are_measured(cells, stored):
        return False
    parts, found = _parts(cells, stored), list[RehearsedPipeline]()
    for world_size in sorted({part.cell.world_size for part in parts}):
        on_progress(f"pipelines without their models at N={world_size}", None)
        of_size = [part for part in parts if part.cell.world_size == world_size]
        try:
            found += _played(launcher, stored, of_size)
        except ProbeFailed:
            continue
    stored.link = stored.link.model_copy(update={"rehearsals": tuple(found)})
    write_checked(stored.paths.link_profile, stored.link)
    return True


def _bases_are_measured(cells: Sequence[Cell], stored: StoredRun) -> bool:
    """Tell whether each case was launched at N=1, as far as that is planned."""
    wanted = {(cell.suite, cell.case, 1) for cell in cells}
    measuring = [cell for cell in stored.info.plan if cell.purpose == "measure"]
    planned = {cell.row_key for cell in measuring} & wanted
    return planned <= {cell.row_key for cell in measuring if cell.id in stored.results}


def _cells(stored: StoredRun) -> list[Cell]:
    """Return one cell of each row that can be played: on this machine's own cores, one pipeline."""
    cells = {
        cell.row_key: cell
        for cell in stored.info.plan
        if cell.purpose == "measure" and _can_be_played(cell)
    }
    return list(cells.values())


def _can_be_played(cell: Cell) -> bool:
    strategy = cell.strategy
    if not isinstance(strategy, Pipeline) or cell.world_size == 1 or cell.skip_reason is not None:
        return False
    here = cell.device == "cpu" and cell.virtual_hosts is None and not cell.oversubscribed
    in_turn = strategy.schedule not in (*FROM_TORCH, *SPLITS_BACKWARD)
    return here and in_turn and cell.steps.trace and strategy.pipelines(cell.world_size) == 1


def _parts(cells: list[Cell], stored: StoredRun) -> list[_Part]:
    """Return the rows whose steps at N=1 are known, each with what is to be played."""
    table = grouped(stored)
    parts = []
    for cell in cells:
        try:
            bare = step_at_one_rank(table.get((cell.suite, cell.case, 1)))
            assert isinstance(bare, PipelineAtOneRank)
            shape = bare.shape.with_batch(cell.rank_batch)
            parts.append(_Part(cell, rehearsal_of(shape, cell.world_size)))
        except (Unavailable, NoFit):
            continue
    return parts


def _played(launcher: Launcher, stored: StoredRun, parts: list[_Part]) -> list[RehearsedPipeline]:
    """Play the pipelines of one number of ranks; raises ProbeFailed."""
    world_size = parts[0].cell.world_size
    alone = tuple(_on_one_rank(part.plan, world_size) for part in parts)
    together = tuple(part.plan for part in parts)
    actions_s = [
        float(np.median(steps)) / (2 * plan.microbatches * len(plan.stages))
        for steps, plan in zip(
            _probed(launcher, stored, 1, alone, {"blocks": 1, "num_steps": STEPS_AT_ONE_RANK}),
            alone,
            strict=True,
        )
    ]
    steps_s = _probed(launcher, stored, world_size, together, {})
    return [
        RehearsedPipeline(
            suite=part.cell.suite,
            case=part.cell.case,
            world_size=world_size,
            plan=part.plan,
            step_s=steps,
            action_s=action_s,
        )
        for part, steps, action_s in zip(parts, steps_s, actions_s, strict=True)
    ]


def _on_one_rank(plan: PipelineRehearsal, world_size: int) -> PipelineRehearsal:
    """Return the chunks of one rank, with passes that take no time."""
    nothing = RehearsedStage(forward_s=0.0, backward_s=0.0, output_bytes=1)
    stages = (nothing,) * (len(plan.stages) // world_size)
    return plan.model_copy(update={"stages": stages})


def _probed(
    launcher: Launcher,
    stored: StoredRun,
    world_size: int,
    plans: tuple[PipelineRehearsal, ...],
    length: Mapping[str, int],
) -> tuple[tuple[float, ...], ...]:
    plan = Rehearsal(
        world_size=world_size,
        device="cpu",
        backend="gloo",
        threads=1,
        pipelines=plans,
        **length,
    )
    logs = stored.paths.logs("calibration") / f"pipelines{world_size}"
    return launcher.probe(plan, logs)[0].rehearsed_s
