"""Launching a run's cells, each stored as soon as it has ended; which cells take turns.

So are ranks' shards of jobs that are larger than this machine, one rank at a time. What a rank
computes and keeps among 64 is known to the strategy; that the other 63 are not there changes
neither. So its step without communication and its memory are measured, not carried on from smaller
sizes.

Which cells of a run are launched together and take turns, and which by themselves.

Cells of one suite and one round share a launch, so that what the machine does in a minute it does
to all of them, and a block of steps has blocks of the baseline next to it.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from scalebench import machine
from scalebench.analysis.projection.from_logs import cases_at_one, cell_at
from scalebench.analysis.projection.recovery import MeasuredShard
from scalebench.analysis.run import StoredRun
from scalebench.analysis.steps import launch_step_s
from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.launch.base import Launcher, SharingFailed
from scalebench.records.folder import Scratch
from scalebench.records.run import CellResult, RunInfo, RunSpec, launched_result, skipped_result
from scalebench.session.calibration.of_run import calibrate_run, calibrate_scripts
from scalebench.session.calibration.rehearsals import rehearse_steps
from scalebench.session.plan.max_batch import why_too_large
from scalebench.session.recovery.directory import saving_in
from scalebench.session.recovery.faults import measure_faults
from scalebench.session.storing.code import WrittenFiles
from scalebench.session.storing.finish import RunStore
from scalebench.spec import Cell, Mesh, Script, SharedLaunch
from scalebench.units import bytes_

PROCESS_BYTES = 150 * 2**20
"""What a rank keeps for itself besides tensors: its own copies of what it was forked with."""
LARGEST_SHARE_OF_MEMORY = 0.7


def can_share(cell: Cell, spec: RunSpec, launcher_shares: bool) -> bool:
    """Tell whether a cell may take turns with others.

    Not with a DataLoader: its workers would go on making batches while the rank waits. Nor a
    user's script, which goes on by itself. Nor a race, which no one else should interrupt.
    """
    return (
        launcher_shares
        and spec.shared
        and cell.purpose in ("measure", "independent", "shard")
        and cell.loader is None
        and cell.race is None
        and not isinstance(cell.strategy, Script)
    )


def cells_to_share(first: Cell, missing: Sequence[Cell]) -> list[Cell]:
    """Return the cells of the same suite and round as ``first``, itself among them."""
    key = (first.suite, first.repeat)
    return [cell for cell in missing if (cell.suite, cell.repeat) == key]


def only_whole_launches(results: Mapping[str, CellResult]) -> dict[str, CellResult]:
    """Return the results without those of shared launches of which some were not stored.

    A run that was killed while it stored them has a part. The rest of that round, launched by
    itself later, would be compared with launches that it did not take turns with.

    Args:
        results: Every result that is stored, also of launches that failed.
    """
    return {
        cell_id: result
        for cell_id, result in results.items()
        if results.keys() >= set(result.shared_with)
    }


def too_much_memory(cells: Sequence[Cell], results: Mapping[str, CellResult]) -> str | None:
    """Say why cells do not fit into the machine's memory at once; None: they do, or no one knows.

    Args:
        cells: What would be launched together.
        results: With the launches that inspected them, which counted their memory.
    """
    available = _available_bytes()
    if available is None:
        return None
    wanted = sum(_bytes_of(cell, results) for cell in cells)
    if wanted <= LARGEST_SHARE_OF_MEMORY * available:
        return None
    return (
        f"together they need about {bytes_(wanted)}, and {bytes_(available)} of memory are "
        "available"
    )


def _bytes_of(cell: Cell, results: Mapping[str, CellResult]) -> int:
    of_rank = PROCESS_BYTES * cell.world_size
    if cell.purpose == "independent":  # each rank trains what the baseline's only rank does
        return of_rank + cell.world_size * _tensor_bytes(cell, 1, results)
    if cell.purpose == "shard":  # one of the row's ranks
        return PROCESS_BYTES + _tensor_bytes(cell, cell.world_size, results) // cell.world_size
    return of_rank + _tensor_bytes(cell, cell.world_size, results)


def _tensor_bytes(cell: Cell, world_size: int, results: Mapping[str, CellResult]) -> int:
    """Return the tensors of all ranks of the launch that inspected a case at a size."""
    inspection = cell.model_copy(update={"purpose": "inspect", "world_size": world_size})
    inspected = results.get(inspection.id)
    ranks = inspected.ranks if inspected is not None else []
    return sum(rank.memory.allocated_bytes or rank.memory.rss_bytes or 0 for rank in ranks)


def _available_bytes() -> int | None:
    """Return the memory that new processes can have without swapping (Linux; elsewhere None)."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


class ProgressListener:
    """Hears how a session goes, and shows nothing; the command line's listener shows it."""

    def preparing(self) -> None:
        """Torch is being imported in the worker."""

    def planned(self, info: RunInfo, num_done: int) -> None:
        """Everything is known and stored; ``num_done`` cells are there already (resume)."""

    def calibrating(self, what: str, _: object) -> None:
        """The links are being calibrated; ``what`` is under way."""

    def started(self, cell: Cell) -> None:
        """A cell is about to be launched."""

    def started_together(self, cells: Sequence[Cell]) -> None:
        """Cells of a suite are about to be launched that take turns."""

    def ended(self, result: CellResult) -> None:
        """A cell has ended and is stored."""


SHORTEST_S = 0.001


class CellRunner:
    """Launches what a run has no result of yet.

    Attributes:
        began: When it was made, on the monotonic clock: budgets count from then.
    """

    def __init__(self, launcher: Launcher, store: RunStore, progress: ProgressListener) -> None:
        self.launcher = launcher
        self.store = store
        self.progress = progress
        self.began = time.monotonic()
        self._calibrated: set[object] = set()
        self._rehearsed = store.run.link is not None  # a profile that was given stays as it is
        self._by_itself: set[str] = set()
        self._files = WrittenFiles(Path.cwd(), store.run.paths.root)

    def run_missing(self) -> str:
        """Launch every cell without a result; return the run's status afterwards."""
        info, results = self.store.run.info, self.store.run.results
        if not info.plan:
            self._calibrate_once(calibrate_run)
        for cell in info.plan:
            if cell.id in results:
                continue
            if self._left_s() <= 0:
                return "over budget"
            if cell.purpose != "inspect":
                self._calibrate_once(calibrate_run)
                self._rehearse_once()
            together = self._to_share(cell)
            if len(together) > 1 and self._launch_shared(together):
                continue
            self._launch(cell)
        if self._left_s() > 0:
            self._calibrate_once(calibrate_scripts)
            self._rehearse_once()
        return "complete"

    def _left_s(self) -> float:
        """Return what is left of the budget, seconds; infinite where there is none.

        Calibration may have used up what was left when a launch was decided on: its windows are
        then as short as they can be.
        """
        budget_s = self.store.run.info.spec.budget_s
        return self.began + budget_s - time.monotonic() if budget_s else inf

    def _launch(self, cell: Cell) -> CellResult:
        """Launch a cell by itself and keep its result."""
        left_s = self._left_s()
        result = self._result_of(cell if left_s == inf else cell.shortened(max(SHORTEST_S, left_s)))
        self.progress.ended(self.store.keep_result(result))
        return result

    def _to_share(self, first: Cell) -> list[Cell]:
        """Return the cells that can be launched together with one that is due, itself included."""
        run = self.store.run
        spec = run.info.spec
        missing = [cell for cell in run.info.plan if cell.id not in run.results]
        cells = [
            cell
            for cell in cells_to_share(first, missing)
            if can_share(cell, spec, self.launcher.shares)
            and _sort(cell) not in self._by_itself
            and self._why_not(cell) is None
        ]
        return cells if first in cells and not self._was_begun(first) else []

    def _was_begun(self, first: Cell) -> bool:
        """Tell whether others of a round were launched in an earlier session, and are kept.

        The rest of it did not take turns with them, so it does not look as if it did.
        """
        spec = self.store.run.info.spec
        return any(
            result.status != "skipped"
            and (result.cell.suite, result.cell.repeat) == (first.suite, first.repeat)
            and can_share(result.cell, spec, self.launcher.shares)
            and _sort(result.cell) not in self._by_itself
            for result in self.store.run.results.values()
        )

    def _launch_shared(self, cells: Sequence[Cell]) -> bool:
        """Launch cells that take turns and keep their results; False: not possible."""
        run = self.store.run
        too_much = too_much_memory(cells, run.results)
        if too_much is not None:
            self._part(cells, too_much)
            return False
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.progress.started_together(cells)
        left_s = max(SHORTEST_S, self._left_s())
        shortened = [c.shortened(left_s / len(cells)) for c in cells] if left_s < inf else cells
        logs = [run.paths.logs(cell.id) for cell in cells]
        try:
            launched = self.launcher.launch_shared(SharedLaunch.of(shortened), logs)
        except SharingFailed as failed:
            self._find_the_one_to_blame(cells, str(failed))
            return True
        together = {"shared_with": [cell.id for cell in cells]}
        results = [
            launched_result(
                cell, one.records, one.failure, now, (one.launch_s, one.wall_s), one.node
            ).model_copy(update=together)
            for cell, one in zip(shortened, launched, strict=True)
        ]
        for result in self.store.keep_results(results):
            self.progress.ended(result)
        return True

    def _find_the_one_to_blame(self, cells: Sequence[Cell], reason: str) -> None:
        """Launch cells by themselves that did not come to their end together, within the budget.

        Those that fail by themselves are not launched with others again. If none fails, they
        cannot share a launch at all.
        """
        failed = []
        for cell in cells:
            if self._left_s() <= 0:
                break
            result = self._launch(cell)
            if result.status in ("failed", "oom"):
                failed.append(cell)
        self._part(failed or cells, None if failed else reason)

    def _part(self, cells: Sequence[Cell], reason: str | None) -> None:
        """Have cells launched by themselves from now on; say so once if it is no one's fault."""
        self._by_itself.update(map(_sort, cells))
        if reason is None:
            return
        self.store.add_notice(
            f"{cells[0].suite}: launched one row at a time, not by turns: {reason}"
        )

    def _calibrate_once(self, calibrate: Callable[..., None]) -> None:
        """Calibrate links, unless the run has a profile; have the run say what it left out."""
        has_profile = self.store.run.link is not None
        if calibrate not in self._calibrated and not has_profile:
            calibrate(self.launcher, self.store.run, self.progress.calibrating)
            self.store.clean_calibration()
            for told in self.store.run.link.cut_short if self.store.run.link is not None else ():
                self.store.add_notice(told)
        self._calibrated.add(calibrate)

    def _rehearse_once(self) -> None:
        """Have ranks play the run's steps, as soon as it is known what they compute."""
        if not self._rehearsed:
            self._rehearsed = rehearse_steps(
                self.launcher, self.store.run, self.progress.calibrating
            )

    def _why_not(self, cell: Cell) -> str | None:
        """Say why a cell is not launched; None: it is."""
        run = self.store.run
        inspection = run.results.get(cell.model_copy(update={"purpose": "inspect"}).id)
        if cell.skip_reason:
            return cell.skip_reason
        if inspection is not None and inspection.status != "ok":
            return f"not measured: {inspection.reason}"
        if cell.purpose == "restore":
            return self._why_not_restored(cell)
        failed_before = why_not_again(cell, run.results.values())
        if failed_before is not None:
            return failed_before
        too_large = why_too_large(cell, run.results.values())
        return None if run.info.spec.keep_going else too_large

    def _why_not_restored(self, cell: Cell) -> str | None:
        """Say why there is nothing to restore; None: every number of ranks has saved."""
        results = self.store.run.results
        for size in cell.restore_from:
            saving = cell.model_copy(update={"purpose": "save", "world_size": size})
            saved = results.get(saving.id)
            if saved is not None and saved.status != "ok":
                return f"nothing to restore: saving at N={size} failed: {saved.reason}"
        return None

    def _result_of(self, cell: Cell) -> CellResult:
        run = self.store.run
        now = datetime.now(UTC).isoformat(timespec="seconds")
        reason = self._why_not(cell)
        if reason is not None:
            return skipped_result(cell, reason, now)
        self.progress.started(cell)
        cell = saving_in(cell, self.store.checkpoints)
        if cell.purpose == "fail":
            return measure_faults(self.launcher, cell, run.paths.logs(cell.id), now)
        self._files.before_launch(cell)
        launched = self.launcher.launch(cell, run.paths.logs(cell.id))
        times = (launched.launch_s, launched.wall_s)
        result = launched_result(
            cell,
            launched.records,
            launched.failure,
            now,
            times,
            node=launched.node,
            lost=launched.lost,
        )
        failure = launched.failure
        if failure is not None and (failure.kind == "usage" or self._is_hopeless(result)):
            raise UsageError(self.store.cleaner.text(failure.message))
        for told in self._files.after_launch(cell, result.ranks):
            self.store.add_notice(told)
        return result

    def _is_hopeless(self, result: CellResult) -> bool:
        """Tell whether a script ended before it was measured, and so it did at every other size."""
        results = [*self.store.run.results.values(), result]
        known = {one.cell.id for one in results}
        if result.failure is None or result.failure.kind != "ended":
            return False
        return all(one.status != "ok" for one in results) and all(
            cell.id in known or why_not_again(cell, results) for cell in self.store.run.info.plan
        )


def why_not_again(cell: Cell, results: Iterable[CellResult]) -> str | None:
    """Say why a script that failed is not launched again at the same size; None: it may be.

    Its start can take minutes, and what failed before it was measured fails again.
    """
    if not isinstance(cell.strategy, Script):
        return None
    for result in results:
        if result.cell.row_key == cell.row_key and result.status in ("failed", "oom"):
            return f"not launched again: launch {result.cell.repeat} failed: {result.reason}"
    return None


def _sort(cell: Cell) -> str:
    """Return what the launches of a cell have in common, whatever the round."""
    return cell.model_copy(update={"repeat": 0}).id


OnProgress = Callable[[str, object], None]


def measure_shards(
    launcher: Launcher, run: StoredRun, world_sizes: Sequence[int], on_progress: OnProgress
) -> list[MeasuredShard]:
    """Measure rank 0 of every case of a run at other numbers of ranks.

    Raises:
        EnvironmentUnfit: This machine or torch is not that of the run.
    """
    here = machine.fingerprint(launcher.survey())
    different = machine.differences(here, run.info.environment)
    if different:
        raise EnvironmentUnfit(
            f"{run.paths.root} was made with a different {', '.join(different)}: a shard measured "
            "here says nothing about it. Leave out --measure-shard, or start a new run here."
        )
    if run.info.spec.virtual_hosts is not None:
        launcher.move_to(run.info.spec.virtual_hosts, 1)
    with Scratch() as logs:
        return [
            _measured(launcher, one.cell, world_size, logs, on_progress)
            for one in cases_at_one(run)
            for world_size in world_sizes
        ]


def _measured(
    launcher: Launcher, cell: Cell, world_size: int, logs: Path, on_progress: OnProgress
) -> MeasuredShard:
    shard = MeasuredShard(suite=cell.suite, case=cell.case, world_size=world_size)
    there = cell_at(cell, world_size)
    if isinstance(there, str):
        return shard.model_copy(update={"reason": there})
    if isinstance(cell.strategy, Mesh) and cell.strategy.pipeline > 1:
        reason = "the shard of a stage of a pipeline depends on what the other stages send"
        return shard.model_copy(update={"reason": reason})
    if not cell.strategy.works_alone:
        reason = f"the shard of a rank under {cell.strategy.kind} depends on what the others send"
        return shard.model_copy(update={"reason": reason})
    on_progress(f"a shard of {cell.case} at N={world_size}", None)
    alone = there.model_copy(update={"purpose": "shard", "repeat": 0, "part_batches": ()})
    launched = launcher.launch(alone, logs / alone.id)
    if launched.failure is not None or not launched.records:
        reason = launched.failure.message if launched.failure else "it left no record"
        return shard.model_copy(update={"reason": reason})
    times = (launched.launch_s, launched.wall_s)
    result = launched_result(alone, launched.records, launched.failure, "", times)
    peak = launched.records[0].memory.allocated_bytes
    found = {"step_s": launch_step_s(result), "peak_memory_bytes": peak}
    return shard.model_copy(update=found)
