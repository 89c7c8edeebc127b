"""A projection as a table for the terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from scalebench import units
from scalebench.projection import MeasuredShare, ProjectedRow, Projection
from scalebench.report import wording
from scalebench.report.predictions import percent
from scalebench.report.terminal import CASE_WIDTHS, line, printed, to_ascii

NOTHING = wording.DASH
HEADER = (
    *("case", "N", "batch all/rank", "step", "90 % interval", "samples/s", "efficiency"),
    *("compute inflation", "bubble", "exposed transfer", "peak memory"),
)


def render_projection(
    projection: Projection, width: int = 100, color: bool = False, ascii_only: bool = False
) -> str:
    """Return the table as text; everything in it is predicted."""
    return printed(_parts(projection, width, ascii_only), width, color, ascii_only)


def _parts(projection: Projection, width: int, ascii_only: bool) -> list[RenderableType]:
    shown = to_ascii if ascii_only else str
    has_bubbles = any(row.bubble_s for row in projection.rows)
    dropped = set() if has_bubbles else {"bubble"}
    has_memory = any(row.share and row.share.peak_memory_bytes for row in projection.rows)
    if not has_memory:
        dropped.add("peak memory")
    if width < 100 + 10 * (has_bubbles + has_memory):
        dropped.add("batch all/rank")
    keep = [i for i, name in enumerate(HEADER) if name not in dropped]
    table = Table(
        box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold"
    )
    for index in keep:
        if index == 0:
            table.add_column(HEADER[0], max_width=CASE_WIDTHS[0])
        else:
            header = "\n".join(HEADER[index].split(" ")) if "interval" not in HEADER[index] else ""
            table.add_column(header or HEADER[index], justify="right", no_wrap=True)
    previous = None
    for row in projection.rows:
        if row.step_s is None:
            continue
        cells = list(_cells(row))
        if previous == row.case:
            cells[0] = ""
        previous = row.case
        table.add_row(*(Text(shown(cells[index])) for index in keep))
    title = Text.assemble(
        ("projected", "bold"), (f"  from run {wording.plain(projection.run_id, 80)}", "dim")
    )
    notes = [line(note, ascii_only, "dim") for note in _notes(projection)]
    return [title, table, *notes]


def _cells(row: ProjectedRow) -> tuple[str, ...]:
    assert row.step_s is not None
    interval = NOTHING
    if row.low_s is not None and row.high_s is not None:
        interval = f"{units.seconds(row.low_s)} to {units.seconds(row.high_s)}"

    def share(seconds: float | None) -> str:
        if seconds is None or row.step_s is None:
            return NOTHING
        return f"{100 * seconds / row.step_s:.1f} %".replace("-", wording.MINUS)

    return (
        wording.plain(row.case, 64),
        str(row.world_size),
        f"{row.global_batch}/{row.rank_batch}",
        units.seconds(row.step_s),
        interval,
        NOTHING if row.throughput is None else units.count(row.throughput),
        NOTHING if row.efficiency is None else f"{100 * row.efficiency:.3g} %",
        share(row.compute_inflation_s),
        share(row.bubble_s),
        share(row.exposed_transfer_s),
        NOTHING if row.share is None else _memory(row.share),
    )


def _memory(share: MeasuredShare) -> str:
    return NOTHING if share.peak_memory_bytes is None else units.bytes_(share.peak_memory_bytes)


def _notes(projection: Projection) -> list[str]:
    notes = [f"predicted, not measured; {', '.join(projection.assumptions)}"]
    if projection.typical_error is None:
        notes.append("the model could not be held against any measured row of this run")
    else:
        rows = f"{projection.num_scored} row{'s' if projection.num_scored > 1 else ''}"
        error = percent(projection.typical_error)
        notes.append(f"typical error of the model where it was held against {rows}: {error}")
    why = dict.fromkeys(row.interval_reason for row in projection.rows if row.interval_reason)
    notes += [f"no interval: {reason}" for reason in why]
    notes += [f"beyond its support: {text}" for text in _distinct(projection)]
    refused: dict[str, list[str]] = {}
    for row in projection.rows:
        place = f"{wording.plain(row.case, 64)}, N={row.world_size}"
        if row.reason:
            refused.setdefault(row.reason, []).append(place)
        elif row.share is not None and row.share.reason:
            why_not = f"no share measured: {wording.plain(row.share.reason)}"
            refused.setdefault(why_not, []).append(place)
    if any(row.share and row.share.step_s for row in projection.rows):
        notes.append("computation and peak memory: one rank's share, measured here and alone")
    return [*notes, *(f"{'; '.join(places)}: {why}" for why, places in refused.items())]


def _distinct(projection: Projection) -> list[str]:
    return list(dict.fromkeys(text for row in projection.rows for text in row.outside))
