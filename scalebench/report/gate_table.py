"""The terminal tables of ``scalebench compare``, ``gate`` and ``history``."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from scalebench import units
from scalebench.gate.history import FEWEST_FOR_LEVELS, History, Shift, Trend, trends
from scalebench.gate.metrics import METRICS, RECOVERY, count_metric, named_metric
from scalebench.gate.result import (
    SAME_RUN,
    SEVERITY,
    SUITES,
    WORSE,
    GateResult,
    Mismatch,
    RowVerdict,
)
from scalebench.grouping import by_key
from scalebench.records.summary import Summary
from scalebench.report.tables import layout
from scalebench.report.tables.layout import (
    CASE,
    CASE_WIDTHS,
    RANKS,
    Column,
    Screen,
    fit,
    folded,
    names,
    without,
)
from scalebench.report.words import wording

LONGEST_TEXT = 240
MOST_EXPLAINED = 12

STYLES = {
    **dict.fromkeys(("regressed", "probably regressed", "missing", "failed"), "bold red"),
    **dict.fromkeys(("not comparable", "inconclusive", "no change seen"), "yellow"),
    **{"improved": "green", "not worse": "dim", "unchanged": "dim", "passed": "bold green"},
}

_OF_TIMES = {"regressed": "slower", "improved": "faster", "not worse": "no slowdown"}
_OF_OTHERS = {"regressed": "worse", "improved": "better"}

_PHRASES = {metric.name: metric.phrase for metric in METRICS}
BARS = "▁▂▃▄▅▆▇█"
MOST_BARS = 20
MOST_VALUES = 3


def metric_phrase(name: str) -> str:
    """Return what people call a metric."""
    if name in _PHRASES:
        return _PHRASES[name]
    for settings in RECOVERY:
        if name.endswith(settings.name):
            return named_metric(wording.plain(name, 60), settings).phrase
    return count_metric(wording.plain(name, 40).removesuffix("_count")).phrase


def verdict_word(row: RowVerdict) -> str:
    """Return what people call a verdict: ``"probably slower"`` of a time."""
    words = _OF_TIMES if row.unit == "s" else _OF_OTHERS
    sure = row.verdict.removeprefix("probably ")
    return row.verdict.replace(sure, words.get(sure, sure))


def is_quiet(row: RowVerdict) -> bool:
    """Tell whether a row is only counted: nothing changed, or nothing is seen and none asks."""
    unseen = row.verdict in ("no change seen", "not worse", "inconclusive", "not comparable")
    return row.verdict == "unchanged" or (unseen and not row.decides)


def worst_first(rows: Sequence[RowVerdict]) -> list[RowVerdict]:
    """Return rows in the order in which a reader wants them: what decides, then by severity."""
    return sorted(rows, key=lambda row: (not row.decides, SEVERITY.index(row.verdict)))


def place(row: RowVerdict) -> str:
    """Name what a verdict is about: ``"ddp, N=2, step time"``."""
    return f"{wording.plain(row.case, 64)}, N={row.world_size}, {metric_phrase(row.metric)}"


def verdict_text(row: RowVerdict, further: str = "; repeat {} more times to know") -> str:
    """Write a verdict; in brackets where it does not decide, with what would decide it."""
    told = verdict_word(row) if row.decides else f"({verdict_word(row)})"
    more = row.further_launches
    return told if more is None else told + further.format(more)


def value_text(row: RowVerdict, value: float | None) -> str:
    """Write a value of the row's metric; a dash where there is none."""
    if value is None:
        return wording.DASH
    writers: dict[str, Callable[[float], str]] = {
        "s": units.seconds,
        "bytes": units.bytes_,
        "ratio": units.percent,
        "j": lambda v: f"{units.significant(v)} J",
        "count": lambda v: f"{v:.6g}",
    }
    return writers.get(row.unit, units.significant)(value)


def change_text(row: RowVerdict) -> str:
    """Write the change with its sign, ``"+5.2 %"``; a dash where there is none."""
    if row.change is None:
        return wording.DASH
    if row.metric == "prediction_error":
        return f"{signed_percent(row.change)} points"
    return f"{signed_percent(row.change)} %"


def interval_text(row: RowVerdict) -> str:
    """Write the interval of the change, ``"+3.9 to +6.5"``; empty where there is none."""
    if row.low is None or row.high is None:
        return ""
    return f"{signed_percent(row.low)} to {signed_percent(row.high)}"


LARGEST_TOLD = 100.0
"""Of a change, as a ratio: beyond it the number says no more than that nothing is known."""


def detectable_text(row: RowVerdict) -> str:
    """Write the smallest change that would have been called a regression; exact: any."""
    if row.basis == "exact":
        return "any"
    if row.basis == "single" and row.floor is not None:
        return units.rough_percent(row.floor)
    return wording.DASH if row.min_detectable is None else units.rough_percent(row.min_detectable)


def signed_percent(ratio: float) -> str:
    """Write a ratio in percent with its sign, without the unit: ``"+5.2"``."""
    if ratio > LARGEST_TOLD:
        return f"over +{100 * LARGEST_TOLD:.0f}"
    text = wording.signed(100 * ratio, 1 if abs(ratio) < 10 else 0)
    return text if text.startswith(wording.MINUS) else f"+{text}"


def headline(result: GateResult) -> str:
    """Say the verdict on the whole in one sentence, with the number that it rests on."""
    if not result.deciding:
        return f"{result.verdict}: {_other_suites(result) or 'nothing compared'}"
    worst = sorted(result.deciding, key=lambda row: SEVERITY.index(row.verdict))
    counts = Counter(map(verdict_word, worst))
    told = wording.joined([f"{n} {word}" for word, n in counts.items()])
    lead = _lead(result)
    num = len(result.deciding)
    count = "1 comparison counts" if num == 1 else f"{num} comparisons count"
    of = f"{count} for the verdict: {told}"
    return f"{result.verdict}: {lead} ({of})" if lead else f"{result.verdict}: {of}"


VAGUE = 0.5
"""Smallest slowdown found beyond which "passed" says next to nothing."""


def _lead(result: GateResult) -> str:
    """Return what the verdict rests on: the largest change, or what could have been seen."""
    worse = [r for r in result.deciding if r.verdict in WORSE and r.change is not None]
    if worse:
        row = max(worse, key=lambda row: (row.basis == "launches", abs(row.change or 0.0)))
        interval = f" ({interval_text(row)})" if row.low is not None else ""
        return f"{place(row)}: {verdict_word(row)}, {change_text(row)}{interval}"
    unseen = [r for r in result.deciding if r.verdict == "no change seen"]
    if result.verdict not in ("passed", "inconclusive") or not unseen:
        return _other_suites(result)
    seen = [row.min_detectable for row in unseen if row.min_detectable is not None]
    size = units.rough_percent(max(seen)) if seen else "any size"
    if result.too_blind:
        need = f"{100 * (result.need or 0):g} %"
        return f"a slowdown of {need} could not have been seen, only one of {size} or more"
    if seen and max(seen) > VAGUE:
        return f"no change seen, but only one of {size} would have been (see --need)"
    return f"no change seen; a slowdown of {size} or more would have been"


def _other_suites(result: GateResult) -> str:
    return "these are different suites" * any(m.name == SUITES for m in result.mismatches)


def sure(result: GateResult) -> str:
    """Say how often the intervals hold: those that count all together, the others each."""
    percent = f"{100 * result.confidence:g} %"
    noisy = sum(row.basis == "launches" for row in result.deciding)
    return f"; {percent} sure" + (f", for all {noisy} that count together" if noisy > 1 else "")


def left_out(result: GateResult) -> str:
    """Say how many rows are not shown because nothing changed, and whether they count.

    Those that count are the ones that `headline` counts. Empty: there are none.
    """
    unchanged = [row.decides for row in result.rows if is_quiet(row)]
    if not unchanged:
        return ""
    decide, do_not = sum(unchanged), len(unchanged) - sum(unchanged)
    which = f"{decide} count, {do_not} do not" if do_not else "all of them count"
    return f"{len(unchanged)} without a change, not shown: {which}"


def render_verdict(result: GateResult, screen: Screen, everything: bool = False) -> str:
    """Return the verdicts as text for a terminal, the worst first.

    ``everything``: show what is unchanged, too; otherwise it is only counted.
    """
    shown = worst_first([row for row in result.rows if everything or not is_quiet(row)])
    sides = f"{wording.plain(result.base, 200)} → {wording.plain(result.new, 200)}"
    screen.lines((f"note: {note}" for note in result.notes if note == SAME_RUN), "yellow")
    screen.line(headline(result), STYLES[result.verdict])
    screen.line(sides, "dim")
    columns = fit(_COLUMNS, shown, screen.width, screen.ascii_only, _NARROWING)
    if shown:
        screen.line()
        screen.table(columns, shown)
    screen.lines(_legend(result, shown, names(columns), everything), "dim")
    for rows in _stories(shown)[:MOST_EXPLAINED]:
        _show_story(rows, screen)
    screen.lines(_warnings(result), "yellow")
    return screen.text()


_COLUMNS: tuple[Column[RowVerdict], ...] = (
    CASE,
    replace(RANKS, once=True),
    Column("metric", lambda r: metric_phrase(r.metric), numeric=False, fold=13),
    Column("base", lambda r: value_text(r, r.base)),
    Column("new", lambda r: value_text(r, r.new)),
    Column("change", lambda r: f"{change_text(r)}\n{interval_text(r)}".strip()),
    Column("smallest\nfindable", detectable_text),
    Column(
        "verdict",
        lambda r: verdict_text(r, "\nrepeat {} more\ntimes to know"),
        numeric=False,
        style=lambda r: STYLES[r.verdict] if r.decides else "dim",
    ),
)

_FINDABLE = "smallest findable"
_NARROWING = (
    *folded(CASE_WIDTHS[1]),
    *without("base"),
    *folded(CASE_WIDTHS[2]),
    *without(_FINDABLE, "new"),
)


def _legend(
    result: GateResult, shown: Sequence[RowVerdict], columns: Sequence[str], everything: bool
) -> list[str]:
    lines = []
    if not everything and (hidden := left_out(result)):
        lines.append(hidden)
    if any(row.low is not None for row in shown):
        told = f"change: new against base, with the interval over launches (repeats){sure(result)}"
        if _FINDABLE in columns:
            told += f"; {_FINDABLE}: the smallest slowdown that would be found 95 times in 100"
        lines.append(told)
    if any(not row.decides for row in shown):
        lines.append("(in brackets): shown, does not count for the verdict")
    promise = promise_text(result)
    return [*lines, promise] if promise else lines


def _stories(rows: Sequence[RowVerdict]) -> list[list[RowVerdict]]:
    stories: dict[tuple[object, ...], list[RowVerdict]] = {}
    for row in rows:
        doubted = row.low is not None and row.high is not None and row.low * row.high > 0
        clear = row.verdict in ("improved", "not worse", "unchanged")
        unseen = row.verdict == "no change seen" and not doubted
        if row.explanation or (row.decides and not (clear or unseen)):
            stories.setdefault(row.place, []).append(row)
    return list(stories.values())


def _show_story(rows: Sequence[RowVerdict], screen: Screen) -> None:
    what = by_key((verdict_word(row), metric_phrase(row.metric)) for row in rows)
    told = "; ".join(f"{word}: {wording.joined(names)}" for word, names in what.items())
    head = f"{wording.plain(rows[0].case, 64)}, N={rows[0].world_size}: {told}"
    reasons = [row.reason for row in rows if row.decides and row.basis != "exact"]
    leading = sorted(rows, key=lambda row: row.metric != "efficiency")  # it says the most
    lines = dict.fromkeys([*reasons, *(text for row in leading for text in row.explanation)])
    screen.line()
    screen.line(head, "bold")
    screen.lines((wording.plain(text, LONGEST_TEXT) for text in lines), indent=2)


def _warnings(result: GateResult) -> list[str]:
    notes = [note for note in result.notes if note != SAME_RUN]  # that one stands on top
    lines = [f"note: {wording.plain(note, LONGEST_TEXT)}" for note in notes]
    return [*mismatch_texts(result), *lines]


def mismatch_texts(result: GateResult) -> list[str]:
    """Say what differs, each thing once, and what to do about it."""
    alike = by_key((replace(mismatch, where=""), mismatch.where) for mismatch in result.mismatches)
    return [_mismatch_text(mismatch, places) for mismatch, places in alike.items()]


def _mismatch_text(mismatch: Mismatch, places: Sequence[str]) -> str:
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    where = f"{wording.plain(places[0], 80)}{more}: " if places[0] else ""
    name = wording.plain(mismatch.name, 40)
    end = "allowed" if mismatch.allowed else f"--allow-mismatch {name} compares all the same"
    if name == "pinned" and not mismatch.allowed:
        end = "measure both with --pinned, or both with --unpinned"
    return f"different: {where}{wording.plain(mismatch.text, 180)} ({end})"


_COVERED = {
    "launches": (
        "covers how launches of one job differ, not how jobs and hosts do; for those use "
        "--interleave, or accept more runs of the same code (`scalebench baseline accept --add`)"
    ),
    "runs": "covers how jobs and hosts differ, too: estimated from {runs} accepted runs{hosts}",
    "interleaved": "covers drift of the machine, too: both versions were interleaved in one job",
}


def promise_text(result: GateResult) -> str | None:
    """Return one sentence; None: nothing rests on launches."""
    covers = result.covers
    if covers is None:
        return None
    runs = min(row.base_runs for row in result.deciding if row.basis == "launches")
    allowed = [row.host_allowance for row in result.deciding if row.metric == "step_s"]
    hosts = (
        f", and a host may be {100 * min(allowed):g} % slower than theirs" if any(allowed) else ""
    )
    rate = f"at most {100 * result.false_alarm_rate:g} gate in 100 fails by mistake"
    return f"if nothing changed, {rate}; this {_COVERED[covers].format(runs=runs, hosts=hosts)}"


def render_history(history: History, screen: layout.Screen) -> str:
    """Return the series and the changes of level as text for a terminal."""
    screen.line(history_headline(history), "bold")
    for shift in history.shifts:
        screen.line(_shift_text(shift), STYLES["regressed" if shift.worse else "improved"])
    if history.trends:
        screen.line()
        screen.table(COLUMNS, history.trends, _NARROWING_HISTORY)
    screen.lines(legend(history), "dim")
    return screen.text()


def history_headline(history: History) -> str:
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


_NARROWING_HISTORY = (
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
