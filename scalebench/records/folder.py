"""Run folders: made, found, claimed by the process that works on one."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records.paths import RunPaths, latest_link

if TYPE_CHECKING:
    pass


PRIVATE_FOLDER = 0o700


NEEDED_BYTES = 32 * 1024 * 1024


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
                f"--out {root} already contains files. Give a new folder, or --resume {root} to "
                "continue the run in it."
            )
        root.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        _prove_writable(root)
    except OSError as error:
        raise EnvironmentUnfit(
            f"The run cannot be written to {root}: {error.strerror}. Give another --out."
        ) from error
    return RunPaths(root)


def claim_folder(wanted: Path) -> Path:
    """Claim a folder that no other process has; two runs may begin in the same second."""
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


def find_runs(folder: Path) -> Sequence[Path]:
    """Return the run folders in ``folder``, oldest first by name."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if is_run_folder(p) and not p.is_symlink())
