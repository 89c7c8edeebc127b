"""Entering the place that was made for a rank: a CPU quota, a virtual host."""

import ctypes
import os
from pathlib import Path
from typing import Any

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000


def enter(place: dict[str, Any]) -> None:
    """Move this process, which must have one thread only, to its place; see setns(2).

    Args:
        place: ``cgroup`` (file that takes the pids of a group's processes), ``user_namespace``
            and ``network_namespace`` (files); each may be None or missing.

    Raises:
        OSError: The place is gone or may not be entered.
    """
    if place.get("cgroup"):
        Path(place["cgroup"]).write_text(str(os.getpid()))
    kinds = (("user_namespace", CLONE_NEWUSER), ("network_namespace", CLONE_NEWNET))
    # Opened before any is entered: from inside, the others may be out of sight.
    namespaces = [
        (os.open(place[name], os.O_RDONLY | os.O_CLOEXEC), kind)
        for name, kind in kinds
        if place.get(name)
    ]
    for descriptor, kind in namespaces:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, kind) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        os.close(descriptor)
