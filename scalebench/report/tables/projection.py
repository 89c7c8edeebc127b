"""A projection as a table for the terminal."""

from rich.console import RenderableType

from scalebench import units
from scalebench.analysis.projection.rows import ProjectedRow, Projection
from scalebench.report.tables.layout import (
    FOLDED,
    RANKS,
    SHRINKING_CASE,
    Column,
    fit,
    table,
    value,
    without,
)
from scalebench.report.tables.predictions import percent
from scalebench.report.tables.terminal import line, printed, titled
from scalebench.report.words import wording

NOTHING = wording.DASH


def render_projection(
    projection: Projection, width: int = 100, color: bool = False, ascii_only: bool = False
) -> str:
    """Return the table as text; everything in it is predicted."""
    return printed(_parts(projection, width, ascii_only), width, color, ascii_only)


def _parts(projection: Projection, width: int, ascii_only: bool) -> list[RenderableType]:
    rows = [row for row in projection.rows if row.step_s is not None]
    title = titled("projected", f"from run {wording.plain(projection.run_id, 80)}", ascii_only)
    if not rows:
        refused = ["Nothing can be projected.", *_refused(projection)]
        return [title, *(line(said, ascii_only) for said in refused)]
    has_bubbles = any(row.bubble_s for row in projection.rows)
    has_memory = any(row.share and row.share.peak_memory_bytes for row in projection.rows)
    has_loss = any(row.speedup_to_loss for row in projection.rows)
    dropped = set() if has_bubbles else {"bubble"}
    if not has_loss:
        dropped.add("speedup to a loss")
    if all(row.statistical_efficiency in (None, 1.0) for row in rows):
        dropped.add("samples needed")
    if not has_memory:
        dropped.add("peak memory")
    if width < 100 + 10 * (has_bubbles + has_memory + 2 * has_loss):
        dropped.add("batch all/rank")
    kept = [column for column in COLUMNS if column.name not in dropped]
    notes = [line(note, ascii_only, "dim") for note in _notes(projection)]
    narrowing = (*(DISPENSABLE if has_loss else ()), *FOLDED)
    columns = fit(kept, rows, width, ascii_only, narrowing)
    return [title, table(columns, rows, ascii_only), *notes]


def _interval(row: ProjectedRow) -> str:
    if row.low_s is None or row.high_s is None:
        return NOTHING
    return f"{units.seconds(row.low_s)} to {units.seconds(row.high_s)}"


def _speedup_to_loss(row: ProjectedRow) -> str:
    if row.speedup_to_loss is None:
        return NOTHING
    known = f"{row.speedup_to_loss:.3g}{wording.TIMES}"
    if row.speedup_to_loss_low is None or row.speedup_to_loss_high is None:
        return known
    return f"{known} ({row.speedup_to_loss_low:.3g}–{row.speedup_to_loss_high:.3g})"


def _of_step(row: ProjectedRow, seconds: float | None) -> str:
    if seconds is None or row.step_s is None:
        return NOTHING
    return f"{100 * seconds / row.step_s:.1f} %".replace("-", wording.MINUS)


def _peak_memory_bytes(row: ProjectedRow) -> int | None:
    return row.share.peak_memory_bytes if row.share else None


COLUMNS: tuple[Column[ProjectedRow], ...] = (
    SHRINKING_CASE,
    RANKS,
    Column("batch\nall/rank", lambda r: f"{r.global_batch}/{r.rank_batch}"),
    value("step", lambda r: r.step_s, units.seconds),
    Column("90 % interval", _interval),
    value("samples/s", lambda r: r.throughput, units.count),
    value("efficiency", lambda r: r.efficiency, lambda e: f"{100 * e:.3g} %"),
    Column("slower\ncomputation", lambda r: _of_step(r, r.compute_inflation_s)),
    Column("bubble", lambda r: _of_step(r, r.bubble_s)),
    Column("transfer", lambda r: _of_step(r, r.exposed_transfer_s)),
    value("peak\nmemory", _peak_memory_bytes, units.bytes_),
    value("samples\nneeded", lambda r: r.statistical_efficiency, lambda e: f"{1 / e:.3g}×"),
    Column("speedup\nto a loss", _speedup_to_loss),
)
DISPENSABLE = without("slower computation", "transfer", "samples/s", "samples needed")
"""Columns that a narrow terminal leaves out where the time to a loss is asked for."""


def _notes(projection: Projection) -> list[str]:
    notes = [f"predicted, not measured; {', '.join(projection.assumptions)}"]
    if projection.typical_error is None:
        notes.append("the model could not be compared with any measured row of this run")
    else:
        rows = f"{projection.num_scored} row{'s' if projection.num_scored > 1 else ''}"
        error = percent(projection.typical_error)
        notes.append(f"typical error of the model where it was compared with {rows}: {error}")
    notes += _time_to_loss(projection)
    why = dict.fromkeys(row.interval_reason for row in projection.rows if row.interval_reason)
    notes += [f"no interval: {reason}" for reason in why]
    notes += [f"beyond its support: {text}" for text in _distinct(projection)]
    if any(row.share and row.share.step_s for row in projection.rows):
        notes.append("computation and peak memory: one rank's shard, measured here and alone")
    return [*notes, *_refused(projection)]


def _refused(projection: Projection) -> list[str]:
    """Say what is not projected, and which shards were not measured: one line for each reason."""
    refused: dict[str, list[str]] = {}
    for row in projection.rows:
        place = f"{wording.plain(row.case, 64)}, N={row.world_size}"
        if row.reason:
            refused.setdefault(row.reason, []).append(place)
        elif row.share is not None and row.share.reason:
            why_not = f"no shard measured: {wording.plain(row.share.reason)}"
            refused.setdefault(why_not, []).append(place)
    return [f"{'; '.join(places)}: {why}" for why, places in refused.items()]


def _time_to_loss(projection: Projection) -> list[str]:
    """Say at which size each case reaches a loss soonest, and what that rests on."""
    by_case: dict[tuple[str, str], list[ProjectedRow]] = {}
    for row in projection.rows:
        if row.speedup_to_loss is not None:
            by_case.setdefault((row.suite, row.case), []).append(row)
    if not by_case:
        return []
    scales = {row.noise_scale for rows in by_case.values() for row in rows if row.noise_scale}
    told = wording.joined([f"{wording.plus_minus(scale)} samples" for scale in scales])
    notes = [
        f"samples needed and speedup to a loss: against plain on one rank, by a gradient noise "
        f"scale of {told}, each batch at its best learning rate; in brackets with step and noise "
        "scale at the ends of their intervals"
    ]
    for (_, case), rows in by_case.items():
        best = max(rows, key=lambda row: row.speedup_to_loss or 0.0)
        further = [row.world_size for row in rows if row.world_size > best.world_size]
        then = "more ranks take longer" if further else "the largest number projected"
        notes.append(
            f"{wording.plain(case, 64)} reaches a loss soonest at N={best.world_size} ({then})"
        )
    return notes


def _distinct(projection: Projection) -> list[str]:
    return list(dict.fromkeys(text for row in projection.rows for text in row.outside))
