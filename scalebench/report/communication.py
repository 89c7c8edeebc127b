"""Communication of a suite's rows as tables: operations, exposure, arrivals, volume, cost.

Every number is per step of the rank that waits most, as the traced steps have it.
"""

from collections.abc import Callable, Sequence

from scalebench import units
from scalebench.report import wording
from scalebench.report.attributed import (
    WAIT,
    ExposedEstimates,
    Operation,
    apart_from_zero,
    arrivals,
    budget_of,
    disagreements,
    exposed_estimates,
    operations,
    rank_steps,
)
from scalebench.report.listing import PlainTable
from scalebench.summary import Estimate, Row

NOTHING = wording.DASH


Makers = tuple[Callable[[Sequence[Row]], PlainTable], ...]


def tables(rows: Sequence[Row]) -> tuple[PlainTable, ...]:
    """Return the tables of one suite about what was sent, those that have a line."""
    return _made(rows, (_kinds, _buckets, _exposed, _cost))


def rank_tables(rows: Sequence[Row]) -> tuple[PlainTable, ...]:
    """Return the tables of one suite about its ranks, those that have a line."""
    return _made(rows, (_arrivals, _ranks))


def _made(rows: Sequence[Row], makers: Makers) -> tuple[PlainTable, ...]:
    talking = [row for row in rows if operations(row)]
    made = (make(talking) for make in makers)
    return tuple(table for table in made if table.lines)


def sentence(rows: Sequence[Row]) -> str | None:
    """Say how much of the communication is hidden behind computation, in the largest size."""
    told = [row for row in rows if row.overlap_ratio and row.world_size > 1]
    if not told:
        return None
    largest = max(row.world_size for row in told)
    at_largest = [row for row in told if row.world_size == largest]
    most = max(at_largest, key=lambda row: row.overlap_ratio.value if row.overlap_ratio else 0.0)
    assert most.overlap_ratio is not None
    hidden = most.overlap_ratio
    where = f"on {wording.ranks(most)}"
    if hidden.value < 0.005:
        return f"No communication is hidden behind computation {where}."
    share = units.percent(hidden.value, hidden.half_width)
    rivals = ", the most of all cases" if len(at_largest) > 1 else ""
    return (
        f"{wording.plain(most.case, 64)} hides {share} of its communication behind computation"
        f" {where}{rivals}."
    )


def _place(row: Row) -> tuple[str, str]:
    return wording.plain(row.case, 64), str(row.world_size)


def _figures(operation: Operation) -> tuple[str, ...]:
    size = NOTHING if operation.num_bytes is None else units.bytes_(operation.num_bytes)
    times = (operation.total_s, operation.exposed_s, operation.hidden_s)
    return (f"{operation.count:.4g}", size, *(_time(seconds) for seconds in times))


def _time(seconds: float) -> str:
    return units.seconds(seconds) if seconds else "0"


def _kinds(rows: Sequence[Row]) -> PlainTable:
    lines = [
        (*_place(row), wording.plain(found.kind, 40), wording.plain(found.phase, 40),
         *_figures(found))
        for row in rows
        for found in operations(row)
        if found.ordinal is None
    ]  # fmt: skip
    return PlainTable(
        "Operations",
        "Per traced step, tracing's own cost included. Exposed: while the rank computed nothing;"
        " hidden: the rest.",
        ("case", "N", "kind", "asked for in", "count", "bytes", "total", "exposed", "hidden"),
        tuple(lines),
        frozenset({0, 2, 3}),
    )


def _buckets(rows: Sequence[Row]) -> PlainTable:
    lines = [
        (*_place(row), wording.plain(found.kind, 40), str(found.ordinal),
         wording.plain(found.phase, 40), *_figures(found))
        for row in rows
        for found in operations(row)
        if found.ordinal is not None
    ]  # fmt: skip
    return PlainTable(
        "Every bucket",
        "",
        (
            *("case", "N", "kind", "bucket", "asked for in"),
            *("count", "bytes", "total", "exposed", "hidden"),
        ),
        tuple(lines),
        frozenset({0, 2, 4}),
        folded=True,
    ).shortened()


def _ranks(rows: Sequence[Row]) -> PlainTable:
    lines = [
        (*_place(row), f"rank {found.rank}", _time(found.step_s), _time(found.compute_s),
         _time(found.comm_s), _time(found.exposed_comm_s),
         NOTHING if _unknown_wait(row) else _time(found.wait_s),
         _time(found.data_stall_s), _time(found.other_idle_s))
        for row in rows
        for found in rank_steps(row)
    ]  # fmt: skip
    return PlainTable(
        "Every rank",
        "Traced steps as they are, tracing's own cost included; means over the launches. Exposed"
        " communication is transfer and wait, and the bubble of a pipeline. The budget is that of"
        " the rank that waits most, or the mean of all ranks of a pipeline.",
        (
            *("case", "N", "rank", "step", "compute", "communication", "exposed", "wait"),
            *("data stall", "other idle"),
        ),
        tuple(lines),
        frozenset({0, 2}),
        folded=True,
    ).shortened()


def _unknown_wait(row: Row) -> bool:
    """Whether the row's waits could not be told from transfer."""
    budget = budget_of(row)
    return "wait_s" in row.unavailable or (budget is not None and not budget.knows(WAIT))


def _with_interval(estimate: Estimate | None) -> str:
    """Write a duration with its interval in the same unit: ``"2.2 ms (−3.1 to 7.5)"``."""
    if estimate is None:
        return NOTHING
    text = units.seconds(estimate.value, estimate.half_width or None)
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return text.replace("-", wording.MINUS)
    number, _, unit = text.rpartition(" ")
    scale = {"s": 1.0, "ms": 1e3, "µs": 1e6, "ns": 1e9}[unit]
    places = wording.decimals(number)
    ends = [wording.signed(end * scale, places) for end in (estimate.low, estimate.high)]
    return f"{number.replace('-', wording.MINUS)} {unit} ({' to '.join(ends)})"


def _exposed(rows: Sequence[Row]) -> PlainTable:
    lines = []
    for row in rows:
        found = exposed_estimates(row) or ExposedEstimates()
        three = (found.trace, found.differential, found.ddp_logger)
        if any(three):
            written = (_with_interval(estimate) for estimate in three)
            lines.append((*_place(row), *written, _verdict(row, found)))
    return PlainTable(
        "Exposed communication, three ways",
        "Per step. Trace: intervals in traced steps; difference: a step with synchronisation minus"
        " one without; DDP's logger: its own account. In brackets: 95 % intervals.",
        ("case", "N", "trace", "difference", "DDP's logger", "verdict"),
        tuple(lines),
        frozenset({0, 5}),
    )


def _verdict(row: Row, found: ExposedEstimates) -> str:
    if found.disagree is None:
        return "cannot be compared"
    if disagreements(row):
        return "disagree"
    return "differ by less than 1 % of the step" if found.disagree else "agree"


def _arrivals(rows: Sequence[Row]) -> PlainTable:
    lines = [
        (*_place(row), f"rank {late.rank}", f"{100 * late.share:.0f} %",
         _time(late.median_late_s), str(late.longest_run))
        for row in rows
        for late in arrivals(row)[:4]
    ]  # fmt: skip
    return PlainTable(
        "Who arrives last",
        "Share of the matched operations to which a rank came last; how long after the first; most"
        " such operations in a row. At most four ranks of each row.",
        ("case", "N", "rank", "last in", "by (median)", "in a row"),
        tuple(lines),
        frozenset({0, 2}),
    )


def _cost(rows: Sequence[Row]) -> PlainTable:
    lines = [
        (
            *_place(row),
            _bytes(row.payload_bytes),
            _bytes(row.wire_bytes),
            _bytes(row.predicted_wire_bytes),
            _ratio(row.overlap_ratio),
            _ratio(row.comm_compute_ratio),
            _ratio(row.trace_overhead),
            _ratio(row.probe_effect),
        )
        for row in rows
    ]
    return PlainTable(
        "Volume, overlap, and what looking cost",
        "Payload: bytes that a rank hands over per step; wire: bytes that it sends by the ring's"
        " law; predicted: the same from the strategy's own law. Tracing: how much longer traced"
        " steps took than clean ones; probes: how much longer clean ones, the headline's, took than"
        " bare ones. ?: cannot be told from zero.",
        (
            *("case", "N", "payload", "wire", "predicted", "hidden", "comm/compute"),
            *("tracing", "probes"),
        ),
        tuple(lines),
    )


def _bytes(value: int | None) -> str:
    return NOTHING if value is None else units.bytes_(value)


def _ratio(estimate: Estimate | None) -> str:
    """Write a ratio in percent; one that cannot be told from zero is marked."""
    if estimate is None:
        return NOTHING
    text = wording.signed(100 * estimate.value)
    doubt = "" if apart_from_zero(estimate) or estimate.low == estimate.high else "?"
    return f"{text} %{doubt}"
