"""The kinds of figures that a suite's rows alone are enough for, and their keys."""

import json
from collections.abc import Callable, Sequence
from statistics import median

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.summary import Estimate, Row
from scalebench.report.findings import conclusions
from scalebench.report.page import (
    budget_figure,
    figure_style,
    figures,
    memory_figure,
    prediction_figure,
    schedule_figure,
    waterfall_figure,
)
from scalebench.report.page.charts import ChartKind, Choice, Choices, KeyEntry
from scalebench.report.page.figure_style import Looks
from scalebench.report.page.law_curves import law_curves, law_key
from scalebench.report.page.palette import (
    AREA,
    CATEGORY_COLORS,
    CROSS,
    DASHES,
    NEUTRAL,
    PART_COLORS,
    SYMBOLS,
    Look,
)
from scalebench.report.tables import layout, predictions
from scalebench.report.words import wording


def _case_key(rows: Sequence[Row], looks: Looks, figure: go.Figure) -> tuple[KeyEntry, ...]:
    traces: dict[str, list[str]] = {}
    for index, trace in enumerate(figure.data):
        traces.setdefault(trace.legendgroup or "", []).append(str(index))
    entries = [KeyEntry("ideal", NEUTRAL, "", DASHES["dot"], "0")]
    for key in wording.by_case(rows):
        drawn = traces.get(figure_style.safe(f"{key[0]}/{key[1]}", 200))
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
    hollow = [str(i) for i, trace in enumerate(figure.data) if trace.name == figures.HOLLOW]
    if hollow:
        entries.append(
            KeyEntry(figures.HOLLOW, NEUTRAL, SYMBOLS["circle"], None, hollow[0], hollow=True)
        )
    return (*entries, *law_key(figure))


def _speedup(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    figure = figures.speedup_figure(rows, looks)
    if figure is not None:
        drawn = [row for row in rows if row.speedup and not wording.is_baseline(row)]
        figure.add_traces(law_curves(drawn, looks))
    return figure


def _axes(rows: Sequence[Row], figure: go.Figure) -> Choices:
    """Return both kinds of axes, that of the figure first."""
    names = {"linear": "linear", "log–log": "log"}
    order = sorted(names, key=lambda name: names[name] != (figure.layout.xaxis.type or "linear"))
    return Choices(
        "axes",
        tuple(
            Choice(
                name,
                layout=json.dumps(
                    {
                        **{f"{axis}.type": names[name] for axis in ("xaxis", "yaxis")},
                        **{f"{axis}.autorange": True for axis in ("xaxis", "yaxis")},
                    }
                ),
            )
            for name in order
        ),
    )


def _part_key(rows: Sequence[Row], looks: Looks, figure: go.Figure) -> tuple[KeyEntry, ...]:
    return tuple(
        KeyEntry(part.header, PART_COLORS[part.key], AREA, None, str(index), meaning=part.meaning)
        for index, part in enumerate(budget_figure.drawn_parts(rows))
    )


def _category_key(rows: Sequence[Row], looks: Looks, figure: go.Figure) -> tuple[KeyEntry, ...]:
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


def _pass_key(rows: Sequence[Row], looks: Looks, figure: go.Figure) -> tuple[KeyEntry, ...]:
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
        for sample in conclusions.clean_samples(row):
            times = sample.step_s
            spread = [units.seconds(t) for t in (min(times), median(times), max(times))]
            name = wording.plain(row.case, 64)
            launch = str(sample.repeat + 1)
            lines.append((name, str(row.world_size), launch, str(len(times)), *spread))
    return lines


_ESTIMATE_HEADER = ("95 % interval", "launches", "batch all/rank")

SPEEDUP = ChartKind(
    "speedup",
    "Speedup",
    "Speedup needs a measured size beyond one rank and a plain baseline: --gpus 1,2.",
    _speedup,
    conclusions.speedup_sentence,
    _estimates(lambda row: row.speedup, 1.0, wording.TIMES),
    ("case", "N", "speedup", *_ESTIMATE_HEADER),
    _case_key,
    choose=_axes,
)

EFFICIENCY = ChartKind(
    "efficiency",
    "Efficiency",
    "Efficiency needs a measured plain baseline.",
    figures.efficiency_figure,
    conclusions.efficiency_sentence,
    _estimates(lambda row: row.efficiency, 100.0, " %"),
    ("case", "N", "efficiency", *_ESTIMATE_HEADER),
    _case_key,
)

BUDGET = ChartKind(
    "budget",
    "All rows side by side",
    "This needs traced steps of a row and of its plain baseline: run without --no-trace.",
    budget_figure.budget_figure,
    budget_figure.conclude,
    budget_figure.tabulate,
    ("case", "N", "part", "per step", "points", "95 % interval"),
    _part_key,
    budget_figure.NOTE,
    budget_figure.remarks,
)

STEPS = ChartKind(
    "steps",
    "Step times",
    "No clean step was recorded.",
    figures.steps_figure,
    conclusions.steps_sentence,
    _tabulate_steps,
    ("case", "N", "launch", "steps", "fastest", "median", "slowest"),
    None,
)

WATERFALL = ChartKind(
    "waterfall",
    "From ideal to measured",
    "",
    waterfall_figure.waterfall_figure,
    waterfall_figure.conclude,
    waterfall_figure.tabulate,
    ("case", "N", "part", "per step", "points", "95 % interval"),
    None,
    waterfall_figure.PARTS_NOTE,
    choose=waterfall_figure.choose,
)

PREDICTED_STEPS = ChartKind(
    "predicted-steps",
    "Steps, measured and predicted",
    "",
    prediction_figure.steps_figure,
    prediction_figure.conclude_steps,
    prediction_figure.tabulate_steps,
    layout.names(predictions.COLUMNS),
    None,
    "Upper mark: measured, 95 % interval; cross: predicted, 90 % interval; behind: the error.",
)

PREDICTED_OPERATIONS = ChartKind(
    "predicted-operations",
    "Operations, measured and predicted",
    "",
    prediction_figure.operations_figure,
    prediction_figure.conclude_operations,
    prediction_figure.tabulate_operations,
    ("case", "N", "operation", "size", "predicted", "measured", "error"),
    None,
    "Every bucket or collective of a step: transfer without waiting, median over traced steps. Two"
    " in flight at once share the link, and each lasts as long as both.",
)


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
