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
_TIMES = ("time", "cputime")
_FEWEST_FIELDS = 3


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

    @staticmethod
    def row(layout: "Layout | None", line: str, path: Path, place: str) -> Row | None:
        """Return the row that a line holds, whatever prefix it has; None: it is no row.

        Args:
            layout: Of the table that the line stands in; None: it stands in none.
            line: The line.
            path: For errors.
            place: For errors, and to find the row again.

        Raises:
            UsageError: The row is damaged, or there is no header above it.
        """
        found = _ROW.search(line.rstrip())
        if found is None:
            return None
        fields = (found[4] or "").split()
        known = DTYPES.get(found[3])
        if layout is None:
            if known and len(fields) >= _FEWEST_FIELDS and all(map(_is_value, fields[-3:])):
                raise UsageError(
                    f"{path}, {place}: a row without the header of its table above it; expected "
                    "a line with the columns size, count, type, time, algbw and busbw before it."
                )
            return None
        redop = (
            fields.pop(0) if layout.has_redop and fields and _WORD.fullmatch(fields[0]) else None
        )
        root = fields.pop(0) if layout.has_root and fields else None
        groups = layout.groups
        if len(groups) > 1 and _NO_OUT_OF_PLACE.search(found[4] or ""):
            groups = groups[1:]
        width = sum(map(len, groups)) + layout.num_stamps
        fits = len(fields) == width
        if known is None and fits and all(map(_is_value, fields[:_FEWEST_FIELDS])):
            raise UsageError(
                f"{path}, {place}: the type {found[3]!r} is not known. Valid: {', '.join(DTYPES)}."
            )
        if known is None:
            return None
        if not fits:
            raise UsageError(
                f"{path}, {place}: the row is cut off or mixed with other output: expected "
                f"{width} columns behind the root, found {len(fields)}."
            )
        measured = _results(groups, fields, layout.groups[0] is not groups[0])
        if measured is None or (root is not None and not re.fullmatch(r"-?\d+", root)):
            raise UsageError(f"{path}, {place}: expected numbers, found {' '.join(fields)!r}.")
        return Row(
            place=place,
            size_bytes=int(found[1]),
            count=int(found[2]),
            dtype=known[0],
            itemsize=known[1],
            redop=None if redop in (None, "none") else redop,
            root=None if root is None or int(root) < 0 else int(root),
            measured=measured,
        )


def _results(
    groups: tuple[tuple[str, ...], ...], fields: list[str], only_in_place: bool
) -> tuple[Measured, ...] | None:
    """Return the results in the fields behind the root; None: one is no number."""
    results = []
    start = 0
    for i, group in enumerate(groups):
        columns = dict(zip(group, fields[start : start + len(group)], strict=True))
        start += len(group)
        result = _measured(columns, in_place=only_in_place or i > 0)
        if result is None:
            return None
        results.append(result)
    return tuple(results)


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
