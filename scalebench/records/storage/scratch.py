"""Temporary folders: locked while in use; what killed processes have left goes with the next one.

All of scalebench's temporary folders are made here. Who looks for abandoned ones may be next to
strangers: others can write into the same directory, and several machines may share it. So the name
of a folder depends on the machine, it is the user's, it carries a mark, and it is emptied through
the descriptor that holds its lock, never by a path that somebody could point elsewhere.
"""

import fcntl
import hashlib
import os
import shutil
import socket
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path

from scalebench.errors import EnvironmentUnfit
from scalebench.records.paths import RunPaths

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
