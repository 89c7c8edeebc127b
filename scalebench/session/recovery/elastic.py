"""A job that loses a rank, goes on with fewer, and has all of them again later."""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from scalebench.launch.base import Launcher
from scalebench.records.measured.fault_events import Event, FaultFolder, fault_folder
from scalebench.records.measured.recovery import ElasticRun, ElasticStretch
from scalebench.session.recovery.striking import Striking
from scalebench.session.recovery.timeline import NoTimeline
from scalebench.spec import Cell, Ddp
from scalebench.spec.recovery import FaultPlan

SAVE_EVERY = 4
STRETCH_STEPS = 14
"""Steps with fewer ranks, and with all again; the failure comes after about as many."""


def goes_on_with_fewer(cell: Cell) -> bool:
    """Tell whether a cell's job is to lose a rank and go on."""
    plan = cell.recovery
    wanted = plan is not None and plan.elastic
    return wanted and cell.world_size > 1 and cell.strategy.takes_any_size


def with_fewer_ranks(cell: Cell) -> Cell:
    """Return a cell after the loss of a rank: the same global batch, on as many as divide it.

    DDP keeps the size of its microbatches where it can, by accumulating more of them, and with it
    the memory that a rank needs; in every other case a rank's batch grows.
    """
    whole = cell.global_batch
    fewer = next(n for n in range(cell.world_size - 1, 0, -1) if whole % n == 0)
    changes = {"world_size": fewer, "rank_batch": whole // fewer}
    strategy = cell.strategy
    if isinstance(strategy, Ddp) and cell.world_size % fewer == 0:
        more = strategy.accumulate * cell.world_size // fewer
        strategy = strategy.model_copy(update={"accumulate": more})
    return cell.model_copy(
        update={**changes, "strategy": strategy, "restore_from": (cell.world_size,)}
    )


def measure_elastic(launcher: Launcher, cell: Cell, logs: Path) -> ElasticRun:
    """Train, lose a rank, go on with fewer, then with all again; and once without a stop.

    The cell has at least two ranks, and the directory for checkpoints; its ``repeat`` and the
    number after it are those of the failures' folders. ``logs`` gets a folder for each launch.

    Raises:
        NoTimeline: It did not go as planned.
    """
    folder, fewer = fault_folder(cell), with_fewer_ranks(cell)
    chance = random.Random(f"{cell.seed} {cell.case} elastic {cell.repeat}")
    plan = FaultPlan(
        kind="kill",
        rank=chance.randrange(cell.world_size),
        at_step=STRETCH_STEPS + chance.randrange(SAVE_EVERY),
        save_every=SAVE_EVERY,
    )
    folder.begin()
    folder.write_plan(plan)
    with Striking(folder, [plan]) as striking:
        lost = launcher.launch(cell, logs / "before")
    if lost.failure is None or not striking.failed_ns:
        raise NoTimeline("elastic: the fault did not come as planned")
    until = folder.last_step(0, cell.world_size) + STRETCH_STEPS
    _continue(launcher, fewer, folder, plan, 1, until, logs / "fewer")
    _continue(launcher, cell, folder, plan, 2, until + STRETCH_STEPS, logs / "again")
    unbroken = cell.model_copy(update={"repeat": cell.repeat + 1})
    fault_folder(unbroken).begin()
    end = until + STRETCH_STEPS
    never = plan.model_copy(update={"at_step": end + 1})
    _continue(launcher, unbroken, fault_folder(unbroken), never, 0, end, logs / "unbroken")
    sizes = (cell, fewer, cell)
    events = [
        [folder.events(attempt, rank) for rank in range(one.world_size)]
        for attempt, one in enumerate(sizes)
    ]
    whole = [fault_folder(unbroken).events(0, rank) for rank in range(cell.world_size)]
    return elastic_run(sizes, events, whole, striking.failed_ns[0])


def _continue(
    launcher: Launcher,
    cell: Cell,
    folder: FaultFolder,
    plan: FaultPlan,
    attempt: int,
    until: int,
    logs: Path,
) -> None:
    folder.write_plan(plan.model_copy(update={"attempt": attempt, "until": until}))
    done = launcher.launch(cell, logs)
    if done.failure is not None:
        raise NoTimeline(f"elastic: {cell.world_size} ranks did not go on: {done.failure.message}")


def elastic_run(
    cells: Sequence[Cell],
    events: Sequence[Sequence[Sequence[Event]]],
    unbroken: Sequence[Sequence[Event]],
    failed_ns: int,
) -> ElasticRun:
    """Return how a job went, from what its ranks noted.

    ``cells`` and ``events`` are of each stretch: with all ranks, with fewer, with all again; events
    are of each rank in it. ``unbroken``: of each rank in a run that nothing stopped.
    """
    stretches = [stretch_of(*pair) for pair in zip(cells, events, strict=True)]
    done = [_done_ns(of_ranks) for of_ranks in events]
    return ElasticRun(
        stretches=stretches,
        shrink_s=(min(done[1].values()) - failed_ns) / 1e9,
        grow_s=(min(done[2].values()) - max(done[1].values())) / 1e9,
        unbroken_loss=list(_mean_loss(unbroken).values()),
    )


def stretch_of(cell: Cell, ranks: Sequence[Sequence[Event]]) -> ElasticStretch:
    """Return the steps that all ranks of a stretch have done.

    Raises:
        NoTimeline: There is none.
    """
    done, loss = _done_ns(ranks), _mean_loss(ranks)
    if not done:
        raise NoTimeline(f"elastic: {cell.world_size} ranks did no step")
    return ElasticStretch(
        world_size=cell.world_size,
        rank_batch=cell.rank_batch,
        accumulate=getattr(cell.strategy, "accumulate", 1),
        first=min(done),
        loss=list(loss.values()),
        step_s=[
            (done[after] - done[before]) / 1e9
            for before, after in pairwise(done)
            if before % SAVE_EVERY
        ],
    )


def _done_ns(ranks: Sequence[Sequence[Event]]) -> dict[int, int]:
    """Return the number of each step that every rank has done, with when the last one had."""
    by_rank = [{e.number: e.time_ns for e in events if e.name == "step"} for events in ranks]
    common = set.intersection(*(set(steps) for steps in by_rank))
    return {step: max(steps[step] for steps in by_rank) for step in sorted(common)}


def _mean_loss(ranks: Sequence[Sequence[Event]]) -> dict[int, float]:
    """Return the loss of the global batch in each step that every rank has done."""
    by_rank = [
        {e.number: e.loss for e in events if e.name == "step" and e.loss is not None}
        for events in ranks
    ]
    common = set.intersection(*(set(steps) for steps in by_rank))
    return {step: sum(s[step] for s in by_rank) / len(by_rank) for step in sorted(common)}
