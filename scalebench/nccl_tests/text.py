"""The text that nccl-tests prints, line by line, with whatever else stands in the log."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scalebench.errors import UsageError
from scalebench.nccl_tests.assemble import Footer, Told, table_of
from scalebench.nccl_tests.columns import Layout, looks_like_row
from scalebench.nccl_tests.job import Job, Rank, version_of_code
from scalebench.nccl_tests.model import Table
from scalebench.nccl_tests.operations import ops_named_in
from scalebench.nccl_tests.rows import Row

MAX_ROWS = 200_000
"""Of one file; a sweep has about thirty."""

_WORDS = ("algbw", "Rank ", "nThread", "version", "Collective", "Out of", "Avg bus", "_perf")
_LIKE_ROW = re.compile(r"\d\s+\d+\s+[a-z]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TESTS_VERSION = re.compile(r"\bnccl-tests version (\S+)(?:.*\bnccl-library=(\d{1,9}))?")
_STARTING = re.compile(r"\bCollective test starting: *(\S+)")
_CONCLUDED = re.compile(r"\bCollective test concluded:")
_PARAMETERS = re.compile(r"\bnThread:? *(\d{1,6}) +nGpus:? *(\d{1,6})\b")
_RANK = re.compile(
    r"(?:^|[\s#>:])Rank +(\d{1,9})(?: +Group +(\d{1,9}))? +Pid +\d+ +on +(\S+) "
    r"+device +\d+ +\[[^]]*\] +(\S.*)"
)
_NCCL_VERSION = re.compile(r"\bNCCL version (\d+\.\d+\.\d+)")
_OUT_OF_BOUNDS = re.compile(r"\bOut of bounds values *: *(\d{1,18})")
_AVERAGE = re.compile(r"\bAvg bus bandwidth *: *(\S+)")
_BEFORE_2_0 = re.compile(r"\bbytes +N +type\b.*\balgbw\b")


@dataclass
class _Open:
    """The table that is being read."""

    job: Job
    layout: Layout
    place: str
    rows: list[Row]
    num_out_of_bounds: int | None = None


class TextReader:
    """Takes the lines of a log one after the other and keeps nothing but tables."""

    def __init__(self, path: Path, told: Told) -> None:
        self._path = path
        self._told = told
        self._job = Job()
        self._named: set[str] = set()
        self._open: _Open | None = None
        self._num_rows = 0
        self._empty_at: str | None = None

    def tables(self, lines: Iterable[tuple[int, str]]) -> Iterator[Table]:
        """Yield each table as soon as it ends.

        Args:
            lines: Number, from 1, and text of every line.

        Raises:
            UsageError: A row is damaged, its columns disagree, or there is no table.
        """
        found = False
        for number, line in lines:
            if not _may_matter(line):
                continue
            for table in self._take(f"line {number}", _COLOUR.sub("", line)):
                found = True
                yield table
        for table in self._close(Footer()):
            found = True
            yield table
        if not found:
            raise self._nothing_found()

    def _nothing_found(self) -> UsageError:
        if self._empty_at is not None:
            return UsageError(
                f"{self._path}, {self._empty_at}: the header of a table with no row below it; the "
                "run failed before its first measurement. Give the log of a run that ended."
            )
        return UsageError(
            f"{self._path} has no table of nccl-tests: expected a line with the columns size, "
            "count, type, time, algbw and busbw, or the JSON file that -J writes."
        )

    def _take(self, place: str, line: str) -> Iterator[Table]:
        layout = Layout.of_header(line)
        if layout is not None:
            is_another_run = self._job.has_table and not self._is_waiting_for_rows
            yield from self._close(Footer())
            job = self._begun(is_another_run)
            job.has_table = True
            self._open = _Open(job, layout, place, [])
        elif _BEFORE_2_0.search(line):
            raise UsageError(
                f"{self._path}, {place}: a table of nccl-tests before 2.0 (columns bytes, N, "
                "res), which is not read. Measure again with a newer nccl-tests."
            )
        elif not self._take_row(place, line):
            yield from self._take_footer(line)
            self._take_about(line)

    @property
    def _is_waiting_for_rows(self) -> bool:
        return self._open is not None and not self._open.rows

    def _take_row(self, place: str, line: str) -> bool:
        if self._open is None:
            if looks_like_row(line):
                raise UsageError(
                    f"{self._path}, {place}: a row without the header of its table above it; "
                    "expected a line with the columns size, count, type, time, algbw and busbw."
                )
            return False
        row = self._open.layout.row(line, self._path, place)
        if row is None:
            return False
        self._num_rows += 1
        if self._num_rows > MAX_ROWS:
            raise UsageError(
                f"{self._path}, {place}: more than {MAX_ROWS} rows. Split the log, one file for "
                "each sweep."
            )
        self._open.rows.append(row)
        return True

    def _take_footer(self, line: str) -> Iterator[Table]:
        if self._open is None:
            return
        if found := _OUT_OF_BOUNDS.search(line):
            self._open.num_out_of_bounds = int(found[1])
        elif found := _AVERAGE.search(line):
            yield from self._close(
                Footer(_finite(found[1]), self._open.num_out_of_bounds, is_there=True)
            )

    def _close(self, footer: Footer) -> Iterator[Table]:
        closed, self._open = self._open, None
        if closed is None:
            return
        if closed.rows:
            yield table_of(self._path, closed.job, closed.rows, footer, self._told)
        else:
            self._empty_at = closed.place

    def _take_about(self, line: str) -> None:
        """Note what a line tells of the job."""
        if found := _RANK.search(line):
            rank, group, host, device = found.groups()
            self._begun(self._job.has_table).ranks.append(
                Rank(int(rank), int(group or 0), host, device.strip())
            )
        elif found := _PARAMETERS.search(line):
            job = self._begun(self._job.has_table or bool(self._job.ranks))
            job.ranks_per_process = int(found[1]) * int(found[2])
        elif found := _TESTS_VERSION.search(line):
            job = self._begun(self._job.has_header)
            job.nccl_tests_version = found[1]
            if found[2]:
                job.nccl_version = version_of_code(int(found[2]))
        elif found := _STARTING.search(line):
            self._start(found[1])
        elif found := _NCCL_VERSION.search(line):
            job = self._begun(self._job.has_table and self._open is None)
            job.nccl_version = job.nccl_version or found[1]
        elif not _CONCLUDED.search(line):
            self._named |= ops_named_in(line)

    def _start(self, program: str) -> None:
        job = self._begun(self._job.has_header)
        ops = ops_named_in(program)
        if len(ops) == 1:
            job.op = next(iter(ops))
        elif program.endswith("_perf") and self._told.op is None:
            raise UsageError(
                f"{self._path}: the test {program!r} is not read. Say which operation it is if it "
                "is one of those of nccl-tests under another name."
            )

    def _begun(self, is_new: bool) -> Job:
        """Return the job that a line of a header belongs to; ``is_new``: it begins one."""
        if is_new:
            self._job = Job()
        self._job.commanded |= self._named
        self._named = set()
        return self._job


def _may_matter(line: str) -> bool:
    """Return False for nearly all lines that are not nccl-tests' own: most of a long log."""
    return any(word in line for word in _WORDS) or _LIKE_ROW.search(line) is not None


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None
