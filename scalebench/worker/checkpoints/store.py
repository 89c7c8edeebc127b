"""A folder of checkpoints in which whatever has its final name is complete.

A checkpoint is written into a folder with a working name. When all its files are on the disk, a
manifest with their sizes and checksums is added, and then the folder is renamed, which happens
whole or not at all. A process that is killed at any moment leaves a folder with a working name,
which no one loads.

No torch here: what is in the files does not matter.

Where the checkpoints of a run are: a folder for each case, number of ranks and method.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from scalebench.errors import UsageError
from scalebench.spec import Cell
from scalebench.spec.recovery import SaveMethod

MANIFEST = "manifest.json"
PARTIAL = ".partial"
CHUNK_BYTES = 1 << 20
MOST_NAMED = 3
"""Of what is here instead of a complete checkpoint."""

_FINAL = re.compile(r"step-(\d{8,})(?:\.(\d{1,9}))?")
"""Name of a complete checkpoint: its step, and how often that was saved before, if it was."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    step: int
    folder: Path


@dataclass(frozen=True)
class Newest:
    """What a search for the newest complete checkpoint came to.

    Attributes:
        damaged: Folder of each newer one that cannot be used → why.
    """

    checkpoint: Checkpoint | None
    damaged: dict[str, str] = field(default_factory=dict)


class _Final(NamedTuple):
    """A folder with a final name; a later attempt at the same step counts as newer."""

    step: int
    attempt: int
    folder: Path


class NoCheckpoint(Exception):
    """There is nothing to continue from."""


class CheckpointStore:
    """The checkpoints of one job.

    Args:
        root: Their folder; made when the first is begun.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def begin(self, step: int) -> Path:
        """Return an empty folder to write the checkpoint of a step into."""
        partial = self.partial(step)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        return partial

    def partial(self, step: int) -> Path:
        """Return the folder in which the checkpoint of a step is being written."""
        return self.root / f"step-{step:08d}{PARTIAL}"

    def complete(self, step: int) -> Checkpoint:
        """Give a checkpoint its final name; its files are on the disk by then.

        Where the same step was saved before, the older ones are removed after that, so a kill at
        any moment leaves a complete one.

        Raises:
            OSError: The file system refuses.
        """
        partial = self.partial(step)
        files = {
            os.fspath(path.relative_to(partial)): [path.stat().st_size, checksum(path)]
            for path in _files_of(partial)
        }
        write_durable(partial / MANIFEST, json.dumps({"step": step, "files": files}).encode())
        sync_folder(partial)
        older = [one for one in self._final() if one.step == step]
        attempt = 1 + max((one.attempt for one in older), default=-1)
        final = self.root / (f"step-{step:08d}" + (f".{attempt}" if attempt else ""))
        partial.rename(final)
        sync_folder(self.root)
        for one in older:
            shutil.rmtree(one.folder)
        return Checkpoint(step, final)

    def newest(self) -> Newest:
        """Return the newest complete checkpoint whose files are as they were written."""
        damaged: dict[str, str] = {}
        for step, _, folder in sorted(self._final(), reverse=True):
            reason = why_damaged(folder)
            if reason is None:
                return Newest(Checkpoint(step, folder), damaged)
            damaged[folder.name] = reason
        return Newest(None, damaged)

    def why_none(self, found: Newest) -> NoCheckpoint:
        """Return the error that says in one line what is here, what is valid, and what to do."""
        here = [f"{name} is damaged ({why})" for name, why in found.damaged.items()]
        partial = sorted(self.root.glob(f"*{PARTIAL}"), reverse=True)
        here += [f"{path.name} is unfinished" for path in partial]
        if len(here) > MOST_NAMED:
            here[MOST_NAMED:] = [f"{len(here) - MOST_NAMED} more"]
        shown = "; ".join(here) or ("it is empty" if self.root.is_dir() else "no such directory")
        return NoCheckpoint(
            f"No complete checkpoint in {self.root}: {shown}. A complete one is a directory "
            f"step-NUMBER with every file that its {MANIFEST} lists. Run the suite again, and if "
            "this happens again, choose another directory with --checkpoint-dir."
        )

    def keep_newest(self) -> None:
        """Remove every checkpoint but the newest that is complete; also what was not finished."""
        newest = self.newest().checkpoint
        if newest is None:
            return
        for path in self.root.iterdir():
            if path != newest.folder and (_FINAL.fullmatch(path.name) or path.suffix == PARTIAL):
                shutil.rmtree(path)

    def _final(self) -> Iterator[_Final]:
        if not self.root.is_dir():
            return
        for path in self.root.iterdir():
            name = _FINAL.fullmatch(path.name)
            if name is not None and path.is_dir():
                yield _Final(int(name[1]), int(name[2] or 0), path)


def why_damaged(folder: Path) -> str | None:
    """Say why a checkpoint cannot be used; None: its files are as they were written."""
    try:
        files = json.loads((folder / MANIFEST).read_text())["files"]
        for name, (size, expected) in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes, and {size} were written"
            if checksum(path) != expected:
                return f"{name} does not have the checksum with which it was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its manifest cannot be read: {type(error).__name__}: {error}"
    return None


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return value


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder, its manifest not counted."""
    return sum(path.stat().st_size for path in _files_of(folder))


def write_durable(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Wait until the disk has a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


sync_folder = sync_file
"""Wait until the disk has the names in a folder."""


def _files_of(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)


def store_of(cell: Cell, method: SaveMethod, world_size: int | None = None) -> CheckpointStore:
    """Return the checkpoints of a case that one method saved.

    ``world_size``: ranks that saved; None: those of the cell.
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
