"""How often to save, and what failures leave of the time, as a table for the terminal."""

from collections.abc import Callable, Sequence

from rich.console import RenderableType

from scalebench import units
from scalebench.analysis.projection.recovery import NUM_FAILURES, ProjectedRecovery, TimeShares
from scalebench.costmodel.recovery.published import JOBS
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
from scalebench.report.tables.terminal import line, printed, titled
from scalebench.report.words import wording

DOUBTFUL = 0.012
"""Shares of the time that differ by more than formula and simulation do where both hold."""

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0


SIMULATED = "trains,\nsimulated"
SIMULATED_NAME = SIMULATED.replace("\n", " ")
"""It goes early on a narrow terminal: where it differs, a line below the table says so."""
AT_INTERVAL = "at your\ninterval"


def duration(seconds: float) -> str:
    """Write a long time as people say it: ``"52 s"``, ``"18.3 min"``, ``"7.9 h"``, ``"12 d"``."""
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= 2 * unit_s:
            return f"{units.significant(seconds / unit_s)} {unit}"
    return units.seconds(seconds)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share >= 0.01 else f"{100 * share:.2f} %"


def _part(name: str) -> Callable[[ProjectedRecovery], str]:
    def text(row: ProjectedRecovery) -> str:
        return _percent(getattr(row.at_optimum, name)) if row.at_optimum else wording.DASH

    return text


def _training(shares: TimeShares | None) -> str:
    return _percent(shares.training) if shares else wording.DASH


def _at_interval(row: ProjectedRecovery) -> str:
    return _percent(row.at_interval.training) if row.at_interval else wording.DASH


COLUMNS: tuple[Column[ProjectedRecovery], ...] = (
    SHRINKING_CASE,
    RANKS,
    Column("method", lambda row: wording.plain(row.method, 32), numeric=False),
    Column("a failure\nevery", lambda row: duration(row.mtbf_s)),
    Column("save", lambda row: units.seconds(row.cost_s)),
    value("restart", lambda row: row.restart_s, duration),
    Column("save every\n(Young)", lambda row: duration(row.young_interval_s)),
    Column("save every\n(Daly)", lambda row: duration(row.daly_interval_s)),
    Column("trains", _part("training")),
    Column(SIMULATED, lambda row: _training(row.simulated)),
    Column("failures\nin clusters", lambda row: _training(row.simulated_clustered)),
    Column("saves", _part("save")),
    Column("lost", _part("lost")),
    Column("restarts", _part("restart")),
    Column(AT_INTERVAL, _at_interval),
)


def render_recovery(
    rows: Sequence[ProjectedRecovery],
    run_id: str,
    width: int = 100,
    color: bool = False,
    ascii_only: bool = False,
) -> str:
    """Return the table as text; everything in it is derived."""
    return printed(_parts(rows, run_id, width, ascii_only), width, color, ascii_only)


def _parts(
    rows: Sequence[ProjectedRecovery], run_id: str, width: int, ascii_only: bool
) -> list[RenderableType]:
    given = any(row.at_interval for row in rows)
    shown = [column for column in COLUMNS if given or column.header != AT_INTERVAL]
    narrowing = (
        *without(
            "failures in clusters",
            "save every (Young)",
            SIMULATED_NAME,
            "saves",
            "restarts",
            "lost",
            "save",
        ),
        *FOLDED,
    )
    columns = fit(shown, rows, width, ascii_only, narrowing)
    title = titled("with failures", f"from run {wording.plain(run_id, 80)}", ascii_only)
    return [
        title,
        table(columns, rows, ascii_only),
        *(line(n, ascii_only, "dim") for n in _notes(rows)),
    ]


def _names(rows: Sequence[ProjectedRecovery]) -> list[str]:
    return [f"{wording.plain(r.case, 64)} {wording.plain(r.method, 32)} at N={r.world_size}"
            for r in rows]  # fmt: skip


def _doubts(rows: Sequence[ProjectedRecovery]) -> list[str]:
    """Say where formula and simulation are further apart than the simulation scatters."""
    apart = {
        name: abs(row.formula_error)
        for name, row in zip(_names(rows), rows, strict=True)
        if row.formula_error is not None and abs(row.formula_error) > DOUBTFUL
    }
    if not apart:
        return []
    return [
        f"the formulas do not hold for {wording.joined(list(apart))}: the simulation differs by "
        f"up to {100 * max(apart.values()):.1f} % of the time; trust the simulation there"
    ]


def _notes(rows: Sequence[ProjectedRecovery]) -> list[str]:
    sizes = sorted({row.measured_world_size for row in rows if row.measured_world_size})
    measured = [
        f"save and restart, unless given, as measured at N={', '.join(map(str, sizes))}: a larger "
        "job has other costs"
    ]
    llama = JOBS[0]
    return [
        *_doubts(rows),
        f"simulated: {NUM_FAILURES:,} failures, one by one, with the time until a checkpoint is on "
        "the disk; in clusters: failures that follow one another (Weibull, shape 0.5)",
        "derived, not measured: failures at random, saved at the best interval (Young 1974, "
        "Daly 2006); trains: share of the time in which steps are made that are not lost",
        *(measured if sizes else []),
        f"for comparison: {llama.name} on {llama.num_devices:,} GPUs had a failure every "
        f"{duration(llama.mtbf_s)} and trained more than {100 * (llama.goodput or 0):.0f} % of the "
        f"time ({llama.source})",
        *dict.fromkeys(row.reason for row in rows if row.reason),
    ]
