"""Makes a checked `Table` of a job's rows: which operation, how many ranks, which law."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalebench.errors import UsageError
from scalebench.nccl_tests.checks import Law
from scalebench.nccl_tests.job import Job
from scalebench.nccl_tests.model import Point, Table
from scalebench.nccl_tests.operations import ALWAYS_BUSBW, ONCE_BUSBW, OPERATIONS
from scalebench.nccl_tests.rows import Measured, Printed, Row

OpSource = Literal["test's name", "command line", "columns", "caller"]


@dataclass(frozen=True)
class Footer:
    """What stands below a table; None: it is missing."""

    average_busbw_gb_per_s: float | None = None
    num_out_of_bounds: int | None = None
    is_there: bool = False


@dataclass(frozen=True)
class Told:
    """What the caller says for the tables that do not say it themselves."""

    world_size: int | None
    op: str | None


@dataclass(frozen=True)
class _Reading:
    law: Law
    reason: str | None


def table_of(path: Path, job: Job, rows: Sequence[Row], footer: Footer, told: Told) -> Table:
    """Return the table; ``rows`` has at least one.

    Raises:
        UsageError: The columns disagree, or it cannot be known which operation they are about.
    """
    op, source = _operation(path, job, rows, told)
    reading = _read(path, op, job, rows, told)
    points = tuple(_points(reading.law, rows))
    average = footer.average_busbw_gb_per_s
    return Table(
        op=op,
        op_source=source,
        points=points,
        world_size=reading.law.world_size,
        world_size_reason=reading.reason,
        hosts=job.hosts,
        devices=job.devices,
        nccl_version=job.nccl_version,
        nccl_tests_version=job.nccl_tests_version,
        average_busbw_byte_per_s=None if average is None else average * 1e9,
        num_out_of_bounds=footer.num_out_of_bounds,
        notices=tuple(_notices(job, reading, rows, points, footer)),
    )


def _operation(path: Path, job: Job, rows: Sequence[Row], told: Told) -> tuple[str, OpSource]:
    if job.op is not None:
        return job.op, "test's name"
    fitting = [op for op in OPERATIONS if _shape_fits(op, rows)]
    if len(job.commanded) == 1 and job.commanded.issubset(fitting):
        return next(iter(job.commanded)), "command line"
    if told.op is not None:
        return told.op, "caller"
    fitting = [op for op in fitting if _checks_fit(op, rows)]
    errors = {op: _error(path, op, job, rows, told) for op in fitting}
    agreeing = [op for op in fitting if errors[op] is None]
    if len(agreeing) == 1:
        return agreeing[0], "columns"
    if len(commanded := job.commanded.intersection(agreeing)) == 1:
        return commanded.pop(), "command line"
    if not agreeing and fitting:
        raise errors[fitting[0]] or AssertionError
    raise UsageError(
        f"{path}, {rows[0].place}: this table can be of {' or '.join(agreeing) or 'no known test'}:"
        " older versions of nccl-tests do not print which test ran. Say which operation it is, "
        f"or keep the command line in the log. Valid: {', '.join(OPERATIONS)}."
    )


def _shape_fits(op: str, rows: Sequence[Row]) -> bool:
    shape = OPERATIONS[op]
    return all(
        shape.reduces in (None, row.redop is not None) and shape.rooted == (row.root is not None)
        for row in rows
    )


def _checks_fit(op: str, rows: Sequence[Row]) -> bool:
    checks = OPERATIONS[op].checks_in_place
    return all(row.checks_in_place in (None, checks) for row in rows)


def _error(path: Path, op: str, job: Job, rows: Sequence[Row], told: Told) -> UsageError | None:
    try:
        _read(path, op, job, rows, told)
    except UsageError as error:
        return error
    return None


def _read(path: Path, op: str, job: Job, rows: Sequence[Row], told: Told) -> _Reading:
    """Return the law that all rows obey."""
    world_size, reason = job.world_size()
    if world_size is None and told.world_size is not None:
        world_size, reason = told.world_size, None
    if world_size is None and OPERATIONS[op].shares:
        world_size = next((row.num_shares for row in rows if row.num_shares), None)
        reason = None if world_size is not None else reason
    laws = [Law(op, world_size, op in ALWAYS_BUSBW)]
    if op in ONCE_BUSBW:
        laws.append(Law(op, world_size, algbw_is_busbw=True))
    wrong: list[tuple[Row, str]] = []
    for law in laws:
        first = next(((row, bad) for row in rows if (bad := law.disagreement(row))), None)
        if first is None:
            return _Reading(law, reason)
        wrong.append(first)
    row, what = wrong[0]
    ranks = "" if world_size is None else f", or the number of ranks is not {world_size}"
    raise UsageError(
        f"{path}, {row.place}: {what}. The line is damaged, or the test is not {op}{ranks}."
    )


def _points(law: Law, rows: Sequence[Row]) -> list[Point]:
    return [
        Point(
            op=law.op,
            size_bytes=row.size_bytes,
            count=row.count,
            dtype=row.dtype,
            redop=row.redop,
            root=row.root,
            world_size=law.world_size,
            in_place=measured.in_place,
            time_s=_seconds(measured.time_us),
            cpu_time_s=_seconds(measured.cpu_time_us),
            algbw_byte_per_s=_algbw_byte_per_s(law, row, measured),
            busbw_byte_per_s=measured.busbw_gb_per_s.value * 1e9,
            num_wrong=measured.num_wrong,
            largest_deviation=measured.largest_deviation,
            place=row.place,
        )
        for row in rows
        for measured in row.measured
    ]


def _algbw_byte_per_s(law: Law, row: Row, measured: Measured) -> float | None:
    """Return size / time, also where the column holds the busbw; None: it cannot be known."""
    printed = measured.algbw_gb_per_s.value * 1e9
    if not law.algbw_is_busbw:
        return printed
    if measured.time_us is not None and measured.time_us.value > 0:
        return row.size_bytes / (measured.time_us.value * 1e-6)
    n = law.world_size
    return printed * n / (n - 1) if n is not None and n > 1 else None


def _seconds(time_us: Printed | None) -> float | None:
    return None if time_us is None else time_us.value * 1e-6


def _notices(
    job: Job, reading: _Reading, rows: Sequence[Row], points: Sequence[Point], footer: Footer
) -> list[str]:
    table = f"the table of {reading.law.op} at {rows[0].place}"
    notices = []
    wrong = [point for point in points if point.num_wrong]
    if wrong:
        notices.append(
            f"{len(wrong)} of {len(points)} measurements of {table} had wrong results "
            f"(#wrong > 0), the first at {wrong[0].place}"
        )
    elif footer.num_out_of_bounds:
        notices.append(f"{table} had {footer.num_out_of_bounds} measurements out of bounds")
    if reading.reason is not None:
        notices.append(f"{table}: the number of ranks is not known: {reading.reason}")
    if reading.law.algbw_is_busbw:
        notices.append(f"{table}: its algbw column holds the busbw; algbw is size / time here")
    if any(point.time_s is None for point in points):
        notices.append(f"{table} has CPU times of the call, no times of the operation")
    if job.is_split:
        notices.append(f"{table}: other groups of ranks ran the same at the same time")
    if not footer.is_there:
        notices.append(f"{table} has no footer: the run did not end, or the log is cut off")
    elif _rows_are_missing(rows, footer):
        notices.append(f"{table}: the average in its footer is not that of its rows: some are lost")
    return notices


def _rows_are_missing(rows: Sequence[Row], footer: Footer) -> bool:
    """Return whether the footer's average differs from the rows' by more than it can.

    Rounding does that, and in older versions threads that averaged times of their own.
    """
    if footer.average_busbw_gb_per_s is None:
        return False
    printed = [measured.busbw_gb_per_s for row in rows for measured in row.measured]
    mean = sum(busbw.value for busbw in printed) / len(printed)
    rounding = sum(busbw.high - busbw.value for busbw in printed) / len(printed)
    return abs(mean - footer.average_busbw_gb_per_s) > rounding + 0.01 * mean
