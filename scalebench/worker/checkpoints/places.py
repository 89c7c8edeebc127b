"""Where the checkpoints of a run are: a folder for each case, number of ranks and method."""

from pathlib import Path

from scalebench.errors import UsageError
from scalebench.spec import Cell
from scalebench.spec.recovery import SaveMethod
from scalebench.worker.checkpoints.store import CheckpointStore


def store_of(cell: Cell, method: SaveMethod, world_size: int | None = None) -> CheckpointStore:
    """Return the checkpoints of a case that one method saved.

    Args:
        cell: Of the case.
        method: Which saved.
        world_size: Ranks that saved; None: those of the cell.
    """
    return CheckpointStore(_folder(cell, world_size) / method)


def saved_of(cell: Cell, method: SaveMethod, world_size: int | None = None) -> Path:
    """Return the file with hashes of the state that was saved last; its folder is made."""
    return _file(cell, f"{method}-saved.json", world_size)


def after_of(cell: Cell, method: SaveMethod, world_size: int | None = None) -> Path:
    """Return the file with hashes of the state some steps later; its folder is made."""
    return _file(cell, f"{method}-after.json", world_size)


def _file(cell: Cell, name: str, world_size: int | None) -> Path:
    folder = _folder(cell, world_size)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def _folder(cell: Cell, world_size: int | None) -> Path:
    if cell.recovery is None or cell.recovery.directory is None:
        raise UsageError(f"Cell {cell.id} has no directory for checkpoints. Give --checkpoint-dir.")
    size = cell.world_size if world_size is None else world_size
    return Path(cell.recovery.directory) / cell.suite / cell.case / f"n{size}"
