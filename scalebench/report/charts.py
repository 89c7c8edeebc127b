"""A figure as the page shows it: with its conclusion, its key, its text and its table."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import plotly.graph_objects as go

from scalebench import units
from scalebench.report import (
    budget_figure,
    figures,
    findings,
    memory_figure,
    schedule_figure,
    wording,
)
from scalebench.report.palette import (
    CATEGORY_COLORS,
    DASHES,
    NEUTRAL,
    PART_COLORS,
    SYMBOLS,
    Look,
)
from scalebench.summary import Estimate, Row

CROSS = "M-4,-4L4,4M-4,4L4,-4"
"""A prediction's sample in a key, as an SVG path."""

AREA = "M-8,-5H8V5H-8Z"
"""An area's sample in a key, as an SVG path."""

_JSON_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class KeyEntry:
    """One entry of a chart's key.

    Attributes:
        traces: Indices of the traces that it shows and hides, joined by commas.
        path: The marker as an SVG path.
        dash: SVG dash array of the line; None: no line.
        hollow: The marker is an outline.
        meaning: One line that explains the entry; empty: the name is enough.
    """

    name: str
    color: str
    path: str
    dash: str | None
    traces: str
    hollow: bool = False
    meaning: str = ""


@dataclass(frozen=True)
class Chart:
    """One figure on the page.

    Attributes:
        spec: plotly data and layout as JSON that is safe inside a script element.
        label: Text alternative.
        height: Pixels.
        table: Header and lines of its data.
        remarks: What has to be known of these rows to read it.
    """

    id: str
    suite: str
    conclusion: str
    label: str
    spec: str
    height: int
    key: tuple[KeyEntry, ...]
    header: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...] = ()


KeyMaker = Callable[[Sequence[Row], figures.Looks, go.Figure], tuple[KeyEntry, ...]]


@dataclass(frozen=True)
class ChartKind:
    """How one kind of figure is made for a suite: a plot, a sentence, a table."""

    name: str
    title: str
    absent: str
    draw: Callable[[Sequence[Row], figures.Looks], go.Figure | None]
    conclude: Callable[[Sequence[Row]], str]
    tabulate: Callable[[Sequence[Row]], list[tuple[str, ...]]]
    header: tuple[str, ...]
    key: KeyMaker | None
    note: str = ""
    remark: Callable[[Sequence[Row]], list[str]] | None = None


def json_for_script(text: str) -> str:
    """Return JSON that cannot end, or hide the end of, the script element around it."""
    return text.translate(_JSON_ESCAPES)


def make_chart(
    kind: ChartKind, chart_id: str, rows: Sequence[Row], looks: figures.Looks
) -> Chart | None:
    """Make one kind of chart for the rows of a suite, or None when it would be empty."""
    figure = kind.draw(rows, looks)
    if figure is None:
        return None
    figure.update_layout(showlegend=False)
    conclusion = kind.conclude(rows)
    suite = wording.plain(rows[0].suite, 64)
    return Chart(
        id=chart_id,
        suite=suite,
        conclusion=conclusion,
        label=f"{kind.title}, {suite}: {conclusion} The numbers are in the table below.",
        spec=plot_json(figure),
        height=int(figure.layout.height),
        key=kind.key(rows, looks, figure) if kind.key else (),
        header=kind.header,
        table=tuple(kind.tabulate(rows)),
        remarks=tuple(kind.remark(rows)) if kind.remark else (),
    )


def plot_json(figure: go.Figure) -> str:
    """Return a figure as plotly's JSON that is safe inside a script element."""
    plot: dict[str, Any] = figure.to_plotly_json()
    plot["layout"].pop("template", None)
    return json_for_script(json.dumps(plot, separators=(",", ":"), allow_nan=False))


def _case_key(rows: Sequence[Row], looks: figures.Looks, figure: go.Figure) -> tuple[KeyEntry, ...]:
    traces: dict[str, list[str]] = {}
    for index, trace in enumerate(figure.data):
        traces.setdefault(trace.legendgroup or "", []).append(str(index))
    entries = [KeyEntry("ideal", NEUTRAL, "", DASHES["dot"], "0")]
    for key in wording.by_case(rows):
        drawn = traces.get(figures.safe(f"{key[0]}/{key[1]}", 200))
        if drawn:
            entries.append(_entry(key[1], looks[key], ",".join(drawn)))
    crosses = [
        str(index)
        for index, trace in enumerate(figure.data)
        if trace.marker.symbol == figures.PREDICTION_SYMBOL
    ]
    if crosses:
        entries.append(
            KeyEntry(
                "predicted", NEUTRAL, CROSS, DASHES["dot"], ",".join(crosses), hollow=True,
                meaning="by the cost model",
            )
        )  # fmt: skip
    if any(row.oversubscribed and row.efficiency for row in rows):
        last = str(len(figure.data) - 1)
        name = "hollow: oversubscribed"
        entries.append(KeyEntry(name, NEUTRAL, SYMBOLS["circle"], None, last, hollow=True))
    return tuple(entries)


def _part_key(rows: Sequence[Row], looks: figures.Looks, figure: go.Figure) -> tuple[KeyEntry, ...]:
    return tuple(
        KeyEntry(part.header, PART_COLORS[part.key], AREA, None, str(index), meaning=part.meaning)
        for index, part in enumerate(budget_figure.drawn_parts(rows))
    )


def _category_key(
    rows: Sequence[Row], looks: figures.Looks, figure: go.Figure
) -> tuple[KeyEntry, ...]:
    shown = memory_figure.shown_categories(rows)
    entries = [
        KeyEntry(
            category.name, CATEGORY_COLORS[category.key], AREA, None, str(index),
            meaning=category.meaning,
        )
        for index, (_, category) in enumerate(shown)
    ]  # fmt: skip
    if any(found.predicted is not None for found in memory_figure.apart(rows)):
        entries.append(
            KeyEntry(
                memory_figure.PREDICTION, NEUTRAL, SYMBOLS[memory_figure.PREDICTION_SYMBOL], None,
                str(len(shown)), meaning=memory_figure.PREDICTION_MEANS,
            )
        )  # fmt: skip
    return tuple(entries)


def _pass_key(rows: Sequence[Row], looks: figures.Looks, figure: go.Figure) -> tuple[KeyEntry, ...]:
    """Return the key of a pipeline's passes."""
    return tuple(
        KeyEntry(name, color, AREA, None, str(index))
        for index, (name, color) in enumerate(
            schedule_figure.KINDS[kind] for kind in schedule_figure.shown_kinds(rows)
        )
    )


def _entry(name: str, look: Look, traces: str) -> KeyEntry:
    label = wording.plain(name, 64)
    return KeyEntry(label, look.color, SYMBOLS[look.symbol], DASHES[look.dash], traces)


def _estimates(
    read: Callable[[Row], Estimate | None], scale: float, unit: str
) -> Callable[[Sequence[Row]], list[tuple[str, ...]]]:
    def tabulate(rows: Sequence[Row]) -> list[tuple[str, ...]]:
        lines: list[tuple[str, ...]] = []
        for row in rows:
            estimate = read(row)
            if estimate is not None:
                value = f"{wording.point(estimate, scale)}{unit}"
                span = wording.interval(estimate, scale) or "none"
                batch = f"{row.global_batch}/{row.rank_batch}"
                name = wording.plain(row.case, 64)
                lines.append((name, str(row.world_size), value, span, str(estimate.n), batch))
        return lines

    return tabulate


def _tabulate_steps(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for row in rows:
        for sample in findings.clean_samples(row):
            times = sample.step_s
            spread = [units.seconds(t) for t in (min(times), median(times), max(times))]
            name = wording.plain(row.case, 64)
            launch = str(sample.repeat + 1)
            lines.append((name, str(row.world_size), launch, str(len(times)), *spread))
    return lines


_ESTIMATE_HEADER = ("95 % interval", "launches", "batch all/rank")

CHARTS = (
    ChartKind(
        "speedup",
        "Speedup",
        "Speedup needs a measured size beyond one rank and a plain baseline: --gpus 1,2.",
        figures.speedup_figure,
        findings.speedup_sentence,
        _estimates(lambda row: row.speedup, 1.0, wording.TIMES),
        ("case", "N", "speedup", *_ESTIMATE_HEADER),
        _case_key,
    ),
    ChartKind(
        "efficiency",
        "Efficiency",
        "Efficiency needs a measured plain baseline.",
        figures.efficiency_figure,
        findings.efficiency_sentence,
        _estimates(lambda row: row.efficiency, 100.0, " %"),
        ("case", "N", "efficiency", *_ESTIMATE_HEADER),
        _case_key,
    ),
    ChartKind(
        "budget",
        "Where the rest went",
        "This needs traced steps of a row and of its plain baseline: run without --no-trace.",
        budget_figure.budget_figure,
        budget_figure.conclude,
        budget_figure.tabulate,
        ("case", "N", "part", "per step", "points", "95 % interval"),
        _part_key,
        budget_figure.NOTE,
        budget_figure.remarks,
    ),
    ChartKind(
        "steps",
        "Step times",
        "No clean step was recorded.",
        figures.steps_figure,
        findings.steps_sentence,
        _tabulate_steps,
        ("case", "N", "launch", "steps", "fastest", "median", "slowest"),
        None,
    ),
)
"""The figures of a run, in the order of the page."""

SCHEDULE = ChartKind(
    "schedule",
    "Pipelines",
    "No pipeline of several ranks was traced.",
    schedule_figure.schedule_figure,
    schedule_figure.conclude,
    schedule_figure.tabulate,
    ("case", "N", "rank", "pass", "from", "to", "planned from", "planned to"),
    _pass_key,
    "One traced step of the largest pipeline of each case. Planned, paler: the dry run with the"
    " measured times of the stages, nothing for transfer.",
)
"""The figure of pipelines, in the section of communication."""

MEMORY = ChartKind(
    "memory",
    "Memory",
    "Which categories the peak is made of is not known: the inspecting launch did not count them.",
    memory_figure.memory_figure,
    memory_figure.conclude,
    memory_figure.tabulate,
    ("case", "N", "category", "bytes", "of the peak"),
    _category_key,
)
"""The figure of the section of memory, which has tables of its own."""
