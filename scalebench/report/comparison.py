"""Two runs side by side: what they have in common, and by how much the second one differs.

The launches of two runs were not interleaved: whatever changed on the machine in between is part
of the difference. The gate judges more carefully; this shows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import plotly.graph_objects as go

from scalebench import units
from scalebench.report import wording
from scalebench.report.charts import Chart, ChartKind, make_chart
from scalebench.report.figure_style import Looks, safe, style
from scalebench.report.lanes import lay
from scalebench.report.listing import PlainTable
from scalebench.report.palette import NEUTRAL
from scalebench.stats import Estimate, ratio_of_launches
from scalebench.summary import Row, Summary

ALIKE = ("workload", "scaling", "device", "global_batch", "rank_batch", "virtual_hosts", "link")
"""What two rows must share for their difference to mean anything."""

HEADER = (
    *("case", "N", "step before", "step after", "change", "95 % interval", "told apart"),
    *("efficiency before", "after", "points"),
)


@dataclass(frozen=True)
class Pair:
    """One row in both runs.

    Attributes:
        ratio: Step of the new run over that of the base; without interval where a run has a
            single launch.
    """

    base: Row
    new: Row
    ratio: Estimate

    @property
    def word(self) -> str:
        """``slower``, ``faster``, or that it cannot be told."""
        if self.ratio.low is None or self.ratio.high is None:
            return "one launch"
        if self.ratio.low > 1:
            return "slower"
        return "faster" if self.ratio.high < 1 else "no difference told"


@dataclass(frozen=True)
class Comparison:
    """The second run against the first.

    Attributes:
        id: Of the element on the page.
        base: Name of the run that the other is held against.
        new: Name of the other.
    """

    id: str
    base: str
    new: str
    conclusion: str
    charts: tuple[Chart, ...]
    tables: tuple[PlainTable, ...]


def compare(comparison_id: str, base: Summary, new: Summary, looks: Looks) -> Comparison:
    """Hold a run against another.

    Args:
        comparison_id: Of the element on the page.
        base: What it is held against.
        new: The run.
        looks: Of the cases of both.
    """
    pairs, unmatched = _matched(base, new)
    charts = [
        chart
        for index, rows in enumerate(wording.by_suite(p.new for p in pairs).values(), 1)
        if (chart := _chart(f"{comparison_id}-{index}", rows, pairs, looks))
    ]
    made = (_table(pairs), _facts(base, new), _alone(unmatched))
    return Comparison(
        comparison_id,
        wording.plain(base.run_id, 120),
        wording.plain(new.run_id, 120),
        _conclude(pairs),
        tuple(charts),
        tuple(table for table in made if table.lines),
    )


def _matched(base: Summary, new: Summary) -> tuple[list[Pair], list[tuple[Row, str]]]:
    before = {(*wording.case_key(row), row.world_size): row for row in base.rows}
    pairs: list[Pair] = []
    unmatched: list[tuple[Row, str]] = []
    for row in new.rows:
        other = before.pop((*wording.case_key(row), row.world_size), None)
        if other is None:
            unmatched.append((row, "only in the second run"))
        elif different := [name for name in ALIKE if getattr(row, name) != getattr(other, name)]:
            unmatched.append((row, f"other {wording.joined(different)}"))
        elif not _medians(row) or not _medians(other):
            unmatched.append((row, "not measured in both runs"))
        else:
            pairs.append(Pair(other, row, ratio_of_launches(_medians(row), _medians(other))))
    unmatched += [(row, "only in the first run") for row in before.values()]
    return pairs, unmatched


def _medians(row: Row) -> list[float]:
    """Return the median step of every launch, seconds."""
    found = [median(sample.step_s) for sample in row.samples if sample.step_s]
    return [step_s for step_s in found if step_s > 0]


def _conclude(pairs: Sequence[Pair]) -> str:
    if not pairs:
        return "The runs have no row in common."
    slower = [pair for pair in pairs if pair.word == "slower"]
    faster = [pair for pair in pairs if pair.word == "faster"]
    said = []
    if slower:
        worst = max(slower, key=lambda pair: pair.ratio.value)
        said.append(f"{_count(slower)} slower, {wording.place(worst.new)} most ({_change(worst)})")
    if faster:
        best = min(faster, key=lambda pair: pair.ratio.value)
        said.append(f"{_count(faster)} faster, {wording.place(best.new)} most ({_change(best)})")
    rest = len(pairs) - len(slower) - len(faster)
    if rest:
        said.append(f"{rest} cannot be told apart")
    return f"Of {len(pairs)} rows in both runs, {wording.joined(said)}."


def _count(pairs: Sequence[Pair]) -> str:
    return f"{len(pairs)} {'is' if len(pairs) == 1 else 'are'}"


def _change(pair: Pair) -> str:
    return f"{_signed(pair.ratio.value - 1)} %"


def _signed(ratio: float) -> str:
    text = wording.signed(100 * ratio)
    return f"+{text}" if float(text.replace(wording.MINUS, "-")) > 0 else text


def _interval(pair: Pair) -> str:
    low, high = pair.ratio.low, pair.ratio.high
    if low is None or high is None:
        return "none"
    return f"{_signed(low - 1)} to {_signed(high - 1)} %"


def _chart(chart_id: str, rows: Sequence[Row], pairs: Sequence[Pair], looks: Looks) -> Chart | None:
    mine = [pair for pair in pairs if any(pair.new is row for row in rows)]
    kind = ChartKind(
        "comparison",
        "Change of the step",
        "",
        lambda *_: _forest(mine, looks),
        lambda _: _conclude(mine),
        lambda _: [_cells(pair) for pair in mine],
        HEADER,
        None,
        "Right of the line: slower than before; 95 % intervals over launches.",
    )
    return make_chart(kind, chart_id, rows, looks)


def _forest(pairs: Sequence[Pair], looks: Looks) -> go.Figure:
    placed, figure = lay([pair.new for pair in pairs]), go.Figure()
    figure.add_trace(
        go.Scatter(
            x=[0, 0], y=[0, placed.bottom], mode="lines", hoverinfo="skip",
            line={"color": NEUTRAL, "width": 1.4},
        )
    )  # fmt: skip
    for y, pair in zip(placed.places, pairs, strict=True):
        look, ratio = looks[wording.case_key(pair.new)], pair.ratio
        low, high = ratio.low or ratio.value, ratio.high or ratio.value
        figure.add_trace(
            go.Scatter(
                x=[100 * (ratio.value - 1)],
                y=[y],
                error_x={
                    "type": "data", "symmetric": False, "array": [100 * (high - ratio.value)],
                    "arrayminus": [100 * (ratio.value - low)], "thickness": 1.6, "width": 5,
                    "color": look.color,
                },
                mode="markers",
                marker={
                    "symbol": look.hollow if pair.new.oversubscribed else look.symbol,
                    "size": 10, "color": look.color,
                },
                customdata=[[
                    f"<b>{safe(pair.new.case, 60)}</b>, {wording.ranks(pair.new)}<br>"
                    f"{_change(pair)} ({_interval(pair)}), {pair.word}"
                ]],
                hovertemplate="%{customdata[0]}<extra></extra>",
            )
        )  # fmt: skip
    style(figure, "comparison")
    placed.draw(figure)
    figure.update_xaxes(title="change of the step, percent", automargin=True)
    return figure


def _cells(pair: Pair) -> tuple[str, ...]:
    base, new = pair.base, pair.new
    return (
        wording.plain(new.case, 64),
        str(new.world_size),
        _step(base),
        _step(new),
        _change(pair),
        _interval(pair),
        pair.word,
        _efficiency(base),
        _efficiency(new),
        _points(pair),
    )


def _step(row: Row) -> str:
    if row.step_s is None:
        return wording.DASH
    return units.seconds(row.step_s.value, row.step_s.half_width)


def _efficiency(row: Row) -> str:
    return wording.DASH if row.efficiency is None else f"{wording.point(row.efficiency, 100)} %"


def _points(pair: Pair) -> str:
    """Write the difference of the efficiencies; both intervals at once, as if independent."""
    before, after = pair.base.efficiency, pair.new.efficiency
    if before is None or after is None or wording.is_baseline(pair.new):
        return wording.DASH
    difference = _signed(after.value - before.value)
    if before.half_width is None or after.half_width is None:
        return difference
    reach = (before.half_width**2 + after.half_width**2) ** 0.5
    return f"{difference} ± {100 * reach:.1f}"


def _table(pairs: Sequence[Pair]) -> PlainTable:
    return PlainTable(
        "Row by row",
        "Before: the first run, after: the second. Step: intervals over launches (Welch). The runs"
        " were not interleaved: what changed on the machine in between is part of the difference.",
        HEADER,
        tuple(_cells(pair) for pair in pairs),
        frozenset({0, 6}),
    ).shortened()


def _facts(base: Summary, new: Summary) -> PlainTable:
    told = [dict(_leaves(summary)) for summary in (base, new)]
    names = dict.fromkeys((*told[0], *told[1]))
    before, after = told
    lines = tuple(
        tuple(wording.plain(t, 200) for t in (name, before.get(name, "–"), after.get(name, "–")))
        for name in names
        if before.get(name) != after.get(name)
    )
    return PlainTable(
        "What else differs between the runs",
        "",
        ("what", "before", "after"),
        lines,
        frozenset({0, 1, 2}),
        folded=len(lines) > 6,
    ).shortened()


def _leaves(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "run", summary.run_id
    yield "created", summary.created
    yield "scalebench", summary.scalebench_version
    yield "command", summary.reproduce
    yield from _flat("", summary.environment)


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _flat(f"{name} {key}".strip(), below)
    else:
        yield name, str(value)


def _alone(unmatched: Sequence[tuple[Row, str]]) -> PlainTable:
    return PlainTable(
        "Not compared",
        "",
        ("case", "N", "reason"),
        tuple((wording.plain(r.case, 64), str(r.world_size), why) for r, why in unmatched),
        frozenset({0, 2}),
        folded=True,
    ).shortened()
