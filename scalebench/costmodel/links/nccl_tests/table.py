"""Makes a checked `Table` of a run, from text or ``-J FILE``: which operation, how many ranks."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple, Self

from pydantic import (
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    model_validator,
)

from scalebench.costmodel.links.nccl_tests.run import (
    DTYPES,
    OPERATIONS,
    Point,
    Printed,
    Rank,
    Run,
    busbw_factor,
    ops_named_in,
    points_of,
)
from scalebench.errors import UsageError
from scalebench.spec.base import IfValid

_SLACK = 1e-6
"""Relative; some versions computed the bandwidths in single precision."""
MAX_BYTES = 64 * 2**20
"""A sweep has some kilobytes; per-iteration times of thousands of ranks some megabytes."""

_Few = Annotated[int, Field(gt=0, le=1024)]
_Large = Annotated[int, Field(ge=0, lt=2**63)]
_Number = Annotated[float, Field(gt=-1e18, lt=1e18)]


@dataclass(frozen=True)
class Table:
    """One run of a test.

    Attributes:
        op: As scalebench names it (``all_reduce``), or ``hypercube``: an all-gather that
            nccl-tests builds from sends and receives.
        points: In the order of the file.
        world_size: Ranks of the communicator; None: not known.
        notices: What a reader of the points should know.
    """

    op: str
    points: tuple[Point, ...]
    world_size: int | None
    notices: tuple[str, ...]


@dataclass(frozen=True)
class Log:
    """Everything that one file holds; at least one table with at least one point.

    Attributes:
        unread: What was left out of tables of which nothing can be read.
    """

    path: Path
    tables: tuple[Table, ...]
    unread: tuple[str, ...] = ()

    @property
    def notices(self) -> tuple[str, ...]:
        """The notices of all tables, and of what is none."""
        return (*self.unread, *(notice for table in self.tables for notice in table.notices))


class Law(NamedTuple):
    """How the columns of a run agree; what ``world_size`` is not known for, ``reason`` says.

    ``untold``: why it was not known before the columns told it; ``damaged``: rows whose columns
    do not agree, and how.
    """

    op: str
    world_size: int | None
    reason: str | None
    algbw_is_busbw: bool
    untold: str | None = None
    damaged: Mapping[str, str] = {}


def table_of(run: Run, world_size: int | None, op: str | None) -> Table:
    """Return the table of a run with at least one point; the rest is for runs that do not tell it.

    Raises:
        UsageError: The columns disagree, or it cannot be known which operation they are about.
    """
    law = _law_of(run, world_size, op)
    whole = [point for point in run.points if point.place not in law.damaged]
    run = replace(run, points=whole, left_out=[*run.left_out, *law.damaged.values()])
    run = replace(run, points=_checked(run, law))
    return Table(law.op, tuple(run.points), law.world_size, tuple(_notices(run, law)))


_MOST_RANKS = 2**16
_TOLERANCE = {"float16": 1e-2, "bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-12}
"""Deviation, times N − 1, above which older versions count a result as out of bounds; of integers
any is (``DeltaMaxValue`` in ``src/common.cu`` until 2022)."""


def _checked(run: Run, law: Law) -> list[Point]:
    """Return the points with what the ``error`` column and the footer say of their results.

    Where the footer counts results out of bounds and no row shows one, any may be it.
    """
    if run.num_out_of_bounds == 0 or any(point.is_wrong for point in run.points):
        return run.points
    reduced = (law.world_size or _MOST_RANKS) - 1

    def is_too_large(point: Point) -> bool:
        limit = _TOLERANCE.get(point.dtype, 0.0) * max(reduced, 1)
        return point.deviation is not None and point.deviation > limit

    wrong = [is_too_large(point) for point in run.points]
    if run.num_out_of_bounds and not any(wrong):
        wrong = [True] * len(wrong)
    return [replace(one, failed_check=bad) for one, bad in zip(run.points, wrong, strict=True)]


def _law_of(run: Run, given: int | None, op: str | None) -> Law:
    """Return the law of the test's name, the command line, the caller or the columns."""
    named = ops_named_in(run.program)
    if len(named) == 1:
        return _law(run, named.pop(), given)
    if run.program.endswith("_perf") and op is None:
        raise UsageError(
            f"{run.path}: the test {run.program!r} is not read. Say which operation it is if it "
            "is one of those of nccl-tests under another name."
        )
    fitting = [name for name in OPERATIONS if _has_columns_of(name, run.points)]
    if len(run.commanded) == 1 and run.commanded.issubset(fitting):
        return _law(run, next(iter(run.commanded)), given)
    if op is not None:
        return _law(run, op, given)
    return _guessed(run, [name for name in fitting if _is_checked_like(name, run.points)], given)


def _guessed(run: Run, ops: Sequence[str], given: int | None) -> Law:
    """Return the only law that the points obey, or the only one of these that was commanded."""
    laws, errors = [], []
    for op in ops:
        try:
            laws.append(_law(run, op, given))
        except UsageError as error:
            errors.append(error)
    laws = [law for law in laws if not law.damaged] or laws
    commanded = [law for law in laws if law.op in run.commanded]
    for only in (laws, commanded):
        if len(only) == 1:
            return only[0]
    if errors and not laws:
        raise errors[0]
    raise UsageError(
        f"{run.path}, {run.points[0].place}: this table can be of "
        f"{' or '.join(law.op for law in laws) or 'no known test'}: older versions of nccl-tests "
        "do not print which test ran. Say which operation it is (--op), or keep the command line "
        f"in the log. Valid: {', '.join(OPERATIONS)}."
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


def _law(run: Run, op: str, given: int | None) -> Law:
    """Return the law that the points obey if the run is of an operation.

    A few rows that do not are damaged: fewer than half of those whose bandwidths say something.
    """
    reason = run.why_world_size_is_unknown()
    world_size = given if reason else len(run.group())
    if world_size is None and OPERATIONS[op].shares:
        elements = ((point.size_bytes, point.count * point.itemsize) for point in run.points)
        world_size = next((size // one for size, one in elements if one and size >= one), None)
    untold = None if world_size else reason
    if world_size is None:
        least, most = _fitting_world_sizes(run.points) if op == "all_reduce" else (2, math.inf)
        world_size = least if least == most else None
        between = f"{least} to {most:.0f} fit its bandwidths" if least <= most < 1e6 else None
        reason = "; ".join(filter(None, (reason, between, "give it with --world-size")))
    laws = []
    for algbw_is_busbw in OPERATIONS[op].algbw_is_busbw:
        law = Law(op, world_size, None if world_size else reason, algbw_is_busbw, untold, {})
        damaged: dict[str, str] = {}
        for point in run.points:
            if said := _disagreement(point, law):
                damaged.setdefault(point.place, said)
        if not damaged:
            return law
        laws.append(law._replace(damaged=damaged))
    best = min(laws, key=lambda law: len(law.damaged))
    telling = {point.place for point in run.points if point.busbw_gb_per_s.low > 0}
    if 2 * len(best.damaged) < len(telling):
        return best
    ranks = "" if world_size is None else f", or the number of ranks is not {world_size}"
    problem = next(iter(laws[0].damaged.values()))
    raise UsageError(f"{run.path}, {problem}. The line is damaged, or the test is not {op}{ranks}.")


def _fitting_world_sizes(points: Sequence[Point]) -> tuple[int, float]:
    """Return the least and the largest number of ranks of an all-reduce that all points allow.

    Its busbw is 2·(N − 1)/N times its algbw; each column is known to half a unit of its last digit.
    """
    low, high = 0.0, 2.0
    for point in points:
        busbw, rate = point.busbw_gb_per_s, _rate(point.size_bytes, point.time_us)
        for of in (point.algbw_gb_per_s, rate):
            if of and 0 < of.low <= of.high < math.inf:
                low, high = max(low, busbw.low / of.high), min(high, busbw.high / of.low)
    least = max(math.ceil(2 / (2 - low) * (1 - _SLACK)), 2) if low < 2 else 2
    return least, math.floor(2 / (2 - high) * (1 + _SLACK)) if high < 2 else math.inf


def _disagreement(point: Point, law: Law) -> str | None:
    """Return what is wrong with a point, and where; None: its columns agree within rounding."""
    op, n = law.op, law.world_size
    among = "" if n is None else f" among {n} ranks"
    shares = n if OPERATIONS[op].shares else 1
    if shares is not None and point.size_bytes != point.count * point.itemsize * shares:
        each = f" × {shares} ranks" if OPERATIONS[op].shares else ""
        return (
            f"{point.place}: the size {point.size_bytes} is not the count {point.count} × "
            f"{point.itemsize} bytes{each}, as it is for {op}"
        )
    algbw, busbw = point.algbw_gb_per_s, point.busbw_gb_per_s
    rate = _rate(point.size_bytes, point.time_us)
    factor = busbw_factor(op, n)
    relations = (
        ("algbw", algbw, "size / time", rate, factor if law.algbw_is_busbw else 1.0),
        ("busbw", busbw, "algbw", algbw, 1.0 if law.algbw_is_busbw else factor),
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


def _rate(size_bytes: int, time_us: Printed | None) -> Printed | None:
    """Return size / time in GB/s; a time that was rounded to 0 has no upper bound."""
    if time_us is None:
        return None
    fastest = size_bytes / time_us.low / 1e3 if time_us.low > 0 else math.inf
    slowest = size_bytes / time_us.high / 1e3
    return Printed(fastest, slowest, fastest)


def _notices(run: Run, law: Law) -> list[str]:
    points, table = run.points, f"the table of {law.op} at {run.points[0].place}"
    notices = [*_of_results(run, table), *lost(run)]
    if law.reason is not None:
        notices.append(f"{table}: the number of ranks is not known: {law.reason}")
    elif law.untold:
        notices.append(f"{table}: {law.untold}; only N={law.world_size} fits its columns")
    if law.algbw_is_busbw:
        notices.append(f"{table}: its algbw column holds the busbw; algbw is size / time here")
    if any(point.time_us is None for point in points):
        notices.append(f"{table} has CPU times of the call, no times of the operation")
    if len({rank.group for rank in run.ranks}) > 1:
        notices.append(f"{table}: other groups of ranks ran the same at the same time")
    if not run.has_footer:
        notices.append(f"{table} has no footer: the run did not end, or the log is cut off")
    elif not run.left_out and _rows_are_missing(run):
        notices.append(f"{table}: the average in its footer is not that of its rows: some are lost")
    return notices


def _of_results(run: Run, table: str) -> Iterator[str]:
    """Say which results were wrong, or that nothing was checked."""
    wrong = [point for point in run.points if point.is_wrong]
    if not wrong:
        if all(point.num_wrong is None and point.deviation is None for point in run.points):
            yield f"{table}: no result was checked"
    elif any(point.num_wrong or point.deviation is not None for point in wrong):
        column = "#wrong > 0" if wrong[0].num_wrong else "its error is above the tolerance"
        yield (
            f"{len(wrong)} of {len(run.points)} measurements of {table} had wrong results "
            f"({column}), the first at {wrong[0].place}"
        )
    else:
        yield (
            f"{table} had {run.num_out_of_bounds} measurements out of bounds, and no row says "
            "which: any may be wrong"
        )


def lost(run: Run) -> list[str]:
    """Say which rows were left out, the first of them with its reason."""
    if not run.left_out:
        return []
    more = len(run.left_out) - 1
    others = f"; so are {more} more lines" if more else ""
    return [f"{run.path}: left out: {run.left_out[0]}{others}"]


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


class _Json(BaseModel):
    model_config = ConfigDict(strict=True)


class _Mode(_Json):
    """The result of a mode, under the names that the text has for it."""

    time: _Number | None = None
    cputime: _Number | None = Field(None, validation_alias="cpu_time")
    algbw: _Number = Field(validation_alias="alg_bw")
    busbw: _Number = Field(validation_alias="bus_bw")
    wrong: _Number | None = Field(validation_alias="nwrong")


class _Result(_Json):
    size: _Large
    count: _Large
    type: str
    redop: str
    root: int = Field(strict=False)  # text with blanks before it
    out_of_place: _Mode | None = None
    in_place: _Mode | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        modes = [mode for mode in (self.out_of_place, self.in_place) if mode]
        if self.type not in DTYPES:
            raise ValueError(f"the type {self.type!r} is not known")
        if not modes or any(mode.time is None and mode.cputime is None for mode in modes):
            raise ValueError("a measurement or its time is missing")
        return self


class _Device(_Json):
    rank: int = Field(ge=0)
    group: IfValid[int] = None


class _File(_Json):
    results: list[_Result] = Field(min_length=1)
    program: IfValid[str] = Field(None, validation_alias=AliasPath("args", 0))
    threads: IfValid[_Few] = Field(None, validation_alias=AliasPath("config", "nthreads"))
    gpus: IfValid[_Few] = Field(None, validation_alias=AliasPath("config", "ngpus"))
    devices: IfValid[list[_Device]] = Field(None, validation_alias=AliasPath("config", "devices"))
    average: IfValid[FiniteFloat] = Field(
        None, validation_alias=AliasPath("average_bus_bandwidth", "bandwidth")
    )
    wrong: IfValid[int] = Field(None, validation_alias=AliasPath("out_of_bounds", "count"))


def read_json(path: Path) -> Run:
    """Return the run of a JSON file.

    Raises:
        UsageError: It is too large, cut off, no JSON, or not of nccl-tests.
    """
    if path.stat().st_size > MAX_BYTES:
        raise UsageError(
            f"{path} is larger than {MAX_BYTES // 2**20} MiB, too large for the JSON file of a "
            "sweep. Give the text log."
        )
    try:
        file = _File.model_validate_json(path.read_text(encoding="utf-8-sig", errors="replace"))
    except ValidationError as error:
        raise _refusal(path, error) from None
    return Run(
        path,
        program=file.program or "",
        ranks_per_process=file.threads * file.gpus if file.threads and file.gpus else None,
        ranks=_ranks(file),
        points=[point for i, result in enumerate(file.results) for point in _points(result, i)],
        has_footer=file.average is not None,
        average_busbw_gb_per_s=file.average,
        num_out_of_bounds=file.wrong,
    )


def _refusal(path: Path, error: ValidationError) -> UsageError:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return UsageError(
            f"{path}: the JSON is cut off or damaged ({first['ctx']['error']}). Expected the "
            "whole file that nccl-tests wrote for -J."
        )
    if len(first["loc"]) < 2:
        return UsageError(
            f"{path} is JSON, but not a result of nccl-tests: expected a list results with at "
            "least one entry, as -J writes it."
        )
    where = ".".join([f"results[{first['loc'][1]}]", *map(str, first["loc"][2:])])
    return UsageError(
        f"{path}, {where}: {first['msg']}; expected size, count, type, redop, root, out_of_place "
        "and in_place with time (or cpu_time), alg_bw, bus_bw and nwrong."
    )


def _points(result: _Result, i: int) -> Iterator[Point]:
    columns = {name: str(getattr(result, name)) for name in ("size", "count", "type", "root")}
    columns["redop"] = result.redop
    for in_place, mode in enumerate((result.out_of_place, result.in_place)):
        for name, value in mode or ():
            if value is not None:
                columns[f"{name}{in_place}"] = f"{value:.6f}"  # as many decimals as the file has
    return points_of(columns, f"results[{i}]")


def _ranks(file: _File) -> list[Rank]:
    """Return all ranks; the file lists the first of each process only, unless that is mended."""
    devices, each = file.devices or [], (file.threads or 1) * (file.gpus or 1)
    if any(device.rank % each for device in devices):
        each = 1
    return [Rank(one.rank + i, one.group or 0) for one in devices for i in range(each)]
