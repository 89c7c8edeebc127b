"""Steps that a run has its ranks play without their models, once it is known what they compute.

What messages cost between ranks that compute is more than what a calibrated link says. So the
ranks play the very step (`scalebench.worker.synthetic_steps`). It is no training, and nothing of
the row that is predicted goes into it.

On virtual hosts a rank is stopped when its share of a processor is used up, so there the
computation uses as much processor time as that which it stands for, and waits for the rest. Steps
are long there, so fewer of them are played.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from scalebench.analysis.rows.at_one_rank import PipelineAtOneRank, step_at_one_rank
from scalebench.analysis.rows.launches import Launches, Unavailable, grouped
from scalebench.analysis.run import StoredRun
from scalebench.analysis.steps import busy_part
from scalebench.costmodel.links.fitted import LinkModel, NoFit
from scalebench.costmodel.pipeline_schedule import FROM_TORCH, SPLITS_BACKWARD
from scalebench.costmodel.pipeline_step import rehearsal_of
from scalebench.costmodel.step import rehearsal_of_step, stalled_of
from scalebench.launch.base import Launcher, ProbeFailed
from scalebench.records.files import write_checked
from scalebench.records.measured.probes import PlayedSteps, RehearsedPipeline, RehearsedStep
from scalebench.records.run import CellResult
from scalebench.spec import Cell, Pipeline, Plain, Script
from scalebench.spec.probes import PipelineRehearsal, Rehearsal, RehearsedStage, StepRehearsal

LONGEST_S = 20.0
"""At each number of ranks, for the steps of all cases together, without the start of the ranks."""

CHOICES = ((2, 4), (1, 4), (1, 2), (1, 1))
"""Blocks, and steps of a block that count."""


class Length(NamedTuple):
    """What a step is expected to take.

    Attributes:
        computing_s: Without its messages, seconds.
        step_s: With them.
    """

    computing_s: float
    step_s: float

    def played_s(self, blocks: int, num_steps: int) -> float:
        """Return what playing it takes, seconds.

        The computation alone at first, and in each block one step that does not count.
        """
        return self.computing_s + blocks * (1 + num_steps) * self.step_s

    @property
    def least_s(self) -> float:
        """What playing it takes at least."""
        return self.played_s(*CHOICES[-1])


def how_often(lengths: Sequence[Length]) -> dict[int, tuple[int, int]]:
    """Return, for each step that is played, its blocks and the steps of each that count.

    The longest steps are left out where even the fewest take too long together. The others share
    the time evenly; what long ones leave over is for shorter ones.

    Returns:
        By the number of the step.
    """
    left = sorted(range(len(lengths)), key=lambda number: -lengths[number].least_s)
    while left and sum(lengths[number].least_s for number in left) > LONGEST_S:
        left.pop(0)
    chosen, rest_s = {}, LONGEST_S
    for place, number in enumerate(left):
        share_s = rest_s / (len(left) - place)
        fitting = [c for c in CHOICES if lengths[number].played_s(*c) <= share_s]
        chosen[number] = fitting[0] if fitting else CHOICES[-1]
        rest_s -= lengths[number].played_s(*chosen[number])
    return chosen


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
        of_size = [cell for cell in cells if cell.world_size == world_size]
        parts = _within_time(_parts(of_size, stored), stored)
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
    """Return one cell of each row that can be played: on cores of this machine."""
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
    if cell.device != "cpu" or cell.oversubscribed or not cell.steps.trace:
        return False
    if isinstance(strategy, Pipeline):
        in_turn = strategy.schedule not in (*FROM_TORCH, *SPLITS_BACKWARD)
        alone = strategy.pipelines(cell.world_size) == 1
        return in_turn and alone and cell.virtual_hosts is None
    return not isinstance(strategy, Plain | Script)


def _parts(cells: list[Cell], stored: StoredRun) -> _Parts:
    """Return the rows whose steps are known, each with what is to be played."""
    table, parts = grouped(stored), _Parts([], [])
    for cell in cells:
        at_one = table.get((cell.suite, cell.case, 1))
        try:
            bare = step_at_one_rank(at_one)
            if isinstance(bare, PipelineAtOneRank):
                passes = bare.pipeline.with_batch(cell.rank_batch)
                parts.pipelines.append(_Part(cell, rehearsal_of(passes, cell.world_size)))
            else:
                row = table.get(cell.row_key)
                shards = row.shards if row is not None else ()
                shape = bare.with_shards(shards).shape_of(cell)
                busy = _busy(cell, at_one, shards)
                plan = rehearsal_of_step(shape, cell.strategy, cell.world_size, busy)
                parts.steps.append(_Part(cell, plan))
        except (Unavailable, NoFit):
            continue
    return parts


def _busy(cell: Cell, at_one: Launches | None, shards: Sequence[CellResult]) -> float | None:
    """Return the processor seconds of a second of computation; None: it is busy all the time.

    Raises:
        NoFit: On virtual hosts, where it was not noted.
    """
    if cell.virtual_hosts is None:
        return None
    launches = shards or (tuple(at_one.good.values()) if at_one is not None else ())
    busy = busy_part([launch.ranks[0] for launch in launches], cell.rank_batch)
    if busy is None:
        raise NoFit("the processor time of the steps was not noted")
    return busy


def _within_time(parts: _Parts, stored: StoredRun) -> _Parts:
    """Return what can be played in a short time: on virtual hosts fewer steps, or fewer cases."""
    if not parts.steps or parts.steps[0].cell.virtual_hosts is None:
        return parts
    assert stored.link is not None
    link, known = LinkModel(stored.link.fits), list[tuple[_Part[StepRehearsal], Length]]()
    for part in parts.steps:
        computing_s = part.plan.computing_s
        try:
            stalled_s = stalled_of(part.plan, part.cell.world_size, link.time)
        except NoFit:  # then there is no prediction either
            continue
        known.append((part, Length(computing_s, computing_s + stalled_s)))
    chosen = how_often([length for _, length in known])
    steps = []
    for number, (blocks, num_steps) in sorted(chosen.items()):
        cell, plan = known[number][0]
        often = {"blocks": blocks, "num_steps": num_steps}
        steps.append(_Part(cell, plan.model_copy(update=often)))
    return parts._replace(steps=steps)


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
    launcher: Launcher, stored: StoredRun, world_size: int, parts: list[_Part[PipelineRehearsal]]
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
    spec = stored.info.spec
    plan = Rehearsal(
        world_size=world_size,
        device="cpu",
        backend="gloo",
        threads=1,
        pinned=spec.pinned,
        virtual_hosts=spec.virtual_hosts,
        **what,
    )
    logs = stored.paths.logs("calibration") / f"steps{world_size}"
    found = launcher.probe(plan, logs)[0].played
    assert found is not None, "rank 0 speaks for all"
    return found
