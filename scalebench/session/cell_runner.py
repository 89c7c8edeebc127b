"""Launching a run's cells one after the other, each stored as soon as it has ended."""

import time
from datetime import UTC, datetime

from scalebench.errors import UsageError
from scalebench.launch.base import Launcher
from scalebench.records.outcome import launched_result, skipped_result
from scalebench.records.run import CellResult
from scalebench.session.calibration.of_run import calibrate_run
from scalebench.session.plan.max_batch import why_too_large
from scalebench.session.progress import ProgressListener
from scalebench.session.store import RunStore
from scalebench.spec import Cell


class CellRunner:
    """Launches what a run has no result of yet.

    Args:
        launcher: Starts the ranks.
        store: Has what is there already, and keeps what is added.
        progress: Hears how it goes.
    """

    def __init__(self, launcher: Launcher, store: RunStore, progress: ProgressListener) -> None:
        self.launcher = launcher
        self.store = store
        self.progress = progress
        self._calibrated = False

    def run_missing(self) -> str:
        """Launch every cell without a result; return the run's status afterwards."""
        info, results = self.store.run.info, self.store.run.results
        budget_s = info.spec.budget_s
        deadline = time.monotonic() + budget_s if budget_s else None
        if not info.plan:
            self._calibrate_once()
        for cell in info.plan:
            if cell.id in results:
                continue
            left_s = deadline - time.monotonic() if deadline else float("inf")
            if left_s <= 0:
                return "over budget"
            if cell.purpose == "measure":
                self._calibrate_once()
            result = self._result_of(cell if deadline is None else cell.shortened(left_s))
            self.progress.ended(self.store.keep_result(result))
        return "complete"

    def _calibrate_once(self) -> None:
        """Calibrate the run's links, unless it has a profile of them."""
        if not self._calibrated and self.store.run.link is None:
            calibrate_run(self.launcher, self.store.run, self.progress.calibrating)
            self.store.anonymise_calibration()
        self._calibrated = True

    def _result_of(self, cell: Cell) -> CellResult:
        run = self.store.run
        now = datetime.now(UTC).isoformat(timespec="seconds")
        inspection = run.results.get(cell.model_copy(update={"purpose": "inspect"}).id)
        if cell.skip_reason:
            return skipped_result(cell, cell.skip_reason, now)
        if inspection is not None and inspection.status != "ok":
            return skipped_result(cell, f"not measured: {inspection.reason}", now)
        too_large = why_too_large(cell, run.results.values())
        if too_large is not None and not run.info.spec.keep_going:
            return skipped_result(cell, too_large, now)
        self.progress.started(cell)
        launched = self.launcher.launch(cell, run.paths.logs(cell.id))
        if launched.failure is not None and launched.failure.kind == "usage":
            raise UsageError(launched.failure.message)
        times = (launched.launch_s, launched.wall_s)
        return launched_result(cell, launched.records, launched.failure, now, times, launched.node)
