"""What ``scalebench history`` prints."""

from rich.console import RenderableType

from scalebench import units
from scalebench.gate.history import History, Shift
from scalebench.report.gate.table import STYLES, metric_phrase, signed_percent
from scalebench.report.tables.terminal import NARROWEST, line, printed
from scalebench.report.words import wording


def render_history(
    told: History, width: int = 100, color: bool = False, ascii_only: bool = False
) -> str:
    """Return the changes of level over many runs as text for a terminal, in order of time."""
    parts: list[RenderableType] = []
    for shift in told.shifts:
        style = STYLES["regressed" if shift.worse else "improved"]
        parts.append(line(_shift_text(shift), ascii_only, style))
    if not told.shifts:
        parts.append(line("no change of level found", ascii_only, "bold"))
    looked = f"{len(told.runs)} runs, {told.num_series} series of step time and efficiency"
    parts.append(line(looked, ascii_only, "dim"))
    if told.num_short:
        parts.append(line(f"{told.num_short} series are too short", ascii_only, "dim"))
    return printed(parts, max(width, NARROWEST), color, ascii_only)


def _shift_text(shift: Shift) -> str:
    writer = units.seconds if shift.metric == "step_s" else units.percent
    where = f"{wording.plain(shift.case, 64)}, N={shift.world_size}, {metric_phrase(shift.metric)}"
    levels = f"{writer(shift.before)} → {writer(shift.after)} ({signed_percent(shift.change)} %)"
    since = f"since {wording.plain(shift.run_id, 80)} of {wording.plain(shift.created, 40)}"
    return f"{where}: {levels} {since}"
