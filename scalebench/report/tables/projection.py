"""Projections for the terminal: larger numbers of ranks, and what failures leave of the time."""

from collections.abc import Sequence

from scalebench import units
from scalebench.analysis.projection.recovery import ProjectedRecovery, ProjectedRow, Projection
from scalebench.costmodel.recovery import LLAMA_3
from scalebench.grouping import by_key
from scalebench.report.tables.layout import (
    FOLDED,
    RANKS,
    SHRINKING_CASE,
    Column,
    Screen,
    value,
    value_of_each,
    without,
)
from scalebench.report.tables.predictions import percent
from scalebench.report.words import wording

NOTHING = wording.DASH


def render_projection(projection: Projection, screen: Screen) -> str:
    """Return the table as text; everything in it is predicted."""
    rows = [row for row in projection.rows if row.step_s is not None]
    screen.title("projected", f"from run {wording.plain(projection.run_id, 80)}")
    if not rows:
        screen.lines(["Nothing can be projected.", *_refused(projection)])
        return screen.text()
    has_bubbles = any(row.bubble_s for row in projection.rows)
    has_memory = any(row.share and row.share.peak_memory_bytes for row in projection.rows)
    has_parts = any(row.exposed_transfer_s is not None for row in rows)
    has_loss = any(row.speedup_to_loss for row in projection.rows)
    needed = any(row.statistical_efficiency not in (None, 1.0) for row in rows)
    wide = screen.width >= 100 + 10 * (has_bubbles + has_memory + 2 * has_loss)
    shown = {
        **{"bubble": has_bubbles, "speedup to a loss": has_loss, "samples needed": needed},
        **{"peak memory": has_memory, "batch all/rank": wide},
        **dict.fromkeys(("slower computation", "transfer"), has_parts),
    }
    kept = [column for column in COLUMNS if shown.get(column.name, True)]
    screen.table(kept, rows, (*(DISPENSABLE if has_loss else ()), *FOLDED))
    screen.lines(_notes(projection), "dim")
    return screen.text()


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


COLUMNS: tuple[Column[ProjectedRow], ...] = (
    SHRINKING_CASE,
    RANKS,
    Column("batch\nall/rank", lambda r: f"{r.global_batch}/{r.rank_batch}"),
    value("step", lambda r: r.step_s, units.seconds),
    Column("90 % interval", lambda r: wording.span_s(r.low_s, r.high_s)),
    value("samples/s", lambda r: r.throughput, units.count),
    value("efficiency", lambda r: r.efficiency, lambda e: f"{100 * e:.3g} %"),
    Column("slower\ncomputation", lambda r: _of_step(r, r.compute_inflation_s)),
    Column("bubble", lambda r: _of_step(r, r.bubble_s)),
    Column("transfer", lambda r: _of_step(r, r.exposed_transfer_s)),
    value("peak\nmemory", lambda r: r.share.peak_memory_bytes if r.share else None, units.bytes_),
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
    outside = dict.fromkeys(text for row in projection.rows for text in row.outside)
    notes += [f"beyond its support: {text}" for text in outside]
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
    by_case = by_key(
        ((row.suite, row.case), row) for row in projection.rows if row.speedup_to_loss is not None
    )
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


DOUBTFUL = 0.012
"""Share of the time that the formulas may leave out without a word."""

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0


AT_INTERVAL = "at your\ninterval"


def duration(seconds: float) -> str:
    """Write a long time as people say it: ``"52 s"``, ``"18.3 min"``, ``"7.9 h"``, ``"12 d"``."""
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= 2 * unit_s:
            return f"{units.significant(seconds / unit_s)} {unit}"
    return units.seconds(seconds)


def _share_percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share >= 0.01 else f"{100 * share:.2f} %"


RECOVERY_COLUMNS: tuple[Column[ProjectedRecovery], ...] = (
    SHRINKING_CASE,
    RANKS,
    Column("method", lambda row: wording.plain(row.method, 32), numeric=False),
    Column("a failure\nevery", lambda row: duration(row.mtbf_s)),
    Column("save", lambda row: units.seconds(row.cost_s)),
    value("restart", lambda row: row.restart_s, duration),
    Column("save every\n(Young)", lambda row: duration(row.young_interval_s)),
    Column("save every\n(Daly)", lambda row: duration(row.daly_interval_s)),
    *value_of_each(
        {"training": "trains", "save": "saves", "lost": "lost", "restart": "restarts"},
        lambda row, part: getattr(row.at_optimum, part) if row.at_optimum else None,
        _share_percent,
    ),
    value(AT_INTERVAL, lambda row: row.at_interval, lambda one: _share_percent(one.training)),
)


def render_recovery(rows: Sequence[ProjectedRecovery], run_id: str, screen: Screen) -> str:
    """Return the table as text; everything in it is derived."""
    given = any(row.at_interval for row in rows)
    shown = [column for column in RECOVERY_COLUMNS if given or column.header != AT_INTERVAL]
    goes = ("save every (Young)", "saves", "restarts")
    screen.title("with failures", f"from run {wording.plain(run_id, 80)}")
    screen.table(shown, rows, (*without(*goes, "lost", "save"), *FOLDED))
    screen.lines(_recovery_notes(rows), "dim")
    return screen.text()


def _names(rows: Sequence[ProjectedRecovery]) -> list[str]:
    return [f"{wording.plain(r.case, 64)} {wording.plain(r.method, 32)} at N={r.world_size}"
            for r in rows]  # fmt: skip


def _formula_doubts(rows: Sequence[ProjectedRecovery]) -> list[str]:
    late = {
        name: row.durable_after_s / (row.mtbf_s + (row.restart_s or 0.0))
        for name, row in zip(_names(rows), rows, strict=True)
        if row.at_optimum is not None and row.durable_after_s > DOUBTFUL * row.mtbf_s
    }
    if not late:
        return []
    return [
        f"the formulas do not hold for {wording.joined(list(late))}: a checkpoint is on the disk "
        f"only some time after its save, so failures take up to {100 * max(late.values()):.1f} % "
        "more of the time"
    ]


def _recovery_notes(rows: Sequence[ProjectedRecovery]) -> list[str]:
    sizes = sorted({row.measured_world_size for row in rows if row.measured_world_size})
    measured = [
        f"save and restart, unless given, as measured at N={', '.join(map(str, sizes))}: a larger "
        "job has other costs"
    ]
    return [
        *_formula_doubts(rows),
        "derived, not measured: failures at random, saved at the best interval (Young 1974, "
        "Daly 2006); trains: share of the time in which steps are made that are not lost",
        *(measured if sizes else []),
        f"for comparison: {LLAMA_3.name} on {LLAMA_3.num_devices:,} GPUs had a failure every "
        f"{duration(LLAMA_3.mtbf_s)} and trained more than {100 * LLAMA_3.goodput:.0f} % of the "
        f"time ({LLAMA_3.source})",
        *dict.fromkeys(row.reason for row in rows if row.reason),
    ]
