"""What ``scalebench history`` and a page of several runs say: each series, each change of level."""

from collections.abc import Sequence

from scalebench import units
from scalebench.gate.history import FEWEST_FOR_LEVELS, History, Shift, Trend, trends
from scalebench.records.summary import Summary
from scalebench.report.gate.table import STYLES, metric_phrase, signed_percent
from scalebench.report.tables import layout
from scalebench.report.words import wording

BARS = "▁▂▃▄▅▆▇█"
MOST_BARS = 20
MOST_VALUES = 3


def render_history(history: History, screen: layout.Screen) -> str:
    """Return the series and the changes of level as text for a terminal."""
    screen.line(headline(history), "bold")
    for shift in history.shifts:
        screen.line(_shift_text(shift), STYLES["regressed" if shift.worse else "improved"])
    if history.trends:
        screen.line()
        screen.table(COLUMNS, history.trends, _NARROWING)
    screen.lines(legend(history), "dim")
    return screen.text()


def headline(history: History) -> str:
    """Say in one sentence what became slower or faster."""
    steady = [trend for trend in history.trends if not trend.changed_level]
    worse = [trend for trend in steady if trend.worse]
    better = [trend for trend in steady if trend.better]
    if not history.shifts and not worse and not better:
        return f"no drift and no change of level found in {len(history.runs)} runs"
    found = [
        f"{len(found)} {'series drifts' if len(found) == 1 else 'series drift'} for the {way}"
        for found, way in ((worse, "worse"), (better, "better"))
        if found
    ]
    if history.shifts:
        num = len(history.shifts)
        found.append(f"{num} {'change' if num == 1 else 'changes'} of level")
    return f"{wording.joined(found)}, in {len(history.runs)} runs"


def legend(history: History) -> list[str]:
    """Say what the numbers are, and what these runs do not tell."""
    if not history.trends:
        return ["no two runs have a row in common"]
    lines = [
        "drift: from the first run to the last, with the interval that holds for all lines "
        "together 95 times in 100; smallest findable: the smallest drift for the worse that would "
        "be found 95 times in 100"
    ]
    if len(history.runs) == 2:
        lines.append("two runs: the intervals know how launches differ, not how jobs and hosts do")
    if history.num_short:
        need = f"a change of level needs {FEWEST_FOR_LEVELS} runs"
        lines.append(f"{history.num_short} series are too short: {need}")
    return lines


def sparkline(trend: Trend) -> str:
    """Draw the values as bars; noise that hides the smallest findable drift looks flat."""
    values = trend.values[-MOST_BARS:]
    low, high = min(values), max(values)
    span = max(high - low, (trend.smallest_drift or 0.0) * low)
    middle = (low + high) / 2
    places = [0.5 + (value - middle) / span if span else 0.5 for value in values]
    return "".join(BARS[min(int(place * len(BARS)), len(BARS) - 1)] for place in places)


def values_text(trend: Trend) -> str:
    """Write all values where they are few, else the first and the last: ``"25.0 → 26.2 ms"``."""
    writer = units.seconds if trend.metric == "step_s" else units.percent
    some = trend.values if len(trend.values) <= MOST_VALUES else (trend.values[0], trend.values[-1])
    texts = [writer(value) for value in some]
    unit = texts[-1].rpartition(" ")[2]
    if all(text.endswith(f" {unit}") for text in texts):
        texts = [text.removesuffix(f" {unit}") for text in texts[:-1]] + texts[-1:]
    return " → ".join(texts)


def drift_text(trend: Trend) -> str:
    """Write the drift with its interval, ``"+4.9 % (+3.1 to +6.8)"``."""
    if trend.changed_level:
        return "changed level"
    told = f"{signed_percent(trend.drift)} %"
    if trend.low is None or trend.high is None:
        return told
    return f"{told} ({signed_percent(trend.low)} to {signed_percent(trend.high)})"


def smallest_text(trend: Trend) -> str:
    """Write the smallest drift that could have been found; a dash where nothing tells."""
    seen = trend.smallest_drift
    return wording.DASH if seen is None else units.rough_percent(seen)


def _style(trend: Trend) -> str:
    return STYLES["regressed"] if trend.worse else STYLES["improved"] if trend.better else ""


COLUMNS: tuple[layout.Column[Trend], ...] = (
    layout.CASE,
    layout.RANKS,
    layout.Column("metric", lambda trend: metric_phrase(trend.metric), numeric=False),
    layout.Column("values", values_text),
    layout.Column("over the\nruns", sparkline, numeric=False),
    layout.Column("drift", lambda trend: drift_text(trend).replace(" (", "\n("), style=_style),
    layout.Column("smallest\nfindable", smallest_text),
)


def history_table(summaries: Sequence[Summary]) -> layout.PlainTable | None:
    """Return the same as a table of the page; None: the runs have no series in common."""
    found = trends(summaries)
    if not found:
        return None
    note = (
        "In order of time. Drift: from the first run to the last, with the interval that holds for"
        " all lines together 95 times in 100. Smallest findable: the smallest drift for the worse"
        " that would be found 95 times in 100."
    )
    return layout.PlainTable.of(f"History of {len(summaries)} runs", note, COLUMNS, found)


_NARROWING = (
    *layout.folded(9, name="values"),
    *layout.folded(*layout.CASE_WIDTHS[1:]),
    *layout.without("smallest findable", "values"),
)


def _shift_text(shift: Shift) -> str:
    writer = units.seconds if shift.metric == "step_s" else units.percent
    where = f"{wording.plain(shift.case, 64)}, N={shift.world_size}, {metric_phrase(shift.metric)}"
    levels = f"{writer(shift.before)} → {writer(shift.after)} ({signed_percent(shift.change)} %)"
    since = f"since {wording.plain(shift.run_id, 80)} of {wording.plain(shift.created, 40)}"
    return f"{where}: {levels} {since}"
