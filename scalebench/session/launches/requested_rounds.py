"""Further rounds of a run, one each time that another process asks for it.

`scalebench gate --interleave` has two versions measure by turns. Each is one run, which starts,
checks and calibrates once, and then only waits: between its rounds it has no process that works,
and no device.
"""

import time
from collections.abc import Collection

from scalebench.analysis.summarise import summarise
from scalebench.records.run import RunInfo
from scalebench.records.storage.files import write_model
from scalebench.records.summary import RowKey
from scalebench.session.interleaved.connection import RoundRequests
from scalebench.session.launches.cell_runner import CellRunner
from scalebench.session.launches.precision import cells_of_round
from scalebench.session.machine.gpu_locks import Devices
from scalebench.session.plan.cells import row_name
from scalebench.session.storing.finish import RunStore


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
