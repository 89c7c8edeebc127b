"""The text that nccl-tests prints, line by line, with whatever else stands in the log.

A table is read by one grammar: the header line names the columns, each name has a pattern, and
the patterns in the header's order are the pattern of a row. Whatever parts the columns of a copied
table (blanks of any kind, pipes, commas) is read as blanks.
"""

import re
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path

from scalebench.costmodel.links.nccl_tests.run import (
    DTYPES,
    NUMBER,
    Printed,
    Rank,
    Run,
    ops_named_in,
    points_of,
)
from scalebench.errors import UsageError

MAX_ROWS = 200_000
"""Of one file; a sweep has about thirty."""

_HEADER = re.compile(
    r"\bsize +count +type +(?P<own>(?:redop +)?(?:root +)?)"
    r"(?P<modes>(?:(?:cpu)?time +algbw +busbw\b(?: +(?!(?:cpu)?time\b)\S+)* *){1,2})$"
)
_UNITS = re.compile(r"\((?:b|bytes|elements|us|µs|gb/s|%)\)")
_LIKE_HEADER = re.compile(r"\bsize\b.*algbw.*busbw", re.IGNORECASE)
_BEFORE_2_0 = re.compile(r"\bbytes +N +type\b.*\balgbw\b")
_ROW_START = r"(?:^|[\s:>\]|])(?P<size>\d{1,18})\s+(?P<count>\d{1,18})\s+(?P<type>[a-z][a-z0-9_]*)"
_LIKE_ROW = re.compile(_ROW_START + r"(?P<rest>\s.*|$)")
_VALUE = rf"{NUMBER}|N/A"
_IS_VALUE = re.compile(_VALUE).fullmatch
_OWN_COLUMNS = {
    "redop": r"(?:\s+(?P<redop>[a-z]+))?",  # blank for tests that reduce nothing
    "root": r"\s+(?P<root>-?\d{1,9})",
}
_NO_OUT_OF_PLACE = r"\s{24}"
"""Blanks stand where the out-of-place results are left out; elsewhere columns are narrower."""

_FACT = re.compile(
    "|".join(
        (
            r"(?:^|[\s#>:])Rank +(?P<rank>\d{1,9})(?: +Group +(?P<group>\d{1,9}))? +Pid +\d+ "
            r"+on +\S+ +device +\d+ +\[[^]]*\] +\S",
            r"\bnThread:? *(?P<threads>\d{1,6}) +nGpus:? *(?P<gpus>\d{1,6})\b",
            r"\b(?P<version>nccl-tests version) \S",
            r"\bCollective test starting: *(?P<program>\S+)",
            r"\bCollective test concluded:",
            r"\bOut of bounds values *: *(?P<wrong>\d{1,18})",
            r"\bAvg bus bandwidth *: *(?P<average>\S+)",
        )
    )
)
"""What a line outside a table tells."""

_TYPE = re.compile(rf"\b(?:{'|'.join(DTYPES)})\b")
_PARTS = r'(?:[\s|│;,"]|&nbsp;)+'
_MAY_MATTER = re.compile(
    r"(?i:algbw)|-place|Rank\W|nThread|nccl-tests|Collective|Out\W|Avg\W|_perf"
    rf"|\d{_PARTS}\d+{_PARTS}[a-z]|{_TYPE.pattern}"
)
"""Fails on nearly all lines that are not nccl-tests' own: most of a long log."""

_DECIMALS = re.compile(r"\d\.\d")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BLANK = re.compile(r'[\s|│;"]|&nbsp;')
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}\b)")
_AS_TYPED = str.maketrans("−–", "--", "\ufeff\u200b")
_MOST_SHOWN = 120
_EXPECTED = "the columns size, count, type, time, algbw and busbw"


def read_text(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[Run]:
    """Yield each run that has rows as soon as it ends, from lines and their numbers.

    Runs whose rows cannot be read have no points, and say so in what they leave out.

    Raises:
        UsageError: There is no row that can be read.
    """
    log = _Log(path)
    for number, line in lines:
        if _MAY_MATTER.search(line):
            plain = _BLANK.sub(" ", _COLOUR.sub("", line).translate(_AS_TYPED))
            log.read(f"line {number}", plain.rstrip())
            while log.ended:
                yield log.ended.pop()
    log.close_table()
    yield from log.ended
    if log.headless.left_out and log.num_rows:
        yield log.headless
    if log.num_rows == 0:
        raise UsageError(log.why_nothing())


class _Stage(IntEnum):
    """How far a run has printed; a line of an earlier stage belongs to the next run."""

    TEST = 0
    PARAMETERS = 1
    RANKS = 2
    TABLE = 3


class _Log:
    """Takes the lines of a log one after the other.

    A table goes on until its footer or the next header, whatever another run prints in between.
    """

    def __init__(self, path: Path) -> None:
        self.ended: list[Run] = []
        self.header_place: str | None = None
        self.num_rows = 0
        self._path = path
        self._run = Run(path)
        self.headless = Run(path)
        self._stage = _Stage.TEST
        self._table: Run | None = None
        self._row = _LIKE_ROW
        self._has_commas = self._is_in_place = False
        self._commanded: set[str] = set()
        self._first_left_out: str | None = None

    def close_table(self) -> None:
        if self._table and (self._table.points or self._table.left_out):
            self.ended.append(self._table)
        self._table = None

    def why_nothing(self) -> str:
        """Say why a log has no row that can be read."""
        if self._first_left_out:
            return f"{self._path}, {self._first_left_out}."
        if self.header_place:
            return (
                f"{self._path}, {self.header_place}: the header of a table with no row below it "
                "that begins with size, count and type. Give the log of a run that got as far as "
                "its first measurement, as nccl-tests printed it."
            )
        return (
            f"{self._path} has no table of nccl-tests: expected a line with {_EXPECTED}, or the "
            "JSON file that -J writes. Logs of other programs are not read."
        )

    def read(self, place: str, line: str) -> None:
        if "algbw" in line.lower() and self._take_header(place, line):
            return
        line = line.replace(",", " ") if self._has_commas else _GROUPED.sub("", line)
        if "-place" in line:
            self._is_in_place = "out-of-place" not in line
        elif (start := _LIKE_ROW.search(line)) and self._take_row(start, place):
            pass
        elif self._table and _TYPE.search(line) and len(_DECIMALS.findall(line)) > 2:
            found = repr(" ".join(line.split())[:_MOST_SHOWN])
            self._leave_out(self._table, f"{place}: a row that is not read: found {found}")
        else:
            self._take_fact(line)

    def _take_header(self, place: str, line: str) -> bool:
        """Return whether a line is the header of a table, of one that is not read too."""
        row = _row_below(line.replace(",", " "), self._is_in_place)
        if row:
            is_repeated = self._table is not None and not self._table.points
            self.close_table()
            self._table = self._run_at(_Stage.TABLE, is_next=not is_repeated)
            self._row, self.header_place = row, place
            self._has_commas = _row_below(line) is None
        elif _LIKE_HEADER.search(line):
            self.close_table()
            self._leave_out(
                self.headless,
                f"{place}: a header that is not read: expected {_EXPECTED}, in "
                f"this order, found {' '.join(line.split())[:_MOST_SHOWN]!r}",
            )
        elif _BEFORE_2_0.search(line):
            raise UsageError(
                f"{self._path}, {place}: a table of nccl-tests before 2.0 (columns bytes, N, "
                "res), which is not read. Measure again with a newer nccl-tests."
            )
        return row is not None or _LIKE_HEADER.search(line) is not None

    def _run_at(self, stage: _Stage, is_next: bool = False) -> Run:
        """Return the run that a line belongs to; ``is_next``: a line that each run has once."""
        if self._stage > stage or (is_next and self._stage == stage):
            self._run = Run(self._path)
        self._stage = stage
        self._run.commanded |= self._commanded
        self._commanded = set()
        return self._run

    def _take_row(self, start: re.Match[str], place: str) -> bool:
        """Return whether a line that starts like a row is one."""
        fields = start["rest"].split()
        is_known = start["type"] in DTYPES
        if self._table is None:
            if is_known and len(fields) > 2 and all(map(_IS_VALUE, fields[-3:])):
                self._leave_out(
                    self.headless,
                    f"{place}: a row without the header of its table above it; "
                    f"expected a line with {_EXPECTED}",
                )
            return False
        found = self._row.match(start.string, start.start())
        if not is_known and not found:
            return False
        if not is_known:
            valid = f"the type {start['type']!r} is not known; valid: {', '.join(DTYPES)}"
            self._leave_out(self._table, f"{place}: {valid}")
            return True
        if not found:
            self._leave_out(
                self._table,
                f"{place}: the row is cut off or mixed with other output: expected "
                f"the columns of the header at {self.header_place}, found "
                f"{' '.join(fields)[:_MOST_SHOWN]!r} behind the type",
            )
            return True
        self.num_rows += 1
        if self.num_rows > MAX_ROWS:
            raise UsageError(
                f"{self._path}, {place}: more than {MAX_ROWS} rows. Split the log, one file for "
                "each sweep."
            )
        self._table.points += points_of(found.groupdict(), place)
        return True

    def _leave_out(self, run: Run, what: str) -> None:
        run.left_out.append("" if run.left_out else what)  # a log may have millions of them
        self._first_left_out = self._first_left_out or what

    def _take_fact(self, line: str) -> None:
        fact = _FACT.search(line)
        if fact is None:
            self._commanded |= ops_named_in(line)
        elif fact["rank"]:
            rank = Rank(int(fact["rank"]), int(fact["group"] or 0))
            self._run_at(_Stage.RANKS).ranks.append(rank)
        elif fact["threads"]:
            run = self._run_at(_Stage.PARAMETERS)
            run.ranks_per_process = int(fact["threads"]) * int(fact["gpus"])
        elif fact["version"]:
            self._run_at(_Stage.TEST)
        elif fact["program"]:
            self._run_at(_Stage.TEST).program = fact["program"]
        elif self._table:
            self._take_footer(self._table, fact)

    def _take_footer(self, table: Run, fact: re.Match[str]) -> None:
        if fact["wrong"]:
            table.num_out_of_bounds = int(fact["wrong"])
        elif fact["average"]:
            average = Printed.parse(fact["average"])
            table.average_busbw_gb_per_s = average and average.value
            table.has_footer = True
            self.close_table()


def _row_below(line: str, is_in_place: bool = False) -> re.Pattern[str] | None:
    """Return what a row looks like below a header; None: the line is no header.

    Args:
        line: The line.
        is_in_place: Whether the only results that it names are those in place.
    """
    header = _HEADER.search(_UNITS.sub(" ", line.lower()).rstrip())
    if header is None:
        return None
    row = _ROW_START + "".join(_OWN_COLUMNS[name] for name in header["own"].split())
    modes = [mode.split() for mode in re.split(r" (?=(?:cpu)?time\b)", header["modes"])]
    first = int(is_in_place and len(modes) == 1)
    for i, names in enumerate(modes, first):
        mode = "".join(_column(name, i, names.index(name) == at) for at, name in enumerate(names))
        row += mode if len(modes) == 1 or i == 1 else f"(?:{mode}|{_NO_OUT_OF_PLACE})"
    return re.compile(row + "$")


def _column(name: str, mode: int, is_first: bool) -> str:
    """Return what the values of a column of the results look like; ``mode``: 1 is in place."""
    if not is_first:
        return r"\s+\S+"
    if name in ("time", "cputime", "algbw", "busbw"):
        return rf"\s+(?P<{name}{mode}>{NUMBER})"
    if name.strip("#") in ("wrong", "error"):
        return rf"\s+(?P<{name.strip('#')}{mode}>(?:{_VALUE})\*?)"
    return r"\s+\S+" * (2 if name == "timestamp" else 1)  # a date and a time
