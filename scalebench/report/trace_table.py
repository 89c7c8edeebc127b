"""The terminal table of ``scalebench trace``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from scalebench import units
from scalebench.report import wording
from scalebench.report.terminal import NARROWEST, printed, to_ascii
from scalebench.trace.analysis import Figures, Share
from scalebench.trace.job import JobFigures

WINDOWS = {"file": "the whole file", "steps": "whole profiler steps only"}

LONGEST_NAME = 60
_WIDE = 110
_NARROW = 84


@dataclass(frozen=True)
class FigureColumn:
    """One column of figures.

    Attributes:
        from_width: Columns that a terminal needs for it to be shown.
    """

    header: str
    text: Callable[[Figures], str]
    from_width: int = 0


COLUMNS = (
    FigureColumn("comm", lambda f: units.seconds(f.comm_s)),
    FigureColumn("compute", lambda f: units.seconds(f.compute_s)),
    FigureColumn("both at once", lambda f: units.seconds(f.overlap_s)),
    FigureColumn("exposed comm", lambda f: units.seconds(f.exposed_comm_s)),
    FigureColumn("overlap", lambda f: ratio_as_percent(f.overlap_ratio)),
    FigureColumn("comm/comp", lambda f: ratio(f.comm_compute_ratio), _NARROW),
    FigureColumn("copies", lambda f: units.seconds(f.copies_s), _NARROW),
    FigureColumn("idle", lambda f: units.seconds(f.idle_s)),
)
"""The figures of a rank, for terminal and page."""

SHARE_HEADERS = ("count", "bytes", "total", "hidden", "exposed", "overlap")


def ratio_as_percent(value: float | None) -> str:
    """Write a ratio as percent, a dash where there is none."""
    return wording.DASH if value is None else units.percent(value)


def ratio(value: float | None) -> str:
    """Write a plain ratio, a dash where there is none."""
    return wording.DASH if value is None else units.significant(value)


def share_cells(share: Share) -> tuple[str, ...]:
    """Return the cells of a line under `SHARE_HEADERS`."""
    return (
        str(share.count),
        wording.DASH if share.payload_bytes is None else units.bytes_(share.payload_bytes),
        units.seconds(share.total_s),
        units.seconds(share.hidden_s),
        units.seconds(share.exposed_s),
        ratio_as_percent(share.hidden_s / share.total_s if share.total_s else None),
    )


def device(job: JobFigures) -> str:
    """Say what of the device the traces show."""
    shown = {"GPU kernels" if r.trace.timeline.on_gpu else "CPU operators" for r in job.ranks}
    return wording.joined(sorted(shown))


def columns_of(job: JobFigures) -> tuple[FigureColumn, ...]:
    """Return the columns that have something to say: without a GPU there are no copies."""
    on_gpu = any(rank.trace.timeline.on_gpu for rank in job.ranks)
    return tuple(column for column in COLUMNS if on_gpu or column.header != "copies")


def suspects(job: JobFigures) -> dict[str, float]:
    """Return kernels that may be communication, with their seconds over all ranks."""
    seconds: dict[str, float] = {}
    for rank in job.ranks:
        for name, spent in rank.trace.timeline.unknown.items():
            seconds[name] = seconds.get(name, 0.0) + spent
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def render_traces(
    job: JobFigures, width: int = 100, color: bool = False, ascii_only: bool = False
) -> str:
    """Return the tables as text for a terminal.

    Args:
        job: The figures of one or several ranks.
        width: Columns of the terminal.
        color: Whether ANSI styles are written.
        ascii_only: Write nothing but ASCII.
    """
    width = max(width, NARROWEST)

    def text(content: str, style: str = "") -> Text:
        return Text(to_ascii(content) if ascii_only else content, style=style)

    parts: list[RenderableType] = [text(notice, "yellow") for notice in job.notices]
    what = f"{device(job)} · {WINDOWS[job.window]}"
    parts += [Text(""), text(what, "dim"), _table(_rank_lines(job, width), ascii_only)]
    several = len(job.ranks) > 1
    if several and job.total.kinds:
        parts += [Text(""), text("all ranks together", "dim")]
    for title, shares in (("operation", job.total.kinds), ("asked for in", job.total.phases)):
        if shares:
            head = (title, *SHARE_HEADERS)
            lines = [(share.name, *share_cells(share)) for share in shares]
            parts += [Text(""), _table([head, *lines], ascii_only)]
    parts += [Text(""), *(text(line, "dim") for line in wait_lines(job))]
    doubtful = [
        text(f"may be communication: {wording.plain(name, LONGEST_NAME)}, {units.seconds(spent)}")
        for name, spent in suspects(job).items()
    ]
    return printed([*parts, Text(""), *doubtful], width, color, ascii_only)


def wait_lines(job: JobFigures) -> list[str]:
    """Say how exposed communication divides, and who came last; or why that cannot be told."""
    if job.waits.reason is not None:
        return [f"transfer and wait are not told apart: {job.waits.reason}"]
    lines = []
    for rank in job.ranks:
        if rank.wait is not None:
            transfer = units.seconds(rank.wait.exposed_transfer_s)
            wait = units.seconds(rank.wait.wait_s)
            doubt = rank.wait.wait_s <= job.waits.clock_error_s
            told = " (cannot be told from zero)" if doubt and rank.wait.wait_s else ""
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


def _rank_lines(job: JobFigures, width: int) -> list[tuple[str, ...]]:
    columns = [column for column in columns_of(job) if width >= column.from_width]
    with_file = width >= _WIDE
    lines = [("rank", *(column.header for column in columns), *(["file"] * with_file))]
    for rank in job.ranks:
        name = wording.plain(Path(rank.trace.file).name, 40)
        cells = (column.text(rank.figures) for column in columns)
        lines.append((str(rank.trace.rank), *cells, *([name] * with_file)))
    if len(job.ranks) > 1:
        lines.append(("all", *(column.text(job.total) for column in columns), *([""] * with_file)))
    return lines


def _table(lines: Sequence[Sequence[str]], ascii_only: bool) -> Table:
    table = Table(
        box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold"
    )
    for place, header in enumerate(lines[0]):
        table.add_column(
            Text(header),
            justify="left" if place == 0 or header == "file" else "right",
            no_wrap=True,
        )
    for line in lines[1:]:
        table.add_row(*(Text(to_ascii(cell) if ascii_only else cell) for cell in line))
    return table
