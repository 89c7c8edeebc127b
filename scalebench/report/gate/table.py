"""The terminal table of ``scalebench compare`` and ``scalebench gate``."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from scalebench import units
from scalebench.gate.metrics import METRICS, RECOVERY, count_metric, named_metric
from scalebench.gate.result import SAME_RUN, SEVERITY, GateResult, Mismatch, RowVerdict
from scalebench.report.gate.promise import promise_text
from scalebench.report.tables.layout import (
    CASE,
    CASE_WIDTHS,
    RANKS,
    Column,
    fit,
    folded,
    names,
    table,
    without,
)
from scalebench.report.tables.terminal import NARROWEST, line, printed
from scalebench.report.words import wording

LONGEST_TEXT = 240
MOST_EXPLAINED = 12

STYLES = {
    **{"regressed": "bold red", "missing": "bold red", "failed": "bold red"},
    **{"not comparable": "yellow", "inconclusive": "yellow"},
    **{"improved": "green", "unchanged": "dim", "passed": "bold green"},
}

_PHRASES = {metric.name: metric.phrase for metric in METRICS}


def metric_phrase(name: str) -> str:
    """Return what people call a metric."""
    if name in _PHRASES:
        return _PHRASES[name]
    for settings in RECOVERY:
        if name.endswith(settings.name):
            return named_metric(wording.plain(name, 60), settings).phrase
    return count_metric(wording.plain(name, 40).removesuffix("_count")).phrase


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
        return f"{100 * row.floor:.2g} %"
    if row.min_detectable is None:
        return wording.DASH
    if row.min_detectable > LARGEST_TOLD:
        return f"over {100 * LARGEST_TOLD:.0f} %"
    return f"{100 * row.min_detectable:.1f} %"


def signed_percent(ratio: float) -> str:
    """Write a ratio in percent with its sign, without the unit: ``"+5.2"``."""
    if ratio > LARGEST_TOLD:
        return f"over +{100 * LARGEST_TOLD:.0f}"
    text = wording.signed(100 * ratio, 1 if abs(ratio) < 10 else 0)
    return text if text.startswith(wording.MINUS) else f"+{text}"


def headline(result: GateResult) -> str:
    """Say the verdict on the whole in one sentence."""
    counts = {verdict: sum(r.verdict == verdict for r in result.deciding) for verdict in SEVERITY}
    told = wording.joined([f"{n} {verdict}" for verdict, n in counts.items() if n])
    of = f"of {len(result.deciding)} comparisons that decide: " if told else "nothing compared"
    return f"{result.verdict}: {of}{told}"


def judged_together(result: GateResult) -> str:
    """Say how many rows ``detects from`` allows for: those that decide apart from the others.

    The more rows are judged together, the larger a change has to be in one of them. Empty: one row.
    """
    noisy = [row.decides for row in result.rows if row.basis == "launches"]
    decide, do_not = sum(noisy), len(noisy) - sum(noisy)
    counts = [f"{n} that {what}" for n, what in ((decide, "decide"), (do_not, "do not")) if n]
    if len(noisy) < 2:
        return ""
    apart = ", separately" if len(counts) > 1 else ""
    return f", in one of the rows judged together ({wording.joined(counts)}{apart})"


def left_out(result: GateResult) -> str:
    """Say how many rows are not shown because nothing changed, and whether they decide.

    Those that decide are the ones that `headline` counts. Empty: there are none.
    """
    unchanged = [row.decides for row in result.rows if row.verdict == "unchanged"]
    if not unchanged:
        return ""
    decide, do_not = sum(unchanged), len(unchanged) - sum(unchanged)
    which = f"{decide} decide, {do_not} do not" if do_not else "all of them decide"
    return f"{len(unchanged)} unchanged, not shown: {which}"


def render_verdict(
    result: GateResult,
    width: int = 100,
    color: bool = False,
    ascii_only: bool = False,
    everything: bool = False,
) -> str:
    """Return the verdicts as text for a terminal, the worst first.

    Args:
        result: Of the gate.
        width: Columns of the terminal.
        color: Whether ANSI styles are written.
        ascii_only: Write nothing but ASCII.
        everything: Show what is unchanged, too; otherwise it is only counted.
    """
    width = max(width, NARROWEST)
    shown = [row for row in result.rows if everything or row.verdict != "unchanged"]
    shown.sort(key=lambda row: (not row.decides, SEVERITY.index(row.verdict)))
    sides = f"{wording.plain(result.base, 200)} → {wording.plain(result.new, 200)}"
    parts: list[RenderableType] = [
        *(line(f"note: {note}", ascii_only, "yellow") for note in result.notes if note == SAME_RUN),
        line(headline(result), ascii_only, STYLES[result.verdict]),
        line(sides, ascii_only, "dim"),
    ]
    columns = fit(_COLUMNS, shown, width, ascii_only, _NARROWING)
    if shown:
        parts += [Text(""), table(columns, shown, ascii_only)]
    legend = _legend(result, shown, names(columns), everything)
    parts += [line(text, ascii_only, "dim") for text in legend]
    for rows in _stories(shown)[:MOST_EXPLAINED]:
        parts += _story(rows, ascii_only)
    parts += [line(text, ascii_only, "yellow") for text in _warnings(result)]
    return printed(parts, width, color, ascii_only)


def _verdict_text(row: RowVerdict) -> str:
    told = row.verdict if row.decides else f"({row.verdict})"
    if row.further_launches is not None:
        return f"{told}\n+{row.further_launches} launches"
    return told


_COLUMNS: tuple[Column[RowVerdict], ...] = (
    CASE,
    replace(RANKS, once=True),
    Column("metric", lambda r: metric_phrase(r.metric), numeric=False, fold=13),
    Column("base", lambda r: value_text(r, r.base)),
    Column("new", lambda r: value_text(r, r.new)),
    Column("change", lambda r: f"{change_text(r)}\n{interval_text(r)}".strip()),
    Column("detects\nfrom", detectable_text),
    Column(
        "verdict",
        _verdict_text,
        numeric=False,
        style=lambda r: STYLES[r.verdict] if r.decides else "dim",
    ),
)

_DETECTS_FROM = "detects from"
_NARROWING = (
    *folded(CASE_WIDTHS[1]),
    *without("base"),
    *folded(CASE_WIDTHS[2]),
    *without(_DETECTS_FROM, "new"),
)


def _legend(
    result: GateResult, shown: Sequence[RowVerdict], columns: Sequence[str], everything: bool
) -> list[str]:
    lines = []
    if not everything and (hidden := left_out(result)):
        lines.append(hidden)
    if any(row.low is not None for row in shown):
        told = "change: new against base with the 95 % interval over launches"
        if _DETECTS_FROM in columns:
            told += f"; {_DETECTS_FROM}: what this comparison would have found 95 times in 100"
            told += judged_together(result)
        lines.append(told)
    if any(not row.decides for row in shown):
        lines.append("(in brackets): shown, does not decide")
    if any(row.further_launches is not None for row in shown):
        lines.append("+n launches: so many more on each side would decide, at this noise")
    promise = promise_text(result)
    return [*lines, promise] if promise else lines


def _stories(rows: Sequence[RowVerdict]) -> list[list[RowVerdict]]:
    """Return what needs more words than the table has, by place and verdict."""
    stories: dict[tuple[object, ...], list[RowVerdict]] = {}
    for row in rows:
        bad = row.verdict in ("regressed", "missing", "not comparable")
        if row.decides and (bad or row.explanation):
            stories.setdefault((row.place, row.verdict), []).append(row)
    return list(stories.values())


def _story(rows: Sequence[RowVerdict], ascii_only: bool) -> list[RenderableType]:
    first = rows[0]
    what = wording.joined([metric_phrase(row.metric) for row in rows])
    head = f"{wording.plain(first.case, 64)}, N={first.world_size}: {first.verdict}: {what}"
    reasons = [row.reason for row in rows if row.basis not in ("launches", "exact")]
    leading = sorted(rows, key=lambda row: row.metric != "efficiency")  # it says the most
    lines = dict.fromkeys([*reasons, *(text for row in leading for text in row.explanation)])
    told = [line(wording.plain(text, LONGEST_TEXT), ascii_only) for text in lines]
    return [Text(""), line(head, ascii_only, "bold"), *(Padding(t, (0, 0, 0, 2)) for t in told)]


def _warnings(result: GateResult) -> list[str]:
    notes = [note for note in result.notes if note != SAME_RUN]  # that one stands on top
    lines = [f"note: {wording.plain(note, LONGEST_TEXT)}" for note in notes]
    return [*(_mismatch_text(m) for m in result.mismatches), *lines]


def _mismatch_text(mismatch: Mismatch) -> str:
    where = f"{wording.plain(mismatch.where, 80)}: " if mismatch.where else ""
    name = wording.plain(mismatch.name, 40)
    was = wording.plain(mismatch.base, 60) or "nothing"
    now = wording.plain(mismatch.new, 60) or "nothing"
    end = "allowed" if mismatch.allowed else f"--allow-mismatch {name} compares all the same"
    if name == "pinned" and not mismatch.allowed:
        end = "measure both with --pinned, or both with --unpinned"
    return f"different: {where}{name} was {was} and is {now} ({end})"
