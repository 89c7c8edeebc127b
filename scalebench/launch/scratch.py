"""Scratch folders of launchers: locked while in use, and removed by the next one if abandoned."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "scalebench-"
LOCK = ".lock"


def remove_abandoned_scratch() -> None:
    """Remove what launchers that were killed have left: folders whose lock no process holds."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError), (folder / LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


class Scratch:
    """A private folder, locked for as long as this process, or one that inherits the lock, lives.

    Attributes:
        folder: Where it is.
    """

    def __init__(self) -> None:
        remove_abandoned_scratch()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.lock = (self.folder / LOCK).open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def inherit_lock(self) -> None:
        """Keep the lock held when this process becomes another program."""
        os.set_inheritable(self.lock.fileno(), True)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.lock.close()
