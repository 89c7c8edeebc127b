"""The kinds of figures that a suite's rows alone are enough for, and their keys."""

import json
from collections.abc import Callable, Sequence
from statistics import median

import plotly.graph_objects as go

from scalebench import units
from scalebench.records.rows.budget import PARTS
from scalebench.records.summary import Estimate, Row
from scalebench.report.findings import conclusions
from scalebench.report.page import (
    budget_figure,
    figures,
    memory_figure,
    prediction_figure,
    schedule_figure,
    waterfall_figure,
)
from scalebench.report.page.charts import ChartKind, Choice, Choices, KeyEntry, legend
from scalebench.report.page.figure_style import Looks
from scalebench.report.page.law_curves import law_curves, law_key
from scalebench.report.page.palette import CROSS, DASHES, NEUTRAL
from scalebench.report.tables import layout, predictions
from scalebench.report.tables.memory import CATEGORIES
from scalebench.report.words import wording


def _case_key(figure: go.Figure) -> tuple[KeyEntry, ...]:
    entries = list(legend(figure))
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
    entries.sort(key=lambda entry: entry.name == figures.HOLLOW)
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


PART_MEANINGS = {part.name: part.meaning for part in PARTS}
CATEGORY_MEANINGS = {category.name: category.meaning for category in CATEGORIES} | {
    memory_figure.PREDICTION: memory_figure.PREDICTION_MEANS
}


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
                batch = wording.batches(row, "{}/{}")
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
    ("case", "N", "part", "per step", "% of step", "95 % interval"),
    lambda figure: legend(figure, PART_MEANINGS),
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
    ("case", "N", "part", "per step", "% of step", "95 % interval"),
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
    legend,
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
    lambda figure: legend(figure, CATEGORY_MEANINGS),
)
"""The figure of the section of memory, which has tables of its own."""
