"""Further rounds of a run, one each time that another process asks for it.

`scalebench gate --interleave` has two versions measure by turns. Each is one run, which starts,
checks and calibrates once, and then only waits: between its rounds it has no process that works,
and no device.
"""

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

from scalebench.records.run import RunInfo
from scalebench.records.summary import RowKey
from scalebench.session.cell_runner import CellRunner
from scalebench.session.interleaved.connection import RoundRequests
from scalebench.session.plan.cells import row_name
from scalebench.session.precision import cells_of_round
from scalebench.session.store import RunStore

OthersTurn = Callable[[], AbstractContextManager[None]]
"""What is to be let go of while others measure."""


def make_requested_rounds(
    store: RunStore, runner: CellRunner, requests: RoundRequests, others_turn: OthersTurn
) -> str:
    """Make rounds while they are asked for; return the run's status.

    Args:
        store: Of a run whose plan is done.
        runner: Launches what the plan holds and nobody has launched.
        requests: Asks.
        others_turn: See `OthersTurn`.
    """
    alone = why_alone(store.run.info)
    requests.report(alone)
    while alone is None:
        with others_turn():
            only = requests.wait()
        if only is None:
            break
        runner.began = time.monotonic()  # a budget is for each round, as for a run of its own
        store.extend_plan(cells_of_round(store.run, _rows_of(store, only)))
        status = runner.run_missing()
        if status != "complete":
            return status
        requests.report()
    return "complete"


def _rows_of(store: RunStore, only: Collection[str]) -> set[RowKey]:
    """Return the rows that are asked for, without those that have failed or were skipped."""
    measured = [r for r in store.run.results.values() if r.cell.purpose == "measure"]
    failed = {result.cell.row_key for result in measured if result.status != "ok"}
    return {
        cell.row_key
        for cell in store.run.info.plan
        if (not only or row_name(*cell.row_key) in only) and cell.row_key not in failed
    }


def why_alone(info: RunInfo) -> str | None:
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
