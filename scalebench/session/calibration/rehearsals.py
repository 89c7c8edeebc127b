"""Steps that a run has its ranks play without their models, once it is known what they compute.

What messages cost between ranks that compute is more than what a calibrated link says: a rank
wakes up for them, waits for the last rank, and its core and caches are shared with what carries
them. So the ranks play the very step: computation that only takes its time, and real messages. It
is no training, and nothing of the row that is predicted goes into it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import grouped
from scalebench.analysis.rows.prediction import PipelineAtOneRank, step_at_one_rank
from scalebench.analysis.run import StoredRun
from scalebench.costmodel.links.times import NoFit
from scalebench.costmodel.pipelines.orders import FROM_TORCH, SPLITS_BACKWARD
from scalebench.costmodel.pipelines.step import rehearsal_of
from scalebench.costmodel.rehearsed_step import rehearsal_of_step
from scalebench.launch.base import Launcher, ProbeFailed
from scalebench.records.files import write_checked
from scalebench.records.probes import PlayedSteps, RehearsedPipeline, RehearsedStep
from scalebench.spec import Cell, Pipeline, Plain, Script
from scalebench.spec.probes import PipelineRehearsal, Rehearsal, RehearsedStage, StepRehearsal

STEPS_AT_ONE_RANK = 20
"""They take no time but that of torch's schedule."""


Plan = TypeVar("Plan", PipelineRehearsal, StepRehearsal)


class _Part(NamedTuple, Generic[Plan]):
    """A row, and what its ranks have to play."""

    cell: Cell
    plan: Plan


class _Parts(NamedTuple):
    """What is to be played at one number of ranks."""

    pipelines: list[_Part[PipelineRehearsal]]
    steps: list[_Part[StepRehearsal]]


def rehearse_steps(
    launcher: Launcher, stored: StoredRun, on_progress: Callable[[str, object], None]
) -> bool:
    """Have ranks play the run's steps, and keep it with the calibrated links.

    What cannot be played is predicted without it.

    Returns:
        Whether that is over; if not, launches to start from were not measured yet.
    """
    cells = _cells(stored)
    if not cells or stored.link is None:
        return True
    if not _bases_are_measured(cells, stored):
        return False
    pipelines, steps = list[RehearsedPipeline](), list[RehearsedStep]()
    for world_size in sorted({cell.world_size for cell in cells}):
        parts = _parts([cell for cell in cells if cell.world_size == world_size], stored)
        if not any(parts):
            continue
        on_progress(f"steps without their models at N={world_size}", None)
        try:
            played = _played(launcher, stored, world_size, parts)
        except ProbeFailed:
            continue
        pipelines += played[0]
        steps += played[1]
    found = {"rehearsals": tuple(pipelines), "rehearsed_steps": tuple(steps)}
    stored.link = stored.link.model_copy(update=found)
    write_checked(stored.paths.link_profile, stored.link)
    return True


def _bases_are_measured(cells: Sequence[Cell], stored: StoredRun) -> bool:
    """Tell whether all that rows start from was launched, as far as that is planned."""
    wanted = {(cell.suite, cell.case, 1) for cell in cells}
    shards = {cell.row_key for cell in cells}
    bases = [
        cell
        for cell in stored.info.plan
        if (cell.purpose == "measure" and cell.row_key in wanted)
        or (cell.purpose == "shard" and cell.row_key in shards)
    ]
    launched = {(one.purpose, one.row_key) for one in bases if one.id in stored.results}
    return {(one.purpose, one.row_key) for one in bases} <= launched


def _cells(stored: StoredRun) -> list[Cell]:
    """Return one cell of each row that can be played: on this machine's own cores."""
    cells = {
        cell.row_key: cell
        for cell in stored.info.plan
        if cell.purpose == "measure" and _can_be_played(cell)
    }
    return list(cells.values())


def _can_be_played(cell: Cell) -> bool:
    strategy = cell.strategy
    if cell.world_size == 1 or cell.skip_reason is not None or cell.race is not None:
        return False
    here = cell.device == "cpu" and cell.virtual_hosts is None and not cell.oversubscribed
    if not here or not cell.steps.trace:
        return False
    if isinstance(strategy, Pipeline):
        in_turn = strategy.schedule not in (*FROM_TORCH, *SPLITS_BACKWARD)
        return in_turn and strategy.pipelines(cell.world_size) == 1
    return not isinstance(strategy, Plain | Script)


def _parts(cells: list[Cell], stored: StoredRun) -> _Parts:
    """Return the rows whose steps are known, each with what is to be played."""
    table, parts = grouped(stored), _Parts([], [])
    for cell in cells:
        try:
            bare = step_at_one_rank(table.get((cell.suite, cell.case, 1)))
            if isinstance(bare, PipelineAtOneRank):
                shape = bare.shape.with_batch(cell.rank_batch)
                parts.pipelines.append(_Part(cell, rehearsal_of(shape, cell.world_size)))
            else:
                row = table.get(cell.row_key)
                bare = bare.with_shards(row.shards if row is not None else ())
                plan = rehearsal_of_step(bare.shape_of(cell), cell.world_size)
                parts.steps.append(_Part(cell, plan))
        except (Unavailable, NoFit):
            continue
    return parts


def _played(
    launcher: Launcher, stored: StoredRun, world_size: int, parts: _Parts
) -> tuple[list[RehearsedPipeline], list[RehearsedStep]]:
    """Play the steps of one number of ranks; raises ProbeFailed."""
    actions_s = _actions_s(launcher, stored, world_size, parts.pipelines)
    together = _probed(
        launcher,
        stored,
        world_size,
        pipelines=tuple(part.plan for part in parts.pipelines),
        steps=tuple(part.plan for part in parts.steps),
    )
    pipelines = [
        RehearsedPipeline(
            suite=part.cell.suite,
            case=part.cell.case,
            world_size=world_size,
            plan=part.plan,
            step_s=steps,
            action_s=action_s,
        )
        for part, steps, action_s in zip(
            parts.pipelines, together.pipelines, actions_s, strict=True
        )
    ]
    others = [
        RehearsedStep(
            suite=part.cell.suite,
            case=part.cell.case,
            world_size=world_size,
            plan=part.plan,
            exposed_s=exposed_s,
        )
        for part, exposed_s in zip(parts.steps, together.exposed, strict=True)
    ]
    return pipelines, others


def _actions_s(
    launcher: Launcher,
    stored: StoredRun,
    world_size: int,
    parts: list[_Part[PipelineRehearsal]],
) -> list[float]:
    """Return what an action of each pipeline costs its rank besides the pass, seconds."""
    if not parts:
        return []
    alone = tuple(_on_one_rank(part.plan, world_size) for part in parts)
    played = _probed(launcher, stored, 1, pipelines=alone, blocks=1, num_steps=STEPS_AT_ONE_RANK)
    return [
        float(np.median(steps)) / (2 * plan.microbatches * len(plan.stages))
        for steps, plan in zip(played.pipelines, alone, strict=True)
    ]


def _on_one_rank(plan: PipelineRehearsal, world_size: int) -> PipelineRehearsal:
    """Return the chunks of one rank, with passes that take no time."""
    nothing = RehearsedStage(forward_s=0.0, backward_s=0.0, output_bytes=1)
    stages = (nothing,) * (len(plan.stages) // world_size)
    return plan.model_copy(update={"stages": stages})


def _probed(launcher: Launcher, stored: StoredRun, world_size: int, **what: Any) -> PlayedSteps:
    plan = Rehearsal(world_size=world_size, device="cpu", backend="gloo", threads=1, **what)
    logs = stored.paths.logs("calibration") / f"steps{world_size}"
    found = launcher.probe(plan, logs)[0].played
    assert found is not None, "rank 0 speaks for all"
    return found
