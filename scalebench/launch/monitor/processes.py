"""Whose a process is: of this launch or not, told from the parents in ``/proc``."""

from collections.abc import Collection
from pathlib import Path
from typing import Literal

PROC = Path("/proc")
Kinship = Literal["ours", "foreign", "unknown"]
OURS: Kinship = "ours"
FOREIGN: Kinship = "foreign"
UNKNOWN: Kinship = "unknown"


def stat_fields(pid: int, proc: Path = PROC) -> list[str]:
    """Return the fields of ``/proc/<pid>/stat`` from the third (state) on; see proc(5).

    Raises:
        OSError: There is no such process, or it is hidden.
    """
    text = (proc / str(pid) / "stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()  # the name before it may hold blanks and brackets


def kinship(pid: int, family: Collection[int]) -> Kinship:
    """Tell whether a process is one of a family, or descends from one of them.

    Returns:
        ``unknown`` when it cannot be seen from here: it has ended, or its number is of another
        PID namespace, as NVML tells it to a container.
    """
    while pid > 1:
        if pid in family:
            return OURS
        try:
            pid = int(stat_fields(pid)[1])
        except (OSError, IndexError, ValueError):
            return UNKNOWN
    return FOREIGN
