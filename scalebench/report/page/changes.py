"""What changed between two runs, a card for each suite: the overview of a page of several runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from scalebench.records.summary import Row
from scalebench.report.page.addresses import fragment, row_address
from scalebench.report.page.bars import IntervalBar
from scalebench.report.page.comparison import Pair, change_text, conclude, interval_text
from scalebench.report.page.efficiency_chart import efficiency_chart
from scalebench.report.page.figure_style import Looks
from scalebench.report.page.palette import Look
from scalebench.report.words import wording

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
    """Return a card for each suite that both runs have.

    Args:
        pairs: The rows in both runs.
        before: All rows of the first run.
        after: All rows of the other.
        looks: Of the cases of both.
        prefix: Of the addresses of the other run.
    """
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.new.suite, []).append(pair)
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
