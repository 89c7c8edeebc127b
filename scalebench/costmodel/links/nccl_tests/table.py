"""Makes a checked `Table` of a run: which operation, how many ranks, whether its columns agree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scalebench.costmodel.links.nccl_tests.operations import OPERATIONS, busbw_factor, ops_named_in
from scalebench.costmodel.links.nccl_tests.run import Point, Printed, Run
from scalebench.errors import UsageError

_SLACK = 1e-6
"""Relative; some versions computed the bandwidths in single precision."""


@dataclass(frozen=True)
class Table:
    """One run of a test.

    Attributes:
        op: As scalebench names it (``all_reduce``), or ``hypercube``: an all-gather that
            nccl-tests builds from sends and receives.
        points: In the order of the file.
        world_size: Ranks of the communicator; None: not known.
        world_size_reason: Why the world size is not known; None: it is.
        notices: What a reader of the points should know.
    """

    op: str
    points: tuple[Point, ...]
    world_size: int | None
    world_size_reason: str | None
    notices: tuple[str, ...]


@dataclass(frozen=True)
class Log:
    """Everything that one file holds; at least one table with at least one point."""

    path: Path
    tables: tuple[Table, ...]

    @property
    def notices(self) -> tuple[str, ...]:
        """The notices of all tables."""
        return tuple(notice for table in self.tables for notice in table.notices)


class Law(NamedTuple):
    """How the columns of a run agree; what ``world_size`` is not known for, ``reason`` says."""

    op: str
    world_size: int | None
    reason: str | None
    algbw_is_busbw: bool


def table_of(run: Run, world_size: int | None, op: str | None) -> Table:
    """Return the table of a run with at least one point; the rest is for runs that do not tell it.

    Raises:
        UsageError: The columns disagree, or it cannot be known which operation they are about.
    """
    law = _law_of(run, world_size, op)
    notices = tuple(_notices(run, law))
    return Table(law.op, tuple(run.points), law.world_size, law.reason, notices)


def _law_of(run: Run, told: int | None, op: str | None) -> Law:
    """Return the law of the test's name, the command line, the caller or the columns."""
    named = ops_named_in(run.program)
    if len(named) == 1:
        return _law(run, named.pop(), told)
    if run.program.endswith("_perf") and op is None:
        raise UsageError(
            f"{run.path}: the test {run.program!r} is not read. Say which operation it is if it "
            "is one of those of nccl-tests under another name."
        )
    fitting = [name for name in OPERATIONS if _has_columns_of(name, run.points)]
    if len(run.commanded) == 1 and run.commanded.issubset(fitting):
        return _law(run, next(iter(run.commanded)), told)
    if op is not None:
        return _law(run, op, told)
    return _guessed(run, [name for name in fitting if _is_checked_like(name, run.points)], told)


def _guessed(run: Run, ops: Sequence[str], told: int | None) -> Law:
    """Return the only law that the points obey, or the only one of these that was commanded."""
    laws, errors = [], []
    for op in ops:
        try:
            laws.append(_law(run, op, told))
        except UsageError as error:
            errors.append(error)
    if len(laws) == 1:
        return laws[0]
    commanded = [law for law in laws if law.op in run.commanded]
    if len(commanded) == 1:
        return commanded[0]
    if errors and not laws:
        raise errors[0]
    raise UsageError(
        f"{run.path}, {run.points[0].place}: this table can be of "
        f"{' or '.join(law.op for law in laws) or 'no known test'}: older versions of nccl-tests "
        "do not print which test ran. Say which operation it is, or keep the command line in the "
        f"log. Valid: {', '.join(OPERATIONS)}."
    )


def _has_columns_of(op: str, points: Sequence[Point]) -> bool:
    shape = OPERATIONS[op]
    return all(
        shape.reduces in (None, point.redop is not None)
        and shape.rooted == (point.root is not None)
        for point in points
    )


def _is_checked_like(op: str, points: Sequence[Point]) -> bool:
    """Return False if one of both modes was checked otherwise than the operation's test does."""
    modes = {point.in_place for point in points}
    checked = {point.in_place for point in points if point.num_wrong is not None}
    if len(modes) < 2 or False not in checked:
        return True
    return OPERATIONS[op].checks_in_place == (True in checked)


def _law(run: Run, op: str, told: int | None) -> Law:
    """Return the law that all points obey if the run is of an operation."""
    reason = run.why_world_size_is_unknown()
    world_size = told if reason else len(run.group())
    if world_size is None and OPERATIONS[op].shares:
        elements = ((point.size_bytes, point.count * point.itemsize) for point in run.points)
        world_size = next((size // one for size, one in elements if one and size >= one), None)
    problems = []
    for algbw_is_busbw in OPERATIONS[op].algbw_is_busbw:
        law = Law(op, world_size, None if world_size else reason, algbw_is_busbw)
        problem = next(filter(None, (_disagreement(point, law) for point in run.points)), None)
        if problem is None:
            return law
        problems.append(problem)
    ranks = "" if world_size is None else f", or the number of ranks is not {world_size}"
    raise UsageError(
        f"{run.path}, {problems[0]}. The line is damaged, or the test is not {op}{ranks}."
    )


def _disagreement(point: Point, law: Law) -> str | None:
    """Return what is wrong with a point, and where; None: its columns agree within rounding."""
    op, n, _, algbw_is_busbw = law
    among = "" if n is None else f" among {n} ranks"
    shares = n if OPERATIONS[op].shares else 1
    if shares is not None and point.size_bytes != point.count * point.itemsize * shares:
        each = f" × {shares} ranks" if OPERATIONS[op].shares else ""
        return (
            f"{point.place}: the size {point.size_bytes} is not the count {point.count} × "
            f"{point.itemsize} bytes{each}, as it is for {op}"
        )
    algbw, busbw = point.algbw_gb_per_s, point.busbw_gb_per_s
    rate = point.time_us and _rate(point.size_bytes, point.time_us)
    factor = busbw_factor(op, n)
    relations = (
        ("algbw", algbw, "size / time", rate, factor if algbw_is_busbw else 1.0),
        ("busbw", busbw, "algbw", algbw, 1.0 if algbw_is_busbw else factor),
        ("busbw", busbw, "size / time", rate, factor),
    )
    for column, printed, base, of, times in relations:
        if of is None or times is None:
            continue
        low, high = (of.low * times, of.high * times) if times else (0.0, 0.0)
        if max(printed.low, low) > min(printed.high, high) * (1 + _SLACK) + 1e-12:
            expected = base if times == 1 else f"{base} × {times:.4g}"
            return (
                f"{point.place}: {column} {printed.value:g} GB/s is not {expected} = "
                f"{low:.5g} to {high:.5g} GB/s, as it is for {op}{among}"
            )
    return None


def _rate(size_bytes: int, time_us: Printed) -> Printed:
    """Return size / time in GB/s; a time that was rounded to 0 has no upper bound."""
    fastest = size_bytes / time_us.low / 1e3 if time_us.low > 0 else math.inf
    slowest = size_bytes / time_us.high / 1e3
    return Printed(fastest, slowest, fastest)


def _notices(run: Run, law: Law) -> list[str]:
    points, notices = run.points, []
    table = f"the table of {law.op} at {points[0].place}"
    wrong = [point for point in points if point.num_wrong]
    if wrong:
        notices.append(
            f"{len(wrong)} of {len(points)} measurements of {table} had wrong results "
            f"(#wrong > 0), the first at {wrong[0].place}"
        )
    elif run.num_out_of_bounds:
        notices.append(f"{table} had {run.num_out_of_bounds} measurements out of bounds")
    if law.reason is not None:
        notices.append(f"{table}: the number of ranks is not known: {law.reason}")
    if law.algbw_is_busbw:
        notices.append(f"{table}: its algbw column holds the busbw; algbw is size / time here")
    if any(point.time_us is None for point in points):
        notices.append(f"{table} has CPU times of the call, no times of the operation")
    if len({rank.group for rank in run.ranks}) > 1:
        notices.append(f"{table}: other groups of ranks ran the same at the same time")
    if not run.has_footer:
        notices.append(f"{table} has no footer: the run did not end, or the log is cut off")
    elif _rows_are_missing(run):
        notices.append(f"{table}: the average in its footer is not that of its rows: some are lost")
    return notices


def _rows_are_missing(run: Run) -> bool:
    """Return whether the footer's average differs from the points' by more than it can.

    Rounding does that, and in older versions threads that averaged times of their own.
    """
    if run.average_busbw_gb_per_s is None:
        return False
    printed = [point.busbw_gb_per_s for point in run.points]
    mean = sum(busbw.value for busbw in printed) / len(printed)
    rounding = sum(busbw.high - busbw.value for busbw in printed) / len(printed)
    return abs(mean - run.average_busbw_gb_per_s) > rounding + 0.01 * mean
