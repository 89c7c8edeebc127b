"""Further rounds for the rows whose efficiency is known least, until all are known as asked.

A further round holds only those rows and the baselines that they are measured against. It ends
when every row is precise enough, or when the next round would go beyond the time.

Its windows are as long as those of the planned rounds: launches of one row differ by more than the
blocks within one explain, so more rounds tell more than longer ones.

Another process may ask for further rounds, one at a time: `scalebench gate --interleave` has two
versions measure by turns. Each is one run, which starts, checks and calibrates once, and then only
waits: between its rounds it has no process that works, and no device.
"""

import time
from collections.abc import Callable, Collection, Sequence

from scalebench.analysis.rows.launches import Ratios
from scalebench.analysis.run import StoredRun
from scalebench.analysis.summarise import summarise
from scalebench.records.files import write_model
from scalebench.records.run import ImpreciseRow, PrecisionReached, RunInfo
from scalebench.records.summary import RowKey
from scalebench.session.cell_runner import CellRunner
from scalebench.session.interleaved.run_process import RoundRequests
from scalebench.session.machine.gpu_locks import Devices
from scalebench.session.plan.cells import row_name
from scalebench.session.storing.finish import RunStore
from scalebench.spec import Cell


def add_rounds(store: RunStore, run_missing: Callable[[], str], began: float) -> str:
    """Launch further rounds as the run's precision asks for; return the run's status.

    ``began``: when the run began, on the monotonic clock, seconds.
    """
    spec = store.run.info.spec
    if spec.precision is None or spec.precision_budget_s is None:
        return "complete"
    status = "complete"
    while True:
        reached = reached_by(store.run, spec.precision, spec.precision_budget_s)
        store.run.info = store.run.info.model_copy(update={"precision": reached})
        if status != "complete":
            return status
        cells = next_round(store.run, reached.imprecise)
        left_s = spec.precision_budget_s - (time.monotonic() - began)
        if not cells or expected_s(store.run, cells) > left_s:
            return "complete"
        store.extend_plan(cells)
        status = run_missing()


def reached_by(run: StoredRun, half_width: float, budget_s: float) -> PrecisionReached:
    """Return how precisely the efficiencies of a run are known.

    ``half_width`` is a fraction of ideal; ``budget_s`` is the time for it, seconds.
    """
    found = list(Ratios.of(run).efficiencies())
    imprecise = [
        ImpreciseRow(
            suite=row.cell.suite,
            case=row.cell.case,
            world_size=row.cell.world_size,
            half_width=estimate.half_width,
            more_s=_more_s(run, row.cell.suite, estimate.half_width, half_width),
        )
        for row, _, estimate in found
        if all(result.status == "ok" for result in row.measured.values())
        and (estimate.half_width is None or estimate.half_width > half_width)
    ]
    return PrecisionReached(
        half_width=half_width, budget_s=budget_s, num_rows=len(found), imprecise=imprecise
    )


def next_round(run: StoredRun, imprecise: Sequence[ImpreciseRow]) -> list[Cell]:
    """Return the cells of a further round: imprecise rows, and the rows they are compared with.

    The round has one number in its suite, also for rows that were not in every round before:
    ratios are formed between launches of the same number.
    """
    ratios = Ratios.of(run)
    wanted: set[RowKey] = {(row.suite, row.case, row.world_size) for row in imprecise}
    for row, base, _ in ratios.efficiencies():
        if row.cell.row_key in wanted:
            wanted.add(base.cell.row_key)
    return cells_of_round(run, wanted)


def cells_of_round(run: StoredRun, wanted: Collection[RowKey]) -> list[Cell]:
    """Return the cells of a further round of rows, numbered by suite; steps are not traced."""
    measuring = [cell for cell in run.info.plan if cell.purpose == "measure"]
    rows = {cell.row_key: cell for cell in measuring if cell.row_key in wanted}
    further: list[Cell] = []
    for cell in rows.values():
        repeat = 1 + max(one.repeat for one in run.info.plan if one.suite == cell.suite)
        steps = cell.steps.model_copy(update={"trace": False})
        further.append(cell.model_copy(update={"repeat": repeat, "steps": steps}))
    return further


def expected_s(run: StoredRun, cells: Sequence[Cell]) -> float:
    """Return how long a round of cells will take, from the newest rounds of their suites."""
    return sum(_seconds_of_a_cell(run, cell) for cell in cells)


def _seconds_of_a_cell(run: StoredRun, cell: Cell) -> float:
    launches = [
        result
        for result in run.results.values()
        if result.cell.suite == cell.suite and result.cell.purpose == "measure" and result.wall_s
    ]
    if not launches:
        return 0.0
    newest = max(launches, key=lambda result: result.cell.repeat)
    return newest.cost_s


def _more_s(run: StoredRun, suite: str, found: float | None, wanted: float) -> float | None:
    """Return the time in which an interval would shrink as wanted: it does so by the root of it."""
    if found is None:
        return None
    spent_s = sum(
        result.cost_s
        for result in run.results.values()
        if result.cell.suite == suite and result.cell.purpose == "measure"
    )
    return max(0.0, spent_s * ((found / wanted) ** 2 - 1))


def make_requested_rounds(
    store: RunStore, runner: CellRunner, requests: RoundRequests, devices: Devices
) -> str:
    """Do what is planned, the first round, and make others while they are asked for.

    After each the summary is stored, for who asks.

    Returns:
        The run's status.
    """
    while True:
        status = runner.run_missing()
        reason = why_separate(store.run.info) if status == "complete" else status
        if reason is not None:
            requests.report(reason)
            return status
        write_model(store.run.paths.summary_json, summarise(store.as_stored()))
        devices.let_go()
        requests.report()
        only = requests.wait()
        if only is None:
            return status
        for notice in devices.claim(store.run.info):
            store.add_notice(notice)
        runner.began = time.monotonic()  # a budget is for each round, as if it were a separate run
        store.extend_plan(cells_of_round(store.run, _rows_of(store, only)))


def _rows_of(store: RunStore, only: Collection[str]) -> set[RowKey]:
    """Return the rows that are asked for, without those that have failed or were skipped."""
    measured = [r for r in store.run.results.values() if r.cell.purpose == "measure"]
    failed = {result.cell.row_key for result in measured if result.status != "ok"}
    return {
        cell.row_key
        for cell in store.run.info.plan
        if (not only or row_name(*cell.row_key) in only) and cell.row_key not in failed
    }


def why_separate(info: RunInfo) -> str | None:
    """Say why a run cannot make further rounds of the same; None: it can."""
    if info.spec.virtual_hosts is not None:
        return "virtual hosts are made for one run at a time"
    if any(cell.race is not None for cell in info.plan):
        return "each launch of a race has another seed"
    if any(cell.purpose in ("save", "restore", "fail") for cell in info.plan):
        return "checkpoints and failures are not repeated in further rounds"
    if not any(cell.purpose == "measure" for cell in info.plan):
        return "only collectives are timed"
    return None
