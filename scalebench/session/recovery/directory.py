"""The directory for a run's checkpoints: chosen, checked before anything runs, and removed."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from scalebench.errors import UsageError
from scalebench.spec import Cell
from scalebench.spec.presets import CustomTarget
from scalebench.spec.script import ScriptTarget
from scalebench.units import bytes_

FOLDER = "checkpoints"
BYTES_PER_PARAMETER = 12
"""A parameter and the two moments of AdamW, float32."""
COPIES = 3
"""Checkpoints of a case, a size and a method that are there at once, at most."""


def with_directory(
    cells: Sequence[Cell], chosen: Path | None, run_root: Path, run_id: str
) -> list[Cell]:
    """Return the cells, those that save and restore with the directory for it.

    Args:
        cells: Of a plan.
        chosen: What the user gave; None: what the suite says, or a folder in the run's.
        run_root: The run's folder.
        run_id: Name of the folder below the user's.

    Raises:
        UsageError: The directory cannot be used.
    """
    wanted: dict[Path, list[Cell]] = {}
    found = []
    for cell in cells:
        if cell.recovery is not None:
            of_suite = cell.recovery.directory
            given = chosen or (Path(of_suite) if of_suite else None)
            wanted.setdefault(given or run_root, []).append(cell)
            below = run_root / FOLDER if given is None else given / f"scalebench-{run_id}"
            plan = cell.recovery.model_copy(update={"directory": os.fspath(below.resolve())})
            found.append(cell.model_copy(update={"recovery": plan}))
        else:
            found.append(cell)
    for directory, saving in wanted.items():
        check_directory(directory, needed_bytes(saving))
    return found


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

    Args:
        directory: Must be there.
        wanted_bytes: Room that is needed.

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


def remove_checkpoints(cells: Iterable[Cell]) -> None:
    """Remove what a run saved, when all of it has been restored."""
    folders = {cell.recovery.directory for cell in cells if cell.recovery is not None}
    for folder in folders:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
