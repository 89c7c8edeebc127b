"""Opens a file of nccl-tests, whichever of its two formats it has."""

from collections.abc import Iterator
from pathlib import Path

from scalebench.errors import UsageError, unknown_name
from scalebench.nccl_tests.assemble import Told
from scalebench.nccl_tests.json_output import read_json
from scalebench.nccl_tests.model import Log
from scalebench.nccl_tests.operations import OPERATIONS
from scalebench.nccl_tests.text import TextReader

_LONGEST_LINE = 2**16
"""Characters; what stands behind them in a line is no row."""


def read_log(path: str | Path, *, world_size: int | None = None, op: str | None = None) -> Log:
    """Return the tables of a log, or of a JSON file, of nccl-tests.

    The log is read line by line: it can be larger than the memory.

    Args:
        path: The file.
        world_size: Ranks, for tables that do not tell it: where the list of devices is missing.
        op: The operation, for tables that do not tell it.

    Raises:
        UsageError: The file is missing, empty, binary, cut off, or has no table; the columns of a
            row disagree by more than rounding (the line is damaged, or the number of ranks is
            wrong); or a table does not tell its operation.
    """
    path = Path(path)
    if op is not None and op not in OPERATIONS:
        raise unknown_name("operation", op, OPERATIONS)
    if world_size is not None and world_size < 1:
        raise UsageError(f"The number of ranks is {world_size}; it has to be at least 1.")
    told = Told(world_size, op)
    try:
        if _is_json(path):
            return Log(path, (read_json(path, told),))
        return Log(path, tuple(TextReader(path, told).tables(_lines(path))))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None


def _is_json(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        start = file.read(_LONGEST_LINE)
    if not start.strip():
        raise UsageError(f"{path} is empty. Give the output of nccl-tests.")
    return start.lstrip("\ufeff \t\r\n").startswith("{")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and start of each line."""
    number, is_start = 1, True
    with path.open(encoding="utf-8", errors="replace") as file:
        while piece := file.readline(_LONGEST_LINE):
            if "\0" in piece:
                raise UsageError(
                    f"{path}, line {number}: binary data. Give the text that nccl-tests printed "
                    "(unpack it first), or its JSON file."
                )
            if is_start:
                yield number, piece
            is_start = piece.endswith("\n")
            number += is_start
