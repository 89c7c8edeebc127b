"""On what kind of file system a directory lies."""

from pathlib import Path

import psutil


def file_system_of(folder: Path) -> str | None:
    """Return the kind as the system calls it: ``ext4``, ``tmpfs``, ``nfs4``; None: not known."""
    places = folder.resolve()
    found = {
        Path(partition.mountpoint): partition.fstype
        for partition in psutil.disk_partitions(all=True)
    }
    return next((found[p] for p in (places, *places.parents) if p in found), None)
