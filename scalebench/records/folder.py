"""Run folders, claimed by the process that works on one; temporary folders, locked while in use.

What killed processes have left goes with the next temporary one. Who looks for abandoned ones may
be next to strangers: others can write into the same directory, and several machines may share it.
So the name of a folder depends on the machine, it is the user's, it carries a mark, and it is
emptied through the descriptor that holds its lock, never by a path that somebody could point
elsewhere.
"""

import fcntl
import hashlib
import os
import shutil
import socket
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records.files import open_regular
from scalebench.records.paths import RunPaths, latest_link

PRIVATE_FOLDER = 0o700

NEEDED_BYTES = 32 * 1024 * 1024

FILES = (".json", ".csv", ".md", ".html", ".gz", ".log")
"""How the names of files in a run folder end."""


@contextmanager
def working_on(root: Path, new: bool = False) -> Iterator[RunPaths]:
    """Hold a run for the duration of the block; the kernel lets go when the process ends.

    The folder is looked at and written to only when it is held: two runs may be told to use one.

    Args:
        root: The run's folder.
        new: Make it, for a new run.

    Raises:
        UsageError: Another session is working on it; ``new``: it is a file, or holds something
            already.
        EnvironmentUnfit: It cannot be written, or the disk is full.
    """
    paths = RunPaths(root)
    try:
        if new:
            _require_empty(paths)
            root.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        descriptor = open_regular(paths.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        raise _cannot_write(root, error, new) from error
    with os.fdopen(descriptor):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if new:
                _require_empty(paths)
            _prove_writable(root)
        except BlockingIOError as error:
            raise UsageError(
                f"Another scalebench is working on {root}. Wait until it has ended."
            ) from error
        except OSError as error:
            raise _cannot_write(root, error, new) from error
        yield paths


def _cannot_write(root: Path, error: OSError, new: bool) -> EnvironmentUnfit:
    what_to_do = "Give another --out." if new else "Make that possible, and resume it again."
    return EnvironmentUnfit(f"The run cannot be written to {root}: {error.strerror}. {what_to_do}")


def _require_empty(paths: RunPaths) -> None:
    """Raise UsageError where there is something else than a run that was ended at its begin."""
    root = paths.root
    if root.is_file():
        raise UsageError(f"--out {root} is a file. Give the name of a folder for the run.")
    if root.is_dir() and any(path != paths.lock for path in root.iterdir()):
        raise UsageError(
            f"--out {root} already contains files. Give a new folder, or --resume {root} to "
            "continue the run in it."
        )


def require_plain(folder: Path) -> None:
    """Check that a folder has nothing in it that leads out of it, or that would be waited for.

    What is written or removed in a folder is then nowhere else. Links are not followed.

    Raises:
        UsageError: It has something else than folders and regular files, or a folder where a file
            belongs; the first is named.
    """
    for where, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(where, name)
            mode = path.lstat().st_mode
            is_file = stat.S_ISREG(mode)
            if not is_file and (not stat.S_ISDIR(mode) or path.suffix in FILES):
                raise UsageError(
                    f"{path} is not a {'file' if path.suffix in FILES else 'file or folder'} that "
                    "scalebench made. Nothing was changed. Move it away, or start a new run."
                )


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
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, NEEDED_BYTES)
        else:
            file.write(bytes(NEEDED_BYTES))
        file.flush()
        os.fsync(file.fileno())


def is_being_worked_on(paths: RunPaths) -> bool:
    """Tell whether a session holds the run."""
    try:
        with os.fdopen(open_regular(paths.lock)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, UsageError):  # what is no file holds nothing
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


PREFIX = f"scalebench-scratch-{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}-"
MARK = ".scalebench-scratch"
"""Nothing but an empty folder is removed without this file in it."""

CLEANING_LIMIT_S = 1.0
_RUN = RunPaths(Path()).run_json.name
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Scratch:
    """A private folder, locked for as long as this process, or one that it forks, lives.

    It is removed by `close`, at the end of a ``with`` block (which gets the folder), with this
    object, or at the end of this process.

    Attributes:
        folder: Where it is.

    Raises:
        EnvironmentUnfit: There is no room for it.
    """

    def __init__(self) -> None:
        remove_abandoned()
        self.folder, descriptor = _make_locked()
        self.close = weakref.finalize(self, _close, self.folder, descriptor, os.getpid())

    def __enter__(self) -> Path:
        return self.folder

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_abandoned() -> None:
    """Remove the scratch folders of this user and machine that no process holds; never fails."""
    deadline = time.monotonic() + CLEANING_LIMIT_S
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                with suppress(OSError):
                    _remove_abandoned(Path(entry.path))
            if time.monotonic() > deadline:
                return


def _remove_abandoned(folder: Path) -> None:
    descriptor = os.open(folder, _DIRECTORY)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        names = os.listdir(descriptor)
        if not names or (MARK in names and _RUN not in names):
            _remove(folder, descriptor)
    finally:
        os.close(descriptor)


def _make_locked() -> tuple[Path, int]:
    try:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            with suppress(FileNotFoundError):  # another process took it for abandoned
                descriptor = os.open(folder, _DIRECTORY)
                if _lock(descriptor) and folder.exists():
                    (folder / MARK).touch()
                    return folder, descriptor
                os.close(descriptor)
    except OSError as error:
        raise EnvironmentUnfit(
            f"No temporary folder can be made: {error.strerror}. Free some space, or set TMPDIR "
            "to a directory that you can write to."
        ) from error


def _lock(descriptor: int) -> bool:
    """Return false if another process is removing the folder."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: nobody can lock the folder in order to remove it
    return True


def _close(folder: Path, descriptor: int, maker: int) -> None:
    if os.getpid() == maker:  # a fork has a copy of the object, but the folder is not its own
        _remove(folder, descriptor)
        os.close(descriptor)


def _remove(folder: Path, descriptor: int) -> None:
    for name in sorted(os.listdir(descriptor), key=MARK.__eq__):  # the mark last: one may be killed
        with suppress(OSError):
            os.unlink(name, dir_fd=descriptor)
        shutil.rmtree(name, ignore_errors=True, dir_fd=descriptor)
    with suppress(OSError):
        folder.rmdir()
