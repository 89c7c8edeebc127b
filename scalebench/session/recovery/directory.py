"""The directory for a run's checkpoints, and the phases of a failure from what was noted in it.

The directory for a run's checkpoints: chosen, checked before anything runs, and removed.

Checkpoints are saved and removed below the run's folder, or in a folder that a file in it marks as
this run's. What ``run.json`` says alone is not enough: a run may be copied, or written by others.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from scalebench.analysis.run import read_info
from scalebench.errors import UsageError
from scalebench.grouping import by_key
from scalebench.records.files import read_model, write_model
from scalebench.records.folder import claim_folder, require_plain
from scalebench.records.measured.recovery import Event, FaultTimeline
from scalebench.spec import Cell
from scalebench.spec.base import Record
from scalebench.spec.presets import CustomTarget
from scalebench.spec.recovery import PHASES, FaultPlan, Restarter
from scalebench.spec.script import ScriptTarget
from scalebench.units import bytes_

FOLDER = "checkpoints"
MARK = ".scalebench-run"
BYTES_PER_PARAMETER = 12
"""A parameter and the two moments of AdamW, float32."""
COPIES = 3
"""Checkpoints of a case, a size and a method that are there at once, at most."""
Outside = tuple[int, int, int]
"""When a rank failed, when that was noticed, when no rank was left: ns of the monotonic clock."""


class Mark(Record):
    """Whose checkpoints a folder is for."""

    run_id: str
    run_folder: str


def with_directory(
    cells: Sequence[Cell], chosen: Path | None, run_root: Path, run_id: str
) -> list[Cell]:
    """Return the cells, those that save and restore with the directory for it.

    A folder below the user's directory is made, and marked as the run's.

    ``chosen``: what the user gave; None: what the suite says, or a folder in the run's.

    Raises:
        UsageError: The directory cannot be used.
    """
    of_suites = directories_of(cells)
    wanted = by_key(
        (chosen or of_suites.get(cell.suite, run_root), cell)
        for cell in cells
        if cell.recovery is not None
    )
    folders: dict[str, Path] = {}
    for directory, saving in wanted.items():
        check_directory(directory, needed_bytes(saving))
        folder = run_root.resolve() / FOLDER
        if directory != run_root:
            folder = claim_folder(directory.resolve() / _name(run_id))
            _mark(folder, run_root, run_id)
        folders |= {cell.suite: folder for cell in saving}
    return [saving_in(cell, folders) for cell in cells]


def saving_in(cell: Cell, folders: Mapping[str, Path]) -> Cell:
    """Return a cell with the directory for its checkpoints.

    ``folders``: suite → its directory; of other suites, cells stay as they are.
    """
    if cell.recovery is None or cell.suite not in folders:
        return cell
    plan = cell.recovery.model_copy(update={"directory": os.fspath(folders[cell.suite])})
    return cell.model_copy(update={"recovery": plan})


def directories_of(cells: Iterable[Cell]) -> dict[str, Path]:
    """Return the directory of each suite whose cells have one."""
    return {
        cell.suite: Path(cell.recovery.directory)
        for cell in cells
        if cell.recovery is not None and cell.recovery.directory is not None
    }


def own_directories(
    cells: Iterable[Cell], chosen: Path | None, run_root: Path, run_id: str
) -> dict[str, Path]:
    """Return the directory of each suite of a run that goes on, if it is the run's.

    A run that was moved takes what is below its folder with it.

    ``chosen``: what the user gives in place of a directory that is not the run's, or unknown. The
    run's folder has neither links nor pipes in it.

    Raises:
        UsageError: A directory is not the run's; nothing was removed.
    """
    found = {}
    for suite, folder in directories_of(cells).items():
        if folder.name == FOLDER:
            found[suite] = run_root.resolve() / FOLDER
            continue
        why = _why_not_ours(folder, run_root, run_id)
        if why is not None and chosen is not None:
            folder = chosen.resolve() / _name(run_id)
            why = _why_not_ours(folder, run_root, run_id)
        if why is not None:
            raise UsageError(
                f"{run_root} has its checkpoints in {folder}, which is not a folder of this run: "
                f"{why}. Nothing was removed. Start a new run, or give another directory with "
                "--checkpoint-dir."
            )
        check_directory(folder.parent, 0)
        folder.mkdir(mode=0o700, exist_ok=True)
        require_plain(folder)
        _mark(folder, run_root, run_id)
        found[suite] = folder
    return found


def _name(run_id: str) -> str:
    return f"scalebench-{run_id}"


def _mark(folder: Path, run_root: Path, run_id: str) -> None:
    mark = Mark(run_id=run_id, run_folder=os.fspath(run_root.resolve()))
    write_model(folder / MARK, mark)


def _why_not_ours(folder: Path, run_root: Path, run_id: str) -> str | None:
    """Say why a folder is not for the checkpoints of a run, or None; one may still be made."""
    if not folder.is_absolute() or not folder.name.startswith(_name(run_id)):
        return f"its name is not {_name(run_id)}"
    if not os.path.lexists(folder):
        return None
    if folder.is_symlink() or not folder.is_dir():
        return "it is not a directory"
    try:
        mark = read_model(folder / MARK, Mark)
    except UsageError:
        return f"no file {MARK} in it says so"
    if mark.run_id != run_id:
        return f"it is of the run {mark.run_id}"
    if mark.run_folder != os.fspath(run_root.resolve()) and _is_run(mark.run_folder, run_id):
        return f"it is of the run in {mark.run_folder}, and {run_root} is a copy"
    return None


def _is_run(folder: str, run_id: str) -> bool:
    """Tell whether a run is still where it was; otherwise it has been moved."""
    try:
        return read_info(Path(folder)).run_id == run_id
    except (OSError, UsageError):
        return False


def needed_bytes(cells: Iterable[Cell]) -> int:
    """Return about how much the checkpoints of all these cells need at once."""
    total = 0
    for cell in cells:
        workload = cell.workload
        if cell.purpose == "save" and not isinstance(workload, CustomTarget | ScriptTarget):
            methods = len(cell.recovery.methods) if cell.recovery else 0
            total += COPIES * methods * BYTES_PER_PARAMETER * workload.num_parameters
    return total


def check_directory(directory: Path, wanted_bytes: int) -> None:
    """Check that checkpoints can be written into a directory, before anything is launched.

    The directory must be there; ``wanted_bytes`` is the room that is needed.

    Raises:
        UsageError: It is not there, cannot be written, cannot keep files, or is too small.
    """
    if not directory.is_dir():
        is_what = "it is not a directory" if directory.exists() else "there is no such directory"
        raise UsageError(
            f"Checkpoints cannot go into {directory}: {is_what}. Make it, or give "
            "another one with --checkpoint-dir."
        )
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".scalebench-") as file:
            file.write(b"x")
            file.flush()
            _check_fsync(directory, file.fileno())
    except OSError as error:
        raise UsageError(
            f"Checkpoints cannot go into {directory}: {error.strerror}. Give a directory that you "
            "can write to with --checkpoint-dir."
        ) from error
    free = shutil.disk_usage(directory).free
    if free < wanted_bytes:
        raise UsageError(
            f"Checkpoints cannot go into {directory}: it has {bytes_(free)} free, and they need "
            f"about {bytes_(wanted_bytes)}. Free some space, or give --checkpoint-dir."
        )


def _check_fsync(directory: Path, file: int) -> None:
    """Raise UsageError where a file cannot be kept for certain."""
    try:
        os.fsync(file)
    except OSError as error:
        raise UsageError(
            f"Checkpoints are not safe in {directory}, where fsync fails: {error.strerror}. Give a "
            "directory on another file system with --checkpoint-dir."
        ) from error


def remove_checkpoints(folders: Iterable[Path], run_root: Path, run_id: str) -> None:
    """Remove what a run saved, when all of it has been restored; only folders of the run."""
    for folder in set(folders):
        below = folder == run_root.resolve() / FOLDER
        if below or _why_not_ours(folder, run_root, run_id) is None:
            shutil.rmtree(folder, ignore_errors=True)  # it does not follow links


class NoTimeline(Exception):
    """A failure did not go as it should; the text says what is missing."""


def timelines_of(
    plans: Sequence[FaultPlan],
    by: Restarter,
    outside_ns: Sequence[Outside],
    attempts: Sequence[Sequence[Sequence[Event]]],
) -> list[FaultTimeline]:
    """Return the timelines of a job's failures, in order.

    ``plans`` and ``outside_ns`` are of each failure. ``attempts``: events of each rank: of the
    attempt that failed first, of the next, …; of one more than failed.

    Raises:
        NoTimeline: One is not complete, or a failure came before the job had caught up with the one
            before.
    """
    timelines: list[FaultTimeline] = []
    for number, plan in enumerate(plans):
        if timelines:
            since_s = (outside_ns[number][0] - outside_ns[number - 1][0]) / 1e9
            if since_s < timelines[-1].total_s:
                raise NoTimeline(
                    f"{failure_of(plan)}: the job had not caught up with the one before"
                )
        around = attempts[number], attempts[number + 1]
        try:
            found = timeline_of(plan, by, outside_ns[number], *around)
        except NoTimeline as error:
            raise NoTimeline(f"{failure_of(plan)}: {error}") from None
        timelines.append(found.model_copy(update={"restart": number + 1}))
    return timelines


def failure_of(plan: FaultPlan) -> str:
    """Say which failure a plan is of."""
    return f"failure {plan.attempt + 1} of the job, {plan.kind} of rank {plan.rank}"


def timeline_of(
    plan: FaultPlan,
    by: Restarter,
    outside_ns: Outside,
    before: Sequence[Sequence[Event]],
    after: Sequence[Sequence[Event]],
) -> FaultTimeline:
    """Return the timeline of one failure.

    A phase of the new ranks ends when the last of them is through it.

    ``before``: events of each rank that was there when one failed; ``after``: of each that
    continued.

    Raises:
        NoTimeline: A rank did not get as far, or the moments are not in order.
    """
    lost = max((e.number for rank in before for e in rank if e.name == "step"), default=0)
    saved = max((e.number for rank in after for e in rank if e.name == "loaded"), default=0)
    moments = [
        *outside_ns,
        _last(after, "started"),
        _last(after, "connected"),
        _last(after, "built"),
        _last(after, "loaded"),
        _step(after, saved + 1),
        _step(after, lost + 1),
    ]
    seconds = [(b - a) / 1e9 for a, b in pairwise(moments)]
    wrong = [name for name, s in zip(PHASES, seconds, strict=True) if s < 0]
    if wrong:
        raise NoTimeline(f"{wrong[0]} ended before it began")
    return FaultTimeline(
        kind=plan.kind,
        restarted_by=by,
        rank=plan.rank,
        failed_after=lost,
        saved_after=saved,
        phases_s=dict(zip(PHASES, seconds, strict=True)),
        total_s=(moments[-1] - moments[0]) / 1e9,
        data_s=(_last(after, "loaded") - _last(after, "state")) / 1e9,
    )


def _last(ranks: Sequence[Sequence[Event]], name: str) -> int:
    """Return when the last rank came to an event."""
    return max(_first(events, name, None) for events in ranks)


def _step(ranks: Sequence[Sequence[Event]], number: int) -> int:
    """Return when the last rank had done a step."""
    return max(_first(events, "step", number) for events in ranks)


def _first(events: Sequence[Event], name: str, number: int | None) -> int:
    for event in events:
        if event.name == name and (number is None or event.number == number):
            return event.time_ns
    what = name if number is None else f"{name} {number}"
    raise NoTimeline(f"a rank that was started again did not come to {what!r}")
