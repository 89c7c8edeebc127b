"""Tables of what a GPU did, why it was idle, and what got slower, for terminal and page."""

from scalebench import units
from scalebench.report.tables.layout import Column, value
from scalebench.report.words import wording
from scalebench.trace.comparison import Change, Comparison
from scalebench.trace.gpu_work import Work, summed
from scalebench.trace.idle import Gap, IdleTime
from scalebench.trace.job import JobFigures, work_of_all

MOST_OPERATORS = 12
_TIMES_FROM = 10
_CAUSES = {
    "host": "host-bound: the launch came late",
    "kernel": "between kernels that were launched in time",
    "stream": "the stream waited for another one",
    "other": "the trace does not tell why",
}


def kind_table(job: JobFigures) -> tuple[tuple[Column[Work], ...], tuple[Work, ...]]:
    """Return columns and rows of what the GPUs did, by kind; no rows: no trace shows a GPU."""
    rows = summed(work_of_all(job) or (), by_kind=True)
    whole_s = sum(row.total_s for row in rows) or 1.0
    columns: tuple[Column[Work], ...] = (
        Column("kind", lambda row: row.kind, numeric=False),
        value("time", lambda row: row.total_s, units.seconds),
        value("share", lambda row: row.total_s / whole_s, units.percent),
        Column("count", lambda row: str(row.count)),
        value("FLOP/s", lambda row: row.flop_per_s, units.flop_rate),
    )
    return columns, rows


IDLE_COLUMNS: tuple[Column[tuple[str, IdleTime]], ...] = (
    Column("idle", lambda row: row[0], numeric=False),
    value("host-bound", lambda row: row[1].host_wait_s, units.seconds),
    value("between kernels", lambda row: row[1].kernel_wait_s, units.seconds),
    value("stream or event", lambda row: row[1].stream_wait_s, units.seconds),
    value("other", lambda row: row[1].other_wait_s, units.seconds),
)


def idle_rows(job: JobFigures) -> list[tuple[str, IdleTime]]:
    """Return the idle time of each rank's GPU; of a single rank its streams as well."""
    found = [(rank.trace.rank, rank.idle) for rank in job.ranks if rank.idle is not None]
    rows = [(f"rank {rank}", idle.device) for rank, idle in found]
    if len(found) == 1:
        rows += [(f"stream {stream}", idle) for stream, idle in found[0][1].streams.items()]
    return rows


def gap_lines(job: JobFigures) -> list[str]:
    """Name the longest gap of all ranks, its cause, and what the host was doing."""
    gaps = [(r.idle.largest, r.trace.rank) for r in job.ranks if r.idle and r.idle.largest]
    if not gaps:
        return []
    gap, rank = max(gaps, key=lambda found: found[0].length_s)
    lines = [
        f"longest gap: {units.seconds(gap.length_s)} on rank {rank}, {gap.begin_s:.4f} s after the "
        f"trace's begin; {_CAUSES[gap.cause]}; next kernel: {wording.plain(gap.next_kernel, 60)}"
    ]
    return [*lines, _host(gap)]


def _host(gap: Gap) -> str:
    if not gap.host:
        return "what the host did meanwhile is not recorded (torch.profiler: with_stack=True)"
    return "the host meanwhile: " + " > ".join(wording.plain(name, 60) for name in gap.host)


def _changed(change: Change) -> str:
    return ("+" if change.slower_s >= 0 else "−") + units.seconds(abs(change.slower_s))


def _relative(change: Change) -> str:
    if not change.before_s or not change.after_s:
        return "new" if change.after_s else "gone"
    factor = change.after_s / change.before_s
    return f"{factor:.3g} times" if factor >= _TIMES_FROM else f"{100 * (factor - 1):+.3g} %"


_TIMES: tuple[Column[Change], ...] = (
    value("before", lambda change: change.before_s, units.seconds),
    value("now", lambda change: change.after_s, units.seconds),
    Column("change", _changed),
    Column("relative", _relative),
)
CHANGED_KINDS: tuple[Column[Change], ...] = (
    Column("kind", lambda change: change.kind, numeric=False),
    *_TIMES,
)
CHANGED_OPERATORS: tuple[Column[Change], ...] = (
    Column("operator", lambda change: wording.plain(change.operator, 40), numeric=False),
    Column("shape", lambda change: wording.plain(change.shape, 32), numeric=False, from_width=90),
    *_TIMES,
    Column(
        "calls",
        lambda change: f"{change.before_count:.4g} → {change.after_count:.4g}",
        from_width=100,
    ),
)


def changed_tables(comparison: Comparison) -> list[tuple[tuple[Column[Change], ...], list[Change]]]:
    """Return columns and rows: all kinds, and the operators that lost most time."""
    slower = [change for change in comparison.operators if change.slower_s > 0]
    tables = [
        (CHANGED_KINDS, [*comparison.kinds, comparison.window]),
        (CHANGED_OPERATORS, slower[:MOST_OPERATORS]),
    ]
    return [(columns, rows) for columns, rows in tables if rows]
