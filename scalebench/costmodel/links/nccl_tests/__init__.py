"""Reads what nccl-tests printed: a cluster's existing logs as points that a link can be fitted to.

`read_log` takes the text that any 2.x version prints (alone, or inside the log of a job) and the
JSON file that newer versions write for ``-J FILE``.

Checked against nccl-tests' own source: ``src/common.cu``, ``src/util.cu`` (JSON file versions 2
and 3) and the test of each operation, in versions from 2019 (a header for each test, ``error``
column), 2022 (one header with ``redop``, ``root`` and ``#wrong``) and 2026 (``timestamp``,
``#bitdiff`` and per-iteration columns); and against published logs, which are the golden files of
the tests. Facts that a reader has to know:

- Only newer versions print the name of the test. Else it is known from the command line in the
  log, from the columns where only one operation fits, or from the caller.
- ``cputime`` is how long the call took, not the operation, while both bandwidths are still
  computed from the operation's time: no time, and no check of it.
- All-gather and reduce-scatter in early versions (logs up to 2020), and hypercube to this day,
  print the busbw in the algbw column.
- The ``error`` column of older versions is the largest deviation, no number of wrong elements.
- Without MPI support ``mpirun`` starts N jobs of one rank each, all of which print.
- A test split into groups (``NCCL_TESTS_SPLIT``) prints the results of rank 0's group.
- JSON lists one device for each process, text lists all.
"""

from collections.abc import Iterator
from pathlib import Path

from scalebench.costmodel.links.nccl_tests.run import OPERATIONS
from scalebench.costmodel.links.nccl_tests.table import Log, lost, read_json, table_of
from scalebench.costmodel.links.nccl_tests.text import read_text
from scalebench.errors import UsageError, unknown_name

__all__ = ["Log", "read_log"]

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
        UsageError: The file is missing, empty, binary, cut off, or has no table that can be read;
            the columns of many rows disagree by more than rounding (the operation or the number of
            ranks is wrong); or a table does not tell its operation.
    """
    path = Path(path)
    if op is not None and op not in OPERATIONS:
        raise unknown_name("operation", op, OPERATIONS)
    if world_size is not None and world_size < 1:
        raise UsageError(f"The number of ranks is {world_size}; it must be at least 1.")
    try:
        runs = [read_json(path)] if _is_json(path) else list(read_text(path, _lines(path)))
        tables = tuple(table_of(run, world_size, op) for run in runs if run.points)
        return Log(
            path, tables, tuple(said for run in runs if not run.points for said in lost(run))
        )
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
