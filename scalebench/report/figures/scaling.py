"""Speedup, efficiency and step times of a suite's cases, each with its sentence.

plotly reads some HTML and its own ``%{...}`` in texts: names are escaped, and hover texts reach
the template as data.
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from math import exp
from statistics import median

import numpy as np
import plotly.graph_objects as go

from scalebench import units
from scalebench.costmodel.what_if import FittedLaw, fit_amdahl, fit_usl
from scalebench.records.summary import Estimate, Row, StepSamples, log_steps, series_of
from scalebench.report.figures.charts import ChartKind, Choice, Choices, KeyEntry, legend
from scalebench.report.figures.style import (
    CROSS,
    DASHES,
    NEUTRAL,
    Look,
    Looks,
    hover,
    lane_axis,
    reference_line,
    row_name,
    safe,
    style,
    whiskers,
)
from scalebench.report.findings.findings import headline_row
from scalebench.report.tables.layout import CASE, RANKS, Column, placed, value
from scalebench.report.words import wording
from scalebench.report.words.wording import CaseKey

LOG_FROM = 16
"""Largest N up to which the axes of the speedup figure are linear."""

PREDICTION_SYMBOL = "x-thin"
HOLLOW = "hollow: oversubscribed"
LANE_PX = 22
MAX_POINTS = 4000
MOST_PER_LAUNCH = 60

DODGE = 0.055
SPEEDUP_DODGE = 0.02
"""Of the axis."""


def speedup_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    """Draw speedup over N, the ideal line and fitted laws; None when there is nothing to draw."""
    drawn = [row for row in rows if row.speedup and not wording.is_baseline(row)]
    if all(row.world_size == 1 for row in drawn):
        return None
    sizes = sorted({1, *(row.world_size for row in drawn)})
    figure = go.Figure()
    figure.add_trace(reference_line(sizes, sizes, "ideal"))
    logarithmic = sizes[-1] > LOG_FROM
    groups = wording.by_case(drawn)
    shifts = dict.fromkeys(groups, 0.0) if logarithmic else _dodged(groups, sizes[-1])
    for key, group in groups.items():
        points = [(row.world_size + shifts[key], row, row.speedup) for row in group]
        figure.add_trace(case_line(key, looks[key], points, 1.0, wording.TIMES))
        ahead = [(x, row, _predicted(row, row.world_size)) for x, row, _ in points]
        figure.add_traces(_prediction(key, looks[key], ahead, 1.0, wording.TIMES))
    figure.add_traces(_hollow_key(drawn))
    style(figure, "speedup")
    kind = {"type": "log"} if logarithmic else {"rangemode": "tozero"}
    figure.update_xaxes(title="N", tickvals=sizes, ticktext=[str(n) for n in sizes], **kind)
    figure.update_yaxes(
        tickvals=sizes, ticktext=[f"{n}{wording.TIMES}" for n in sizes], automargin=True, **kind
    )
    figure.add_traces(law_curves(drawn, looks))
    return figure


def efficiency_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    """Draw efficiency at each N, the cases side by side; None when there is nothing to draw."""
    drawn = [row for row in rows if row.efficiency and not wording.is_baseline(row)]
    if not drawn:
        return None
    sizes = sorted({row.world_size for row in drawn})
    groups = wording.by_case(drawn)
    figure = go.Figure()
    edges = [-0.5, len(sizes) - 0.5]
    figure.add_trace(reference_line(edges, [100, 100], "ideal"))
    step = min(DODGE, 0.6 / len(groups))
    for index, (key, group) in enumerate(groups.items()):
        shift = (index - (len(groups) - 1) / 2) * step
        points = [(sizes.index(row.world_size) + shift, row, row.efficiency) for row in group]
        figure.add_trace(case_line(key, looks[key], points, 100.0, " %"))
        ahead = [(x, row, _predicted(row, 1)) for x, row, _ in points]
        figure.add_traces(_prediction(key, looks[key], ahead, 100.0, " %"))
    figure.add_traces(_hollow_key(drawn))
    style(figure, "efficiency")
    figure.update_xaxes(
        title="N", tickvals=list(range(len(sizes))), ticktext=[str(n) for n in sizes], range=edges
    )
    starts, ends = zip(*(row.efficiency.reach for row in drawn if row.efficiency), strict=True)
    floor = 0.0 if min(starts) < 0.5 else 50.0
    ceiling = max(105.0, 1.05 * (100 * max(ends)))
    figure.update_yaxes(range=[floor, ceiling], ticksuffix=" %", automargin=True)
    return figure


def steps_figure(rows: Sequence[Row], looks: Looks) -> go.Figure | None:
    """Draw the distribution of step times, one lane per launch; None without samples."""
    groups = wording.by_case([row for row in rows if clean_samples(row)])
    if not groups:
        return None
    lanes = sum(len(clean_samples(row)) for group in groups.values() for row in group)
    per_launch = max(8, min(MOST_PER_LAUNCH, MAX_POINTS // lanes))
    figure = go.Figure()
    ticks: list[tuple[float, str]] = []
    top = 0.0
    for key, group in groups.items():
        figure.add_annotation(
            x=0, xref="paper", xanchor="left", y=top + 0.5, yanchor="middle", showarrow=False,
            text=f"<b>{safe(key[1], 40)}</b>", font={"size": 13},
        )  # fmt: skip
        placed = list(_lanes(group, top + 1.1))
        figure.add_traces(_distribution(key, looks[key], placed, per_launch))
        for row in group:
            places = [y for y, owner, _ in placed if owner is row]
            ticks.append((sum(places) / len(places), f"N={row.world_size}"))
        top = max(y for y, _, _ in placed) + 0.9
    tall = int(top * LANE_PX + 90)
    style(figure, "steps", height=tall, boxmode="overlay", hovermode="closest")
    lane_axis(figure, ticks, top, -0.2)
    values = [t for row in rows for sample in row.samples for t in sample.step_s]
    logarithmic = min(values) > 0 and max(values) / min(values) > 20
    kind = {"type": "log", "dtick": "D1"} if logarithmic else {}
    figure.update_xaxes(title="step time of the slowest rank, ms", automargin=True, **kind)
    return figure


def _dodged(keys: Collection[CaseKey], largest: int) -> dict[CaseKey, float]:
    """Set the cases next to each other, so that their intervals do not hide one another."""
    step = min(SPEEDUP_DODGE * (largest - 1), 0.4 / len(keys))
    return {key: (index - (len(keys) - 1) / 2) * step for index, key in enumerate(keys)}


def sampled(values: Sequence[float], most: int) -> list[float]:
    """Return at most ``most`` order statistics of ``values``, both extremes among them."""
    ordered = sorted(values)
    if len(ordered) <= most:
        return ordered
    places = np.linspace(0, len(ordered) - 1, most).round().astype(int)
    return [ordered[place] for place in places]


def case_line(
    key: CaseKey,
    look: Look,
    points: Sequence[tuple[float, Row, Estimate | None]],
    scale: float,
    unit: str,
) -> go.Scatter:
    """One case over N, with its intervals.

    ``points``: place on the axis, the row, the estimate to draw, which ``scale`` multiplies.
    """
    known = [(x, row, estimate) for x, row, estimate in points if estimate is not None]
    symbols = [look.hollow if row.oversubscribed else look.symbol for _, row, _ in known]
    return go.Scatter(
        x=[x for x, _, _ in known],
        y=[estimate.value * scale for _, _, estimate in known],
        **hover(_text(row, estimate, scale, unit) for _, row, estimate in known),
        name=safe(key[1], 64),
        legendgroup=safe(f"{key[0]}/{key[1]}", 200),
        mode="lines+markers",
        line={"color": look.color, "dash": look.dash, "width": 2},
        marker={
            "symbol": symbols, "size": 9, "color": look.color,
            "line": {"width": 1.8, "color": look.color},
        },
        error_y=whiskers(
            ((e.value, e.low, e.high) for _, _, e in known), look.color, 1.4, 4, scale
        ),
    )  # fmt: skip


def _predicted(row: Row, factor: int) -> float | None:
    """Return the efficiency that the row's predicted step means, times ``factor``."""
    efficiency = row.prediction.efficiency if row.prediction else None
    return None if efficiency is None else efficiency * factor


def _prediction(
    key: CaseKey,
    look: Look,
    points: Sequence[tuple[float, Row, float | None]],
    scale: float,
    unit: str,
) -> list[go.Scatter]:
    """What the cost model says of one case over N; nothing where it says nothing."""
    known = [(x, row, value) for x, row, value in points if value is not None]
    if not known:
        return []
    return [
        go.Scatter(
            x=[x for x, _, _ in known],
            y=[value * scale for _, _, value in known],
            **hover(
                f"{row_name(row)}<br>predicted: {value * scale:.3g}{unit}"
                for _, row, value in known
            ),
            legendgroup=safe(f"{key[0]}/{key[1]}", 200),
            mode="lines+markers",
            line={"color": look.color, "dash": "dot", "width": 1.2},
            marker={"symbol": PREDICTION_SYMBOL, "size": 9, "color": look.color,
                    "line": {"width": 1.6, "color": look.color}},
        )
    ]  # fmt: skip


def _text(row: Row, estimate: Estimate, scale: float, unit: str) -> str:
    span = wording.interval(estimate, scale)
    doubt = f"95 % interval {span}" if span else "no interval"
    marked = "<br>oversubscribed" if row.oversubscribed else ""
    return (
        f"{row_name(row)}<br>"
        f"{wording.point(estimate, scale)}{unit} ({doubt}, {wording.launches(estimate)})<br>"
        f"{row.scaling} scaling, batch {wording.batches(row, '{} ({} per rank)')}{marked}"
    )


def _hollow_key(rows: Sequence[Row]) -> list[go.Scatter]:
    """Return the legend's entry for hollow points when there are any."""
    if not any(row.oversubscribed for row in rows):
        return []
    marker = {"symbol": "circle-open", "size": 10, "color": NEUTRAL, "line": {"width": 2}}
    return [
        go.Scatter(
            x=[None], y=[None], mode="markers", marker=marker, hoverinfo="skip",
            name=HOLLOW,
        )
    ]  # fmt: skip


def _lanes(group: Sequence[Row], start: float) -> Iterator[tuple[float, Row, int]]:
    """Place the launches of a case's rows under each other: (y, row, index of the launch)."""
    place = start
    for row in group:
        for index in range(len(clean_samples(row))):
            yield place, row, index
            place += 0.8
        place += 0.35


def _distribution(
    key: CaseKey, look: Look, lanes: Sequence[tuple[float, Row, int]], per_launch: int
) -> list[go.Scatter | go.Box]:
    """The points of each launch, and a box over all its steps; times in ms."""
    x: list[float] = []
    y: list[float] = []
    hover: list[list[str]] = []
    boxes: dict[str, list[float]] = {name: [] for name in ("low", "q1", "median", "q3", "high")}
    for place, row, index in lanes:
        sample = clean_samples(row)[index]
        times = sampled(sample.step_s, per_launch)
        x += [_short(time * 1e3) for time in times]
        y += [_short(place + 0.22 * ((i * 0.618) % 1 - 0.5)) for i in range(len(times))]
        hover += [[_launch_hover(row, sample.repeat)]] * len(times)
        for name, seconds in _five_numbers(sample.step_s).items():
            boxes[name].append(_short(seconds * 1e3))
    name = safe(key[1], 40)
    points = go.Scatter(
        x=x, y=y, customdata=hover, mode="markers", name=name, showlegend=False,
        hovertemplate="<b>%{fullData.name}</b><br>%{x:.4g} ms<br>%{customdata[0]}<extra></extra>",
        marker={"size": 5, "color": look.color, "opacity": 0.45},
    )  # fmt: skip
    box = go.Box(
        y=[place for place, _, _ in lanes], q1=boxes["q1"], median=boxes["median"],
        q3=boxes["q3"], lowerfence=boxes["low"], upperfence=boxes["high"], orientation="h",
        name=name, hoverinfo="skip", width=0.5, fillcolor="rgba(0,0,0,0)",
        line={"color": look.color, "width": 1.4}, whiskerwidth=0.5,
    )  # fmt: skip
    return [points, box]


def _launch_hover(row: Row, repeat: int) -> str:
    batch = wording.batches(row, "{} ({} per rank)")
    return f"{wording.ranks(row)}, launch {repeat + 1}, batch {batch}"


def _short(value: float) -> float:
    """Return ``value`` with the digits that a figure can show."""
    return float(f"{value:.6g}")


def _five_numbers(times: Sequence[float]) -> dict[str, float]:
    """Return the 5th, 25th, 50th, 75th and 95th percentile."""
    found = np.percentile(np.asarray(times), [5, 25, 50, 75, 95])
    names = ("low", "q1", "median", "q3", "high")
    return {name: float(value) for name, value in zip(names, found, strict=True)}


def speedup_sentence(rows: Sequence[Row]) -> str:
    """Conclude the speedup figure of one suite in one sentence."""
    heads = _heads(rows)
    heads = [row for row in heads if row.speedup]
    if not heads:
        return "No speedup beyond one rank was measured."
    best = max(heads, key=lambda row: row.speedup.value if row.speedup else 0.0)
    assert best.speedup is not None
    name = wording.plain(best.case, 64)
    span = wording.interval(best.speedup)
    told = f" ({span})" if span else " (no interval)"
    crowded = ", oversubscribed" if best.oversubscribed else ""
    return (
        f"The largest speedup is {wording.point(best.speedup)}{wording.TIMES}{told}, {name} on"
        f" {wording.ranks(best)}{crowded}; ideal is {best.world_size}{wording.TIMES}."
    )


def efficiency_sentence(rows: Sequence[Row]) -> str:
    """Conclude the efficiency figure of one suite in one sentence."""
    heads = [row for row in _heads(rows) if row.efficiency]
    if not heads:
        return "No efficiency beyond one rank was measured."
    largest = max(row.world_size for row in heads)
    heads = [row for row in heads if row.world_size == largest]
    values = [row.efficiency.value * 100 for row in heads if row.efficiency]
    where = f"On {wording.ranks(heads[0])}"
    few = wording.scarce(heads[0])
    crowded = f", more ranks than {few}," if heads[0].oversubscribed else ""
    if len(heads) == 1 and heads[0].efficiency:
        phrase = wording.efficiency_phrase(heads[0].efficiency)
        return f"{where}{crowded} {wording.plain(heads[0].case, 64)} keeps {phrase}."
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    reach = low if low == high else f"between {low} and {high}"
    cases = f"the {len(heads)} cases" if low != high else "both" if len(heads) == 2 else "all cases"
    return f"{where}{crowded} {cases} reach {reach} % of ideal."


def _heads(rows: Sequence[Row]) -> list[Row]:
    found = [headline_row(group) for group in wording.by_case(rows).values()]
    return [row for row in found if row and not wording.is_baseline(row) and row.world_size > 1]


def steps_sentence(rows: Sequence[Row]) -> str:
    """Conclude the step-time figure of one suite: where launches differ most."""
    spreads = []
    for row in rows:
        middles = [exp(middle) for middle in log_steps(row, series_of(row)).values()]
        if len(middles) > 1 and median(middles) > 0:
            spreads.append(((max(middles) - min(middles)) / median(middles), row))
    if not spreads:
        what = ("log", "logs") if wording.of_logs(rows) else ("launch", "launches")
        return "Each case has one {}: how much {} differ is unknown.".format(*what)
    spread, row = max(spreads, key=lambda pair: pair[0])
    return (
        f"The step times of launches differ most in {wording.plain(row.case, 64)} on"
        f" {wording.ranks(row)}: {units.percent(spread)} between the slowest and the fastest."
    )


def clean_samples(row: Row) -> list[StepSamples]:
    """Return the launches of a row that have at least one clean step."""
    return [sample for sample in row.samples if sample.step_s]


def _case_key(figure: go.Figure) -> tuple[KeyEntry, ...]:
    entries = list(legend(figure))
    crosses = [
        str(index)
        for index, trace in enumerate(figure.data)
        if trace.marker.symbol == PREDICTION_SYMBOL
    ]
    if crosses:
        entries.append(
            KeyEntry(
                "predicted", NEUTRAL, CROSS, DASHES["dot"], ",".join(crosses), hollow=True,
                meaning="by the cost model",
            )
        )  # fmt: skip
    entries.sort(key=lambda entry: entry.name == HOLLOW)
    return (*entries, *law_key(figure))


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


def _estimates(
    name: str, read: Callable[[Row], Estimate | None], scale: float, unit: str
) -> tuple[Column[Row], ...]:
    return (
        CASE,
        RANKS,
        value(name, read, lambda found: f"{wording.point(found, scale)}{unit}"),
        value("95 % interval", read, lambda found: wording.interval(found, scale) or "none"),
        value("launches", read, lambda found: str(found.n)),
        Column("batch all/rank", lambda row: wording.batches(row, "{}/{}")),
    )


SPEEDUP = ChartKind(
    "speedup",
    "Speedup",
    speedup_figure,
    speedup_sentence,
    _estimates("speedup", lambda row: row.speedup, 1.0, wording.TIMES),
    lambda rows: [row for row in rows if row.speedup],
    _case_key,
    absent="Speedup needs a measured size beyond one rank and a plain baseline: --gpus 1,2.",
    choose=_axes,
)
EFFICIENCY = ChartKind(
    "efficiency",
    "Efficiency",
    efficiency_figure,
    efficiency_sentence,
    _estimates("efficiency", lambda row: row.efficiency, 100.0, " %"),
    lambda rows: [row for row in rows if row.efficiency],
    _case_key,
    absent="Efficiency needs a measured plain baseline.",
)
STEPS = ChartKind(
    "steps",
    "Step times",
    steps_figure,
    steps_sentence,
    placed(
        Column("launch", lambda one: str(one.repeat + 1)),
        Column("steps", lambda one: str(len(one.step_s))),
        Column("fastest", lambda one: units.seconds(min(one.step_s))),
        Column("median", lambda one: units.seconds(median(one.step_s))),
        Column("slowest", lambda one: units.seconds(max(one.step_s))),
    ),
    lambda rows: [(row, one) for row in rows for one in clean_samples(row)],
    absent="No clean step was recorded.",
)


FITS: dict[str, tuple[Callable[..., FittedLaw], str, int, str]] = {
    "Amdahl": (fit_amdahl, "longdash", 1, "a serial part; fitted, no model of the link"),
    "USL": (fit_usl, "longdashdot", 2, "contention and coherency; fitted likewise"),
}
"""Law → its fit, its dash, how many sizes beyond one rank it needs, what it means."""

LAW_DASHES = {"longdash": "10 4", "longdashdot": "10 3 2 3"}
POINTS = 30


def law_curves(rows: Sequence[Row], looks: Looks) -> list[go.Scatter]:
    """Return a hidden curve for each case and law that its measured sizes support."""
    curves = []
    for key, group in wording.by_case(rows).items():
        known = {r.world_size: r.speedup.value for r in group if r.speedup and not r.oversubscribed}
        beyond = [n for n in known if n > 1]
        for name, (fit, dash, needed, _) in FITS.items():
            if len(beyond) < needed:
                continue
            law = fit(list(known), list(known.values()))
            x = np.geomspace(1, max(beyond), POINTS)
            told = ", ".join(f"{n} {v:.3g}" for n, v in law.parameters.items())
            curves.append(
                go.Scatter(
                    x=[round(float(n), 4) for n in x],
                    y=[round(float(law.speedup(n)), 5) for n in x],
                    mode="lines",
                    visible=False,
                    legendgroup=_group(name),
                    line={"color": looks[key].color, "dash": dash, "width": 1.4},
                    hovertemplate=f"<b>{safe(key[1], 60)}</b>, {name}: {told}<br>"
                    f"N = %{{x:.3g}}: %{{y:.3g}}{wording.TIMES}<extra></extra>",
                )
            )
    return curves


def law_key(figure: go.Figure) -> list[KeyEntry]:
    """Return the switches of the curves that the figure has."""
    entries = []
    for name, (_, dash, _, meaning) in FITS.items():
        found = [str(i) for i, t in enumerate(figure.data) if t.legendgroup == _group(name)]
        if found:
            traces = ",".join(found)
            entries.append(
                KeyEntry(name, NEUTRAL, "", LAW_DASHES[dash], traces, meaning=meaning, shown=False)
            )
    return entries


def _group(name: str) -> str:
    return f"law/{name}"
