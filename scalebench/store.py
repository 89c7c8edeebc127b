"""Run folders on disk: written so that a reader never sees half a file, read with suspicion."""

import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.outcome import contradiction
from scalebench.paths import RunPaths, latest_link
from scalebench.records import CELL_FORMAT, RUN_FORMAT, CellResult, RunInfo
from scalebench.seal import Broken, check_seal, sealed
from scalebench.units import bytes_

if TYPE_CHECKING:
    from scalebench.costmodel.link_profile import LinkProfile

Model = TypeVar("Model", bound=BaseModel)
PRIVATE_FOLDER = 0o700
NEEDED_BYTES = 32 * 1024 * 1024
LARGEST_BYTES = 256 * 1024 * 1024
"""A stored record of any kind is smaller: the traces of a launch make some hundred kilobytes."""


@dataclass
class StoredRun:
    """A run as it stands on disk, however far it came.

    Attributes:
        damaged: File name → why it could not be read; such cells count as not there.
        link: What the run's links cost, as calibrated in the run; None: see
            ``link_unavailable``.
    """

    paths: RunPaths
    info: RunInfo
    results: dict[str, CellResult]
    damaged: dict[str, str] = field(default_factory=dict)
    link: "LinkProfile | None" = None
    link_unavailable: str = "no link was calibrated in this run"


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: temporary file, fsync, rename. Text becomes UTF-8."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_model(path: Path, model: BaseModel, indent: int | None = 1) -> None:
    """Write a record as JSON, whole or not at all; ``indent=None``: on one line, half as large."""
    write_atomic(path, model.model_dump_json(indent=indent) + "\n")


def write_sealed(path: Path, model: BaseModel, indent: int | None = 1) -> None:
    """Write a record as `write_model` does, with a checksum; see `scalebench.seal`."""
    write_atomic(path, sealed(model.model_dump_json(indent=indent)))


def read_sealed(path: Path, kind: type[Model], required: bool) -> Model:
    """Read a record whose checksum has to be right.

    Args:
        path: The file.
        kind: What it holds.
        required: It has to have one; files of older versions have none.

    Raises:
        UsageError: It is not what was written.
    """
    try:
        if not check_seal(path.read_text(encoding="utf-8")) and required:
            raise Broken("its checksum is missing")
    except Broken as error:
        raise UsageError(f"{path} is damaged: {error}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    return read_model(path, kind)


def read_model(path: Path, kind: type[Model], strict: bool = False) -> Model:
    """Read a record and check it against its schema.

    Args:
        path: The file.
        kind: Its schema.
        strict: Take no value for another type: no ``true`` or ``"5"`` for a number.

    Raises:
        UsageError: The file is not what it should be; the text names the first field at fault.
    """
    try:
        return kind.model_validate_json(read_text(path), strict=strict or None)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UsageError(f"{path} is damaged: {where}: {first['msg']}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error


def read_text(path: Path, largest: int = LARGEST_BYTES) -> str:
    """Return the text of a record; a file that cannot be one is not even opened.

    Raises:
        UsageError: It is no regular file, or larger than ``largest`` bytes.
        OSError: It cannot be read.
        UnicodeDecodeError: It is no text.
    """
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise UsageError(f"{path} is no regular file. Give the file that scalebench wrote.")
    if about.st_size > largest:
        raise UsageError(
            f"{path} is too large: {bytes_(about.st_size)}, where at most {bytes_(largest)} are "
            "read. Give the file that scalebench wrote."
        )
    return path.read_text(encoding="utf-8")


def create_run_folder(root: Path, resume: bool = False) -> RunPaths:
    """Make the folder of a new run and prove that it can be written, before any training.

    Raises:
        UsageError: ``root`` is a file, or holds something already.
        EnvironmentUnfit: It cannot be written, or the disk is full.
    """
    try:
        if root.is_file():
            raise UsageError(f"--out {root} is a file. Give the name of a folder for the run.")
        if root.is_dir() and any(root.iterdir()) and not resume:
            raise UsageError(
                f"--out {root} holds files already. Give a new folder, or --resume {root} to go "
                "on with the run in it."
            )
        root.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        _prove_writable(root)
    except OSError as error:
        raise EnvironmentUnfit(
            f"The run cannot be written to {root}: {error.strerror}. Give another --out."
        ) from error
    return RunPaths(root)


def claim_folder(wanted: Path) -> Path:
    """Claim a folder that nobody else has; two runs may begin in the same second."""
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                return folder
    except OSError as error:
        raise EnvironmentUnfit(
            f"The run cannot be written below {wanted.parent}: {error.strerror}. "
            "Give a folder with --out."
        ) from error
    raise EnvironmentUnfit(f"Every name like {wanted} is taken. Give a folder with --out.")


def point_latest_at(root: Path) -> None:
    """Make ``reports/latest`` point at a run; another run may do the same at the same time."""
    link = latest_link()
    with suppress(OSError):
        fresh = link.with_name(f".latest-{os.getpid()}")
        fresh.symlink_to(root.name)
        os.replace(fresh, link)


def _prove_writable(folder: Path) -> None:
    """Write and remove a file of the size that a small run needs; raises OSError."""
    probe = folder / ".probe"
    try:
        with probe.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, NEEDED_BYTES)
            else:
                file.write(bytes(NEEDED_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        probe.unlink(missing_ok=True)


@contextmanager
def working_on(paths: RunPaths) -> Iterator[None]:
    """Hold a run for the duration of the block; the kernel lets go when the process ends.

    Raises:
        UsageError: Another session is working on it.
    """
    with paths.lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(
                f"Another scalebench is working on {paths.root}. Wait until it has ended."
            ) from error
        yield


def is_being_worked_on(paths: RunPaths) -> bool:
    """Tell whether a session holds the run."""
    try:
        with paths.lock.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def is_run_folder(root: Path) -> bool:
    """Tell whether a folder looks like a run's."""
    return RunPaths(root).run_json.is_file()


def load_run(root: Path) -> StoredRun:
    """Read a run folder, however far the run came.

    A cell that cannot be read is set aside by name; the rest is used.

    Raises:
        UsageError: It is not a run folder, or its ``run.json`` cannot be used.
    """
    paths = RunPaths(root)
    if not root.exists():
        raise UsageError(f"There is no run folder {root}. `scalebench list` names the runs here.")
    if not paths.run_json.is_file():
        raise UsageError(
            f"{root} is not a run folder: no run.json in it. `scalebench list` names the runs here."
        )
    _check_format(paths.run_json, RUN_FORMAT)
    info = read_sealed(paths.run_json, RunInfo, required=False)
    if info.sealed:
        read_sealed(paths.run_json, RunInfo, required=True)
    if info.status == "running" and not is_being_worked_on(paths):
        info = info.model_copy(update={"status": "interrupted"})  # killed: it could not say so
    run = StoredRun(paths, info, {})
    planned = {cell.id: cell for cell in run.info.plan}
    for path in sorted(paths.cells.glob("*.json")):
        try:
            _check_format(path, CELL_FORMAT)
            result = read_sealed(path, CellResult, run.info.sealed)
            if result.cell.id != path.stem or path.stem not in planned:
                raise UsageError(f"{path} is not a cell of this run.")
            wrong = contradiction(result, planned[path.stem])
            if wrong:
                raise UsageError(f"{path} contradicts itself: {wrong}.")
        except UsageError as error:
            run.damaged[path.name] = str(error)
        else:
            run.results[path.stem] = result
    _read_link(run)
    return run


def _read_link(run: StoredRun) -> None:
    if run.paths.link_profile.is_file():
        from scalebench.costmodel.link_profile import LinkProfile  # half a second that few need

        try:
            run.link = read_sealed(run.paths.link_profile, LinkProfile, run.info.sealed)
        except UsageError as error:
            run.damaged[run.paths.link_profile.name] = run.link_unavailable = str(error)


_FORMAT_FIRST = re.compile(r'\s*\{\s*"format"\s*:\s*"([^"\\]*)"')
"""How every stored record begins: a large one is told without being read twice."""


def _check_format(path: Path, expected: str) -> None:
    if _first_format(path) == expected:
        return
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {error}.") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != expected:
        raise UsageError(f"{path} has format {found!r}; this version reads {expected!r}.")


def _first_format(path: Path) -> str | None:
    """Return the format that a file's first bytes name; None: they do not, or it is unreadable."""
    try:
        with path.open("rb") as file:
            found = _FORMAT_FIRST.match(file.read(200).decode("utf-8", "replace"))
    except OSError:
        return None
    return found[1] if found else None


def find_runs(folder: Path) -> Sequence[Path]:
    """Return the run folders in ``folder``, oldest first by name."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if is_run_folder(p) and not p.is_symlink())
