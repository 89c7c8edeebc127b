"""Two runs side by side: what they have in common, and by how much the second one differs.

The verdicts are the gate's. The launches of two runs were not interleaved: whatever changed on the
machine in between is part of the difference. Other machines, software and settings, which the gate
refuses, are what one may want to see here, and stand in a table next to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from markupsafe import Markup

from scalebench.gate import gate
from scalebench.gate.result import RowVerdict, Verdict
from scalebench.gate.results import ENVIRONMENT, Results
from scalebench.grouping import by_key
from scalebench.records.summary import Row, Summary, key_of
from scalebench.report.figures.charts import Chart, ChartKind, lay, make_chart
from scalebench.report.figures.style import (
    NEUTRAL,
    Look,
    Looks,
    hover,
    row_name,
    step_text,
    style,
    whiskers,
)
from scalebench.report.page.cards import IntervalBar
from scalebench.report.page.offline import fragment, row_address
from scalebench.report.page.overview import efficiency_chart
from scalebench.report.tables.layout import CASE, PLACE, RANKS, Column, PlainTable
from scalebench.report.words import wording

WORDS: Mapping[Verdict, str] = {
    "regressed": "slower",
    "probably regressed": "probably slower",
    "improved": "faster",
    "unchanged": "unchanged",
    "not worse": "no slowdown",
    "no change seen": "no change seen",
    "inconclusive": "undecided",
}
"""The gate's verdicts on a step, as this page says them."""


@dataclass(frozen=True)
class Pair:
    """One row in both runs.

    Attributes:
        efficiency: Its verdict on the efficiency; None: a run has none.
    """

    base: Row
    new: Row
    step: RowVerdict
    efficiency: RowVerdict | None

    @property
    def word(self) -> str:
        """What became of the step."""
        return WORDS[self.step.verdict]

    @property
    def change(self) -> float:
        """Step after over step before, minus 1."""
        return self.step.change or 0.0


@dataclass(frozen=True)
class RunComparison:
    """The second run against the first.

    Attributes:
        suites: Name of each suite, and the figure of what changed.
    """

    id: str
    base: str
    new: str
    conclusion: str
    suites: tuple[tuple[str, tuple[Chart, ...]], ...]
    tables: tuple[PlainTable, ...]
    pairs: tuple[Pair, ...] = ()

    @property
    def link(self) -> str:
        """Address of its view: the first one is what the page opens with."""
        return "" if self.id == FIRST else self.id


FIRST = "comparison-1"


def compare(comparison_id: str, base: Summary, new: Summary, looks: Looks) -> RunComparison:
    """Hold a run against another."""
    pairs, unmatched = _matched(base, new)
    suites = dict.fromkeys(pair.new.suite for pair in pairs)
    drawn = [
        (wording.plain(suite, 64), _charts(f"{comparison_id}-{index}", mine, looks))
        for index, suite in enumerate(suites, 1)
        if (mine := [pair for pair in pairs if pair.new.suite == suite])
    ]
    made = (_table(pairs), _facts(base, new), _alone(unmatched))
    return RunComparison(
        comparison_id,
        wording.plain(base.run_id, 120),
        wording.plain(new.run_id, 120),
        conclude(pairs),
        tuple(drawn),
        tuple(table for table in made if table.lines),
        tuple(pairs),
    )


def _matched(base: Summary, new: Summary) -> tuple[list[Pair], list[tuple[Row, str]]]:
    """Pair the rows by the gate's own rules; machine, software and settings may differ here."""
    before, after = (Results("", (summary,)) for summary in (base, new))
    settings = {name for row in (*base.rows, *new.rows) for name in row.strategy_settings}
    result = gate.compare(before, after, allowed=[*ENVIRONMENT, *settings])
    told = {(*verdict.place, verdict.metric): verdict for verdict in result.rows}
    was, is_ = ({key_of(row): row for row in results.rows} for results in (before, after))
    pairs: list[Pair] = []
    unmatched: list[tuple[Row, str]] = []
    for key in dict.fromkeys((*is_, *was)):
        step, efficiency = told.get((*key, "step_s")), told.get((*key, "efficiency"))
        if key not in was:
            unmatched.append((is_[key], "only in the second run"))
        elif key not in is_:
            unmatched.append((was[key], "only in the first run"))
        elif step is None or step.verdict not in WORDS:
            why = step.reason if step is not None and step.reason else "measured in neither run"
            unmatched.append((is_[key], why))
        else:
            pairs.append(Pair(was[key], is_[key], step, efficiency))
    return pairs, unmatched


def conclude(pairs: Sequence[Pair]) -> str:
    """Say how many rows became slower and faster, and which the most."""
    if not pairs:
        return "The runs have no row in common."
    by_word = {word: [pair for pair in pairs if pair.word == word] for word in WORDS.values()}
    said = []
    for word, extreme in (("slower", max), ("probably slower", max), ("faster", min)):
        if found := by_word[word]:
            most = extreme(found, key=lambda pair: pair.change)
            said.append(
                f"{_count(found)} {word}, {wording.place(most.new)} most ({change_text(most)})"
            )
    rest = ("unchanged", "no slowdown", "undecided")
    said += [f"{_count(by_word[word])} {word}" for word in rest if by_word[word]]
    if unseen := by_word["no change seen"]:
        said.append(f"{len(unseen)} {'show' if len(unseen) > 1 else 'shows'} no change")
    return f"Of {len(pairs)} rows in both runs, {wording.joined(said)}."


def _count(pairs: Sequence[Pair]) -> str:
    return f"{len(pairs)} {'is' if len(pairs) == 1 else 'are'}"


def change_text(pair: Pair) -> str:
    """Write the change of the step: ``"+3.1 %"``."""
    return f"{_signed(pair.change)} %"


def _signed(ratio: float) -> str:
    text = wording.signed(100 * ratio)
    return f"+{text}" if float(text.replace(wording.MINUS, "-")) > 0 else text


def interval_text(pair: Pair) -> str:
    """Write the interval of the change; ``"none"``: it has none."""
    low, high = pair.step.low, pair.step.high
    if low is None or high is None:
        return "none"
    return f"{_signed(low)} to {_signed(high)} %"


def _charts(chart_id: str, pairs: Sequence[Pair], looks: Looks) -> tuple[Chart, ...]:
    """Return the figures of one suite."""
    kind = ChartKind(
        "comparison",
        "Change of the step",
        lambda *_: _forest(pairs, looks),
        lambda _: conclude(pairs),
        COLUMNS,
        lambda _: pairs,
        note="Right of the line: slower than before; 99 % intervals over launches.",
    )
    change = make_chart(kind, chart_id, [pair.new for pair in pairs], looks)
    return (change,) if change else ()


def _forest(pairs: Sequence[Pair], looks: Looks) -> go.Figure:
    placed, figure = lay([pair.new for pair in pairs]), go.Figure()
    figure.add_trace(
        go.Scatter(
            x=[0, 0], y=[0, placed.bottom], mode="lines", hoverinfo="skip",
            line={"color": NEUTRAL, "width": 1.4},
        )
    )  # fmt: skip
    for y, pair in zip(placed.places, pairs, strict=True):
        look, change = looks[wording.case_key(pair.new)], pair.change
        figure.add_trace(
            go.Scatter(
                x=[100 * change],
                y=[y],
                error_x=whiskers([_ends(pair)], look.color, 1.6, 5, 100),
                mode="markers",
                marker={
                    "symbol": look.hollow if pair.new.oversubscribed else look.symbol,
                    "size": 10, "color": look.color,
                },
                **hover([
                    f"{row_name(pair.new)}<br>"
                    f"{change_text(pair)} ({interval_text(pair)}), {pair.word}"
                ]),
            )
        )  # fmt: skip
    style(figure, "comparison")
    placed.draw(figure)
    figure.update_xaxes(title="change of the step, percent", automargin=True)
    return figure


def _efficiency(row: Row) -> str:
    return wording.DASH if row.efficiency is None else f"{wording.point(row.efficiency, 100)} %"


def _points(pair: Pair) -> str:
    """Write the difference of the efficiencies, with its interval where there is one."""
    told = pair.efficiency
    if told is None or told.base is None or told.change is None or wording.is_baseline(pair.new):
        return wording.DASH
    difference = _signed(told.base * told.change)
    if told.low is None or told.high is None:
        return difference
    return f"{difference} ({_signed(told.base * told.low)} to {_signed(told.base * told.high)})"


def _new(pair: Pair) -> Row:
    return pair.new


COLUMNS: tuple[Column[Pair], ...] = (
    CASE.of(_new),
    RANKS.of(_new),
    Column("step before", lambda pair: step_text(pair.base)),
    Column("step after", lambda pair: step_text(pair.new)),
    Column("change", change_text),
    Column("99 % interval", interval_text),
    Column("verdict", lambda pair: pair.word, numeric=False),
    Column("efficiency before", lambda pair: _efficiency(pair.base)),
    Column("after", lambda pair: _efficiency(pair.new)),
    Column("points", _points),
)


def _table(pairs: Sequence[Pair]) -> PlainTable:
    return PlainTable.of(
        "Row by row",
        "Before: the first run, after: the second. Verdicts, intervals and tolerances are those of"
        " scalebench compare. The runs were not interleaved: what changed on the machine in between"
        " is part of the difference.",
        COLUMNS,
        pairs,
    )


def _facts(base: Summary, new: Summary) -> PlainTable:
    before, after = (dict(_leaves(summary)) for summary in (base, new))
    differing = [n for n in dict.fromkeys((*before, *after)) if before.get(n) != after.get(n)]
    return PlainTable.of(
        "What else differs between the runs",
        "",
        (
            Column("what", lambda name: wording.plain(name, 200), numeric=False),
            Column("before", lambda name: wording.plain(before.get(name, "–"), 200), numeric=False),
            Column("after", lambda name: wording.plain(after.get(name, "–"), 200), numeric=False),
        ),
        differing,
        folded=len(differing) > 6,
    )


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
    return PlainTable.of(
        "Not compared",
        "",
        (*PLACE, Column("reason", lambda of: of[1], numeric=False)),
        unmatched,
        folded=True,
    )


MOST_LINES = 6
ORDER = (
    "slower",
    "probably slower",
    "faster",
    "no change seen",
    "undecided",
    "no slowdown",
    "unchanged",
)
"""Verdicts, what matters most first."""


@dataclass(frozen=True)
class ChangeLine:
    """A row in both runs: the change of its step, on a track with zero in the middle."""

    name: str
    look: Look
    verdict: str
    text: str
    bar: IntervalBar
    sure: bool
    link: str


@dataclass(frozen=True)
class ChangeCard:
    """A suite in both runs.

    Attributes:
        chart: Efficiency over N, that of the first run pale; None: there is none.
        more: Rows that have no line.
    """

    name: str
    link: str
    conclusion: str
    chart: Markup | None
    lines: tuple[ChangeLine, ...]
    more: int


def change_cards(
    pairs: Sequence[Pair],
    before: Sequence[Row],
    after: Sequence[Row],
    looks: Looks,
    prefix: Sequence[str],
) -> tuple[ChangeCard, ...]:
    """Return a card for each suite that both runs have."""
    groups = by_key((pair.new.suite, pair) for pair in pairs)
    cards = []
    for suite, found in groups.items():
        now = [row for row in after if row.suite == suite]
        then = [row for row in before if row.suite == suite]
        links = {id(row): row_address(row, prefix) for row in now}
        name, said = wording.plain(suite, 64), conclude(found)
        chart = efficiency_chart(now, looks, links, f"Efficiency over N, {name}: {said}", then)
        lines = _lines(found, looks, prefix)
        cards.append(
            ChangeCard(
                name,
                fragment(*prefix, suite),
                said,
                chart,
                lines[:MOST_LINES],
                max(0, len(lines) - MOST_LINES),
            )
        )
    return tuple(cards)


def _lines(pairs: Sequence[Pair], looks: Looks, prefix: Sequence[str]) -> tuple[ChangeLine, ...]:
    reach = max((abs(end) for pair in pairs for end in _ends(pair)), default=0.0) or 1.0
    ordered = sorted(pairs, key=lambda pair: (ORDER.index(pair.word), -abs(pair.change)))
    return tuple(
        ChangeLine(
            name=wording.place(pair.new),
            look=looks[wording.case_key(pair.new)],
            verdict=pair.word,
            text=f"{change_text(pair)} ({interval_text(pair)})",
            bar=_bar(pair, reach),
            sure=_sure(pair),
            link=row_address(pair.new, prefix),
        )
        for pair in ordered
    )  # fmt: skip


def _bar(pair: Pair, reach: float) -> IntervalBar:
    middle, low, high = (round(50 + 50 * end / reach, 2) for end in _ends(pair))
    return IntervalBar(middle, low, high, 50.0, not _sure(pair))


def _sure(pair: Pair) -> bool:
    return pair.word in ("slower", "probably slower", "faster")


def _ends(pair: Pair) -> tuple[float, float, float]:
    low = pair.change if pair.step.low is None else pair.step.low
    high = pair.change if pair.step.high is None else pair.step.high
    return pair.change, low, high
