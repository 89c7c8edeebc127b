"""The columns of a table, as its header names them, and the rows below it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from scalebench.errors import UsageError
from scalebench.nccl_tests.operations import DTYPES
from scalebench.nccl_tests.rows import Measured, Printed, Row

_HEADER = re.compile(r"\bsize +count +type +(\S.*\balgbw\b.*)")
_ROW = re.compile(r"(?:^|[\s:>\]|])(\d{1,18})\s+(\d{1,18})\s+([a-z][a-z0-9_]*)(?:\s+(.*))?$")
_NO_OUT_OF_PLACE = re.compile(r"\s{24}")
"""Blanks stand where the out-of-place results are left out; elsewhere columns are narrower."""
_WORD = re.compile(r"[a-z]+")
_WHOLE = re.compile(r"-?\d{1,9}")
_TIMES = ("time", "cputime")
_FEWEST_FIELDS = 3
_MOST_SHOWN = 120


@dataclass(frozen=True)
class Layout:
    """Which columns a table has behind size, count and type.

    Attributes:
        has_redop: A column for the reduction; it is blank for tests that reduce nothing.
        has_root: A column for the root; -1 where there is none.
        groups: The columns of the out-of-place results, then of the in-place ones. Each begins
            with ``time`` or ``cputime``; ``algbw`` and ``busbw`` follow.
        num_stamps: Words of the time stamp at the end.
    """

    has_redop: bool
    has_root: bool
    groups: tuple[tuple[str, ...], ...]
    num_stamps: int

    @classmethod
    def of_header(cls, line: str) -> Self | None:
        """Return the layout that a line announces; None: it is no header."""
        found = _HEADER.search(line.rstrip())
        if found is None:
            return None
        names = found[1].split()
        starts = [i for i, name in enumerate(names) if name in _TIMES]
        if not 1 <= len(starts) <= 2:
            return None
        has_stamp = names[-1] == "timestamp"
        ends = [*starts[1:], len(names) - has_stamp]
        groups = tuple(tuple(names[start:end]) for start, end in zip(starts, ends, strict=True))
        if any(group[1:3] != ("algbw", "busbw") for group in groups):
            return None
        before = names[: starts[0]]
        return cls("redop" in before, "root" in before, groups, 2 * has_stamp)

    def row(self, line: str, path: Path, place: str) -> Row | None:
        """Return the row that a line of the table holds; None: it is no row.

        Args:
            line: The line, with any prefix.
            path: For errors.
            place: For errors, and to find the row again.

        Raises:
            UsageError: The row is cut off, mixed with other output, or of an unknown type.
        """
        found = _ROW.search(line.rstrip())
        if found is None:
            return None
        size, count, type_name, rest = found[1], found[2], found[3], found[4] or ""
        fields = rest.split()
        redop = fields.pop(0) if self.has_redop and _begins_with(_WORD, fields) else None
        root = fields.pop(0) if self.has_root and _begins_with(_WHOLE, fields) else None
        groups = self._groups_in(rest)
        width = sum(map(len, groups)) + self.num_stamps
        is_whole = len(fields) == width and (root is not None) == self.has_root
        if type_name not in DTYPES:
            if is_whole and all(map(_is_value, fields[:3])):
                raise UsageError(
                    f"{path}, {place}: the type {type_name!r} is not known. Valid: "
                    f"{', '.join(DTYPES)}."
                )
            return None
        measured = self._results(groups, fields) if is_whole else None
        if measured is None:
            shown = " ".join(fields)[:_MOST_SHOWN]
            raise UsageError(
                f"{path}, {place}: the row is cut off or mixed with other output: expected the "
                f"numbers of {width} columns behind redop and root, found {shown!r}."
            )
        dtype, itemsize = DTYPES[type_name]
        return Row(
            place=place,
            size_bytes=int(size),
            count=int(count),
            dtype=dtype,
            itemsize=itemsize,
            redop=None if redop in (None, "none") else redop,
            root=None if root is None or int(root) < 0 else int(root),
            measured=measured,
        )

    def _groups_in(self, rest: str) -> tuple[tuple[str, ...], ...]:
        """Return the groups that a row has; the out-of-place one can be left blank."""
        return self.groups[1:] if _NO_OUT_OF_PLACE.search(rest) else self.groups

    def _results(
        self, groups: tuple[tuple[str, ...], ...], fields: list[str]
    ) -> tuple[Measured, ...] | None:
        """Return the results in the fields behind the root; None: one is no number."""
        first = len(self.groups) - len(groups)
        results = []
        start = 0
        for i, group in enumerate(groups, first):
            columns = dict(zip(group, fields[start : start + len(group)], strict=True))
            start += len(group)
            result = _measured(columns, in_place=i == 1)
            if result is None:
                return None
            results.append(result)
        return tuple(results) or None


def looks_like_row(line: str) -> bool:
    """Return whether a line could be a row of a table whose header is not known."""
    found = _ROW.search(line.rstrip())
    if found is None or found[3] not in DTYPES:
        return False
    fields = (found[4] or "").split()
    return len(fields) >= _FEWEST_FIELDS and all(map(_is_value, fields[-_FEWEST_FIELDS:]))


def _begins_with(pattern: re.Pattern[str], fields: list[str]) -> bool:
    return bool(fields) and pattern.fullmatch(fields[0]) is not None


def _is_value(text: str) -> bool:
    return text == "N/A" or Printed.parse(text) is not None


def _measured(columns: dict[str, str], in_place: bool) -> Measured | None:
    time, cpu_time, algbw, busbw, wrong, deviation = (
        Printed.parse(columns.get(name, ""))
        for name in ("time", "cputime", "algbw", "busbw", "#wrong", "error")
    )
    checked = columns.get("#wrong") or columns.get("error") or "N/A"
    if algbw is None or busbw is None or (time is None and cpu_time is None):
        return None
    if not _is_value(checked):
        return None
    return Measured(
        in_place=in_place,
        time_us=time,
        cpu_time_us=cpu_time,
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=busbw,
        num_wrong=None if wrong is None else round(wrong.value),
        largest_deviation=None if deviation is None else deviation.value,
    )
