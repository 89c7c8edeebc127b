"""Traces and dumps of collectives for a terminal: ranks, what a GPU did and why, what changed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalebench import units
from scalebench.costmodel.links.topology import Link
from scalebench.grouping import totals
from scalebench.report.tables.layout import Column, Screen, value
from scalebench.report.words import wording
from scalebench.trace.analysis import Figures, Share
from scalebench.trace.comparison import Change, Comparison
from scalebench.trace.dumps import Bandwidth, Examination, GroupState
from scalebench.trace.idle import Gap, IdleTime
from scalebench.trace.job import JobFigures, unavailable_together, work_of_all
from scalebench.trace.operations.gpu_work import Work, summed

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
    value("at the ends", lambda row: row[1].ends_s, units.seconds),
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


_OF_LIBRARIES = ("torch/", "multiprocessing/", "<")
MOST_CALLS = 6
"""Innermost calls of the host that are shown, those of libraries left out."""


def _host(gap: Gap) -> str:
    if not gap.host:
        return "what the host did meanwhile is not recorded (torch.profiler: with_stack=True)"
    names = [name for name in gap.host if not name.startswith(_OF_LIBRARIES)] or list(gap.host)
    shown = ["…"] * (len(names) > MOST_CALLS) + names[-MOST_CALLS:]
    return "the host meanwhile: " + " > ".join(wording.plain(name, 60) for name in shown)


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


WINDOWS = {"file": "the whole file", "steps": "whole profiler steps only"}

LONGEST_NAME = 60
_WIDE = 110
_NARROW = 84


def ratio_as_percent(value: float | None) -> str:
    """Write a ratio as percent, a dash where there is none."""
    return wording.DASH if value is None else units.percent(value)


COLUMNS: tuple[Column[Figures], ...] = (
    value("comm", lambda f: f.comm_s, units.seconds),
    value("compute", lambda f: f.compute_s, units.seconds),
    value("both at once", lambda f: f.overlap_s, units.seconds),
    value("exposed comm", lambda f: f.exposed_comm_s, units.seconds),
    value("overlap", lambda f: f.overlap_ratio, units.percent),
    value("comm/comp", lambda f: f.comm_compute_ratio, units.significant, _NARROW),
    value("copies", lambda f: f.copies_s, units.seconds, _NARROW),
    value("idle", lambda f: f.idle_s, units.seconds),
)
"""The figures of a rank, for terminal and page."""


def share_columns(title: str) -> tuple[Column[Share], ...]:
    """Return the columns of a table of operations; the first is called ``title``."""
    return (
        Column(title, lambda share: share.name, numeric=False),
        Column("count", lambda share: str(share.count)),
        value("bytes", lambda share: share.payload_bytes, units.bytes_),
        value("total", lambda share: share.total_s, units.seconds),
        value("hidden", lambda share: share.hidden_s, units.seconds),
        value("exposed", lambda share: share.exposed_s, units.seconds),
        Column(
            "overlap", lambda s: ratio_as_percent(s.hidden_s / s.total_s if s.total_s else None)
        ),
    )


def device(job: JobFigures) -> str:
    """Say what of the device the traces show."""
    shown = {"GPU kernels" if r.trace.timeline.on_gpu else "CPU operators" for r in job.ranks}
    return wording.joined(sorted(shown))


@dataclass(frozen=True)
class RankLine:
    """A line of the table of ranks: of one, or of all together."""

    name: str
    figures: Figures
    file: str = ""


def _figures(line: RankLine) -> Figures:
    return line.figures


def rank_lines(job: JobFigures) -> list[RankLine]:
    """Return the lines of the ranks; what of a rank is not known is None."""
    return [
        RankLine(str(r.trace.rank), _known(r.figures, r.unavailable), Path(r.trace.file).name)
        for r in job.ranks
    ]


def _known(figures: Figures, unavailable: Iterable[str]) -> Figures:
    unknown: dict[str, Any] = dict.fromkeys({*unavailable} & {*figures.__dataclass_fields__})
    return replace(figures, **unknown)


def rank_columns(job: JobFigures, longest_file: int) -> tuple[Column[RankLine], ...]:
    """Return the columns that have something to say: without a GPU there are no copies."""
    on_gpu = any(rank.trace.timeline.on_gpu for rank in job.ranks)
    return (
        Column("rank", lambda line: line.name, numeric=False),
        *(column.of(_figures) for column in COLUMNS if on_gpu or column.name != "copies"),
        Column(
            "file",
            lambda line: wording.plain(line.file, longest_file),
            numeric=False,
            from_width=_WIDE,
        ),
    )


def suspects(job: JobFigures) -> dict[str, float]:
    """Return kernels that may be communication, with their seconds over all ranks."""
    seconds = totals(one for rank in job.ranks for one in rank.trace.timeline.unknown.items())
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def render_traces(job: JobFigures, screen: Screen, comparison: Comparison | None = None) -> str:
    """Return the tables as text for a terminal."""
    ranks = rank_lines(job)
    if len(ranks) > 1:
        ranks.append(RankLine("all", _known(job.total, unavailable_together(job))))
    screen.lines(job.notices, "yellow")
    screen.line()
    screen.line(f"{device(job)} · {WINDOWS[job.window]}", "dim")
    screen.table(rank_columns(job, 40), ranks)
    if len(job.ranks) > 1 and job.total.kinds:
        screen.line()
        screen.line("all ranks together", "dim")
    for title, shares in (("operation", job.total.kinds), ("asked for in", job.total.phases)):
        if shares:
            screen.line()
            screen.table(share_columns(title), shares)
    idle = idle_rows(job)
    if idle:
        screen.line()
        screen.table(*kind_table(job))
        screen.line()
        screen.table(IDLE_COLUMNS, idle)
    if comparison is not None:
        screen.line()
        screen.line(f"per {comparison.per}, mean of the ranks", "dim")
        for changed, rows in changed_tables(comparison):
            screen.line()
            screen.table(changed, rows)
    screen.line()
    screen.lines([*gap_lines(job), *copy_lines(job), *wait_lines(job)], "dim")
    screen.line()
    for name, spent in suspects(job).items():
        told = f"{wording.plain(name, LONGEST_NAME)}, {units.seconds(spent)}"
        screen.line(f"may be communication: {told}")
    return screen.text()


def copy_lines(job: JobFigures) -> list[str]:
    """Say on which ranks communication ran during copies, without any computation."""
    return [
        f"rank {rank.trace.rank}: {units.seconds(rank.figures.comm_beside_copies_s)} of the exposed"
        " communication ran during copies, without computation"
        for rank in job.ranks
        if rank.figures.comm_beside_copies_s > 0
    ]


def wait_lines(job: JobFigures) -> list[str]:
    """Say how exposed communication divides, and who came last; or why that is not known."""
    if not any(rank.trace.timeline.operations for rank in job.ranks):
        return []
    if job.waits.reason is not None:
        return [f"transfer and waiting are not separated: {job.waits.reason}"]
    lines = []
    for rank in job.ranks:
        if rank.wait is not None:
            transfer = units.seconds(rank.wait.exposed_transfer_s)
            wait = units.seconds(rank.wait.wait_s)
            doubt = rank.wait.wait_s <= job.waits.clock_error_s
            told = " (not significantly different from zero)" if doubt and rank.wait.wait_s else ""
            lines.append(f"rank {rank.trace.rank}: exposed transfer {transfer}, wait {wait}{told}")
    most = [s for s in job.waits.stragglers[:1] if s.stands_out(len(job.ranks))]
    for straggler in most:
        lines.append(
            f"rank {straggler.rank} came last to {units.percent(straggler.share)} of the"
            f" operations, by {units.seconds(straggler.median_late_s)} (median)"
        )
    error = units.seconds(job.waits.clock_error_s)
    lines.append(f"clocks aligned by the ends of the operations, which scatter by ± {error}")
    return lines


MOST_BANDWIDTHS = 20


def render_dumps(
    examinations: Sequence[Examination], link: tuple[str, Link] | None, screen: Screen
) -> str:
    """Return the text for a terminal.

    ``link``: name and figures of the link to compare bandwidths with.
    """
    for one in examinations:
        screen.lines(one.notices, "yellow")
        screen.line()
        screen.line(one.source, "dim")
        for group in one.groups:
            screen.lines(group_lines(group, one.source == "flight recorder"))
        screen.lines(f"not ended: {text}" for text in one.pending)
        if one.bandwidths:
            screen.line()
            screen.table(_columns(link), one.bandwidths[:MOST_BANDWIDTHS])
    screen.line()
    return screen.text()


def group_lines(state: GroupState, recorder: bool) -> list[str]:
    """Say how far a group came, who is behind, and what does not fit.

    ``recorder``: the flight recorder says it; NCCL Inspector only knows calls that ended.
    """
    where = f" at {state.where}" if state.where else ""
    head = f"{state.group}, {len(state.ranks)} ranks: the last collective is {state.last}, "
    lines = [wording.plain(f"{head}{state.name}{where}")]
    by_last: dict[str, list[int]] = {}
    for one in state.missing:
        own = f"the last call was {one.last}, {one.name}" + (
            f" at {one.where}" if one.where else ""
        )
        text = "called none in this group" if one.last is None else own
        by_last.setdefault(text, []).append(one.rank)
    for text, ranks in by_last.items():
        did = "did not enter it" if recorder else "has no record of it"
        lines.append("  " + wording.plain(f"{_named(ranks)} {did}; {text}"))
    if state.unfinished:
        lines.append(f"  {_named(state.unfinished)} entered it and did not end it")
    elif not state.missing and not state.without_dump:
        lines.append("  all ranks entered it and ended it")
    if state.without_dump:
        lines.append(f"  not known of {_named(state.without_dump)}: no dump was given")
    if state.mismatch is not None:
        what = "the order differs" if state.mismatch.what == "order" else "the sizes differ"
        told = "; ".join(f"{_named(r)}: {text}" for text, r in state.mismatch.by_text.items())
        lines.append("  " + wording.plain(f"{what} at {state.mismatch.sequence}: {told}"))
    return lines


def _named(ranks: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(texts)}"


def _columns(link: tuple[str, Link] | None) -> tuple[Column[Bandwidth], ...]:
    columns: tuple[Column[Bandwidth], ...] = (
        Column("collective", lambda row: row.name, numeric=False),
        Column("group", lambda row: wording.plain(row.group, 40), numeric=False, from_width=110),
        Column("ranks", lambda row: str(row.num_ranks)),
        value("bytes", lambda row: row.num_bytes, units.bytes_),
        Column("count", lambda row: str(row.count)),
        value("time", lambda row: row.lasted_s, units.seconds),
        value("busbw", lambda row: row.busbw_byte_per_s, lambda rate: f"{units.bytes_(rate)}/s"),
    )
    if link is None:
        return columns
    name, nominal = link[0], link[1].bandwidth_byte_per_s

    def share(row: Bandwidth) -> str:
        rate = row.busbw_byte_per_s
        return wording.DASH if rate is None else units.percent(rate / nominal)

    return (*columns, Column(f"of {name}", share))
