"""The launches that save and restore, for every row of a suite with recovery."""

from collections.abc import Sequence

from scalebench.errors import UsageError
from scalebench.grouping import by_key
from scalebench.records.run import RunSpec
from scalebench.session.plan.request import Request
from scalebench.spec import STRATEGIES, Cell, Plain, Suite
from scalebench.spec.recovery import Recovery


def check_recovery(request: Request, suites: Sequence[Suite]) -> None:
    """Raise UsageError for options about checkpoints where nothing is saved."""
    if request.checkpoint_dir is not None and not any(suite.recovery for suite in suites):
        raise UsageError(
            f"--checkpoint-dir {request.checkpoint_dir}: no given suite saves checkpoints. Run "
            "recovery, or a suite with recovery=Recovery(...)."
        )


def recovery_of(suite: Suite, request: Request) -> Recovery | None:
    """Return how a suite saves and fails; a quick one does both as seldom as it can."""
    if suite.recovery is None or not request.quick:
        return suite.recovery
    return suite.recovery.model_copy(update={"saves": 2, "fault_repeats": 1})


def recovery_cells(rows: Sequence[Cell], spec: RunSpec) -> list[Cell]:
    """Return the launches that save, at all sizes, then those that restore, then those that fail.

    Ranks are made to fail only where scalebench itself starts them: on this machine, on virtual
    hosts.
    """
    plans = {suite.name: suite.recovery for suite in spec.suites if suite.recovery is not None}
    saved = [
        _saving(row, plans[row.suite])
        for row in rows
        if row.suite in plans and row.skip_reason is None and not isinstance(row.strategy, Plain)
    ]
    sizes = by_key(((cell.suite, cell.case), cell.world_size) for cell in saved)
    restored = [_restoring(cell, sizes[cell.suite, cell.case]) for cell in saved]
    failing = [
        cell.model_copy(update={"purpose": "fail"})
        for cell in saved
        if spec.launcher in ("local", "lab") and _fails(cell)
    ]
    return [*saved, *restored, *failing]


def _fails(cell: Cell) -> bool:
    plan = cell.recovery
    assert plan is not None, "every cell that saves has a plan"
    chosen = plan.faulty_cases is None or cell.case in plan.faulty_cases
    return bool(plan.faults) and chosen


def _restoring(cell: Cell, sizes: Sequence[int]) -> Cell:
    """Return the launch that loads what was saved at these numbers of ranks, at its own first."""
    others = sorted(size for size in sizes if size != cell.world_size)
    return cell.model_copy(
        update={"purpose": "restore", "restore_from": (cell.world_size, *others)}
    )


def _saving(row: Cell, plan: Recovery) -> Cell:
    """Return the launch that saves a row's state.

    Raises:
        UsageError: The state of its strategy cannot be saved.
    """
    if not row.strategy.can_be_saved:
        names = ", ".join(one.__name__ for one in STRATEGIES.values() if one.can_be_saved)
        raise UsageError(
            f"Case {row.case} of suite {row.suite}: checkpoints of {row.strategy.kind} are not "
            f"supported. Give a strategy among {names}, or leave recovery out of the suite."
        )
    if row.strategy.autocast == "float16":
        raise UsageError(
            f"Case {row.case} of suite {row.suite}: checkpoints do not hold the loss scale of "
            "float16, so the job would not continue bit for bit. Give --dtype float32."
        )
    return row.model_copy(update={"purpose": "save", "part_batches": (), "recovery": plan})
