"""A case in at most eight lines: result as a bar, losses as a strip, sentence, advice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalebench import units
from scalebench.records.rows.budget import PARTS, Budget
from scalebench.records.rows.race import RaceFigures
from scalebench.records.summary import Estimate, Row
from scalebench.report.figures.style import PART_COLORS, Look, Looks
from scalebench.report.findings.findings import Finding
from scalebench.report.page.offline import row_address
from scalebench.report.tables import compression, races
from scalebench.report.words import causes, wording
from scalebench.report.words.causes import NEGLIGIBLE
from scalebench.report.words.notes import OF_THE_HEADLINE, details, marks, said
from scalebench.report.words.terms import plain

NOISY = 0.1
"""Half the width of an interval, of an efficiency: a wider one is drawn grey."""


@dataclass(frozen=True)
class IntervalBar:
    """An efficiency on a track from ``start`` to ``end``, as percent of the track.

    Attributes:
        low, high: Ends of the interval; None: there is none.
        ideal: Where 100 % lies; None: outside of the track.
        noisy: Without an interval, or with a wide one.
    """

    middle: float
    low: float | None
    high: float | None
    ideal: float | None
    noisy: bool


@dataclass(frozen=True)
class Track:
    """What all interval bars of a suite have in common: efficiencies at both ends."""

    start: float
    end: float

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Track":
        """Return the track that holds the efficiencies of these rows with their intervals."""
        return cls.of_estimates([row.efficiency for row in rows if row.efficiency])

    @classmethod
    def of_estimates(cls, known: Sequence[Estimate]) -> "Track":
        """Return the track that holds these ratios with their intervals; 1 is on it."""
        start = 0.5 if known and min(one.reach[0] for one in known) >= 0.5 else 0.0
        return cls(start, max(1.0, *(min(one.reach[1], 2.0) for one in known)) if known else 1.0)

    def place(self, efficiency: float) -> float:
        """Return where an efficiency lies, percent of the track."""
        within = (efficiency - self.start) / (self.end - self.start)
        return round(100 * min(max(within, 0.0), 1.0), 2)

    def bar(self, estimate: Estimate) -> IntervalBar:
        """Return the bar of an efficiency."""
        low, high = estimate.low, estimate.high
        return IntervalBar(
            self.place(estimate.value),
            None if low is None else self.place(low),
            None if high is None else self.place(high),
            self.place(1.0),
            is_noisy(estimate),
        )


def is_noisy(estimate: Estimate) -> bool:
    """Whether an efficiency has no interval, or one too wide to rank it."""
    half = estimate.half_width
    return half is None or half > NOISY * abs(estimate.value)


@dataclass(frozen=True)
class Segment:
    """A part of a loss budget in a strip.

    Attributes:
        width: Percent of the strip.
        points: How much it is, with its unit.
        sure: Its interval excludes zero; else it is hatched.
    """

    key: str
    name: str
    color: str
    width: float
    points: str
    sure: bool


@dataclass(frozen=True)
class Strip:
    """The parts of a loss budget that take time, end to end.

    Attributes:
        segments: Empty: the budget does not close, or nothing is missing.
        text: The same in words.
        total: What they come to, with its unit; empty: not drawn.
    """

    segments: tuple[Segment, ...]
    text: str
    total: str


def widest(rows: Sequence[Row | None]) -> float:
    """Return the largest sum of losses among rows whose budget closes, as a part of the step."""
    budgets = [row.budget for row in rows if row and row.budget and row.budget.closes]
    return max((_sum(budget) for budget in budgets), default=0.0)


def _sum(budget: Budget) -> float:
    return sum(max(budget.share(part), 0.0) for part in PARTS)


def strip(row: Row, full: float) -> Strip | None:
    """Return the strip of a row's budget; None: it has none, or it does not close.

    ``full``: what the whole strip stands for, as a part of the step.
    """
    budget = row.budget
    if budget is None or not budget.closes or full <= 0 or compression.is_bound(row):
        return None
    shown = [part for part in PARTS if abs(budget.share(part)) >= NEGLIGIBLE]
    segments = tuple(
        Segment(
            part.key,
            part.name,
            PART_COLORS[part.key],
            round(100 * budget.share(part) / full, 2),
            f"{causes.points(budget.share(part))} %",
            causes.certain(row, budget, part),
        )
        for part in shown
        if budget.share(part) > 0
    )
    told = [
        f"{part.name} {causes.points(budget.share(part))}"
        + ("" if causes.certain(row, budget, part) else " (uncertain)")
        for part in shown
    ]
    total = f"{causes.points(budget.gap)} %"
    return Strip(segments, f"{total} of a step is lost: {', '.join(told) or 'none'}.", total)


@dataclass(frozen=True)
class Card:
    """The headline of one case.

    Attributes:
        figure: The number in the largest type, with its ``unit``.
        share: The efficiency.
        noisy: Drawn grey: no interval, or a wide one.
        bar: None: no efficiency.
        strip: None: the budget does not close, or there is none.
        sentence: What costs most, or the answer itself.
        next_step: What to do; empty: nothing.
        link: Address of its row; empty: nothing was measured.
    """

    finding: Finding
    look: Look
    figure: str
    unit: str
    share: str
    where: str
    noisy: bool
    bar: IntervalBar | None
    strip: Strip | None
    sentence: str
    next_step: str
    link: str


def make_cards(
    findings: Sequence[Finding], looks: Looks, prefix: Sequence[str] = ()
) -> tuple[Card, ...]:
    """Return the cards of a suite; their bars and strips have the same scale."""
    heads = [finding.headline for finding in findings]
    track = Track.of([row for row in heads if row is not None])
    full = widest(heads)
    return tuple(
        _card(finding, looks[finding.suite, finding.case], track, full, prefix)
        for finding in findings
    )


def _card(finding: Finding, look: Look, track: Track, full: float, prefix: Sequence[str]) -> Card:
    row, sentence, next_step = finding.headline, _sentence(finding), finding.next_step or ""
    if row is None:
        return Card(
            finding, look, "no result", "", "", "", False, None, None, sentence, next_step, ""
        )
    link, where = row_address(row, prefix), f"on {wording.ranks(row)}"
    if row.race is not None:
        return _race_card(finding, look, row, row.race, link)
    if finding.kind in ("scaling", "inconclusive") and row.efficiency:
        bar = track.bar(row.efficiency)
        losses = strip(row, full)
        if finding.kind == "inconclusive":
            return Card(
                finding, look, "inconclusive", "", "", where, True, bar, losses, sentence,
                next_step, link,
            )  # fmt: skip
        big = row.speedup or row.efficiency.scaled(row.world_size)
        return Card(
            finding, look, wording.point(big), wording.TIMES,
            f"{wording.plus_minus(row.efficiency, 100)} %", where, bar.noisy, bar, losses, sentence,
            next_step, link,
        )  # fmt: skip
    number, unit = _step(row)
    return Card(
        finding, look, number, unit, "", f"per step {where}" if unit else where, False, None, None,
        sentence, next_step, link,
    )  # fmt: skip


def _race_card(finding: Finding, look: Look, row: Row, race: RaceFigures, link: str) -> Card:
    """Return the card of a case that raced to a loss: that is what it is judged by."""
    where, speedup = f"on {wording.ranks(row)}", race.speedup_to_target
    noisy = speedup is None or is_noisy(speedup)
    if speedup is None:
        number, unit = f"{race.num_reached} of {race.num_seeds}", " seeds"
        where = f"{where} reached the target"
    else:
        number, unit, where = wording.point(speedup), wording.TIMES, f"to the loss, {where}"
    return Card(
        finding, look, number, unit, "", where, noisy and row.case != race.baseline[0], None, None,
        races.sentence(row, race), "", link,
    )  # fmt: skip


def _step(row: Row) -> tuple[str, str]:
    if row.step_s is None:
        return wording.DASH, ""
    number, _, unit = units.seconds(row.step_s.value, row.step_s.half_width).partition(" ")
    return number, f" {unit}"


def _sentence(finding: Finding) -> str:
    """Return the one sentence of a card: what costs most, else the answer."""
    if finding.kind == "scaling":
        if finding.losses:
            return f"{wording.capital(finding.losses[0])}."
        return finding.because[0] if finding.because else finding.sentence
    if finding.kind == "inconclusive":
        return f"{wording.capital(finding.result)}."
    if finding.kind == "failed":
        return finding.notes[-1] if finding.notes else finding.sentence
    return plain(finding.sentence, 200)


LATER = float("inf")
"""Place of a case without a result: behind all that have one."""


@dataclass(frozen=True)
class CaseLine:
    """A case of a suite's card: its result with the interval.

    Attributes:
        doubt: Marks under which the result itself may be wrong; empty: it has none.
    """

    name: str
    look: Look
    text: str
    bar: IntervalBar | None
    noisy: bool
    hollow: bool
    link: str
    doubt: str = ""


@dataclass(frozen=True)
class _Figure:
    """What a line says of a row.

    Attributes:
        place: Of the line among the others, the smallest first.
        drawn: What its bar shows; None: no bar.
    """

    text: str
    place: float
    drawn: Estimate | None = None


def case_lines(
    findings: Sequence[Finding], looks: Looks, prefix: Sequence[str] = ()
) -> tuple[str, tuple[CaseLine, ...]]:
    """Return a caption, and a line for each case but the baseline, the best first.

    Races: time to the target, with a bar of how much sooner than the baseline. Checkpoints: the
    cheapest way to save. All others: the efficiency.
    """
    shown = [finding for finding in findings if finding.kind != "baseline"]
    rows = [finding.headline for finding in shown if finding.headline is not None]
    caption, figure = _kind(rows)
    figures = {id(row): figure(row) for row in rows}
    drawn = [one.drawn for one in figures.values() if one.drawn is not None]
    track = Track.of_estimates(drawn)
    found = []
    for finding in shown:
        row, name = finding.headline, wording.plain(finding.case, 64)
        look = looks[finding.suite, finding.case]
        if row is None:
            found.append((LATER, CaseLine(name, look, "no result", None, True, True, "")))
            continue
        one = figures[id(row)]
        bar = track.bar(one.drawn) if one.drawn else None
        line = CaseLine(
            name=name,
            look=look,
            text=one.text,
            bar=bar,
            noisy=one.place == LATER or (one.drawn is not None and is_noisy(one.drawn)),
            hollow=row.oversubscribed,
            link=row_address(row, prefix),
            doubt=_doubt(row) if one.drawn is not None else "",
        )
        found.append((one.place, line))
    found.sort(key=lambda pair: pair[0])
    return caption, tuple(line for _, line in found)


def _kind(rows: Sequence[Row]) -> tuple[str, Callable[[Row], _Figure]]:
    target = next((row.race.target_loss for row in rows if row.race is not None), None)
    if target is not None:
        return f"time to a loss of {target:.4g}", _raced
    if any(row.recovery is not None and row.recovery.saves for row in rows):
        return "what a checkpoint costs training", _saved
    return "efficiency", _rated


def _raced(row: Row) -> _Figure:
    race = row.race
    if race is None:
        return _Figure("no race", LATER)
    if race.time_to_target_s is None:
        return _Figure(f"reached by {race.num_reached} of {race.num_seeds}", LATER)
    time = race.time_to_target_s
    return _Figure(units.seconds(time.value), time.value, race.speedup_to_target)


def _saved(row: Row) -> _Figure:
    best = row.recovery.cheapest if row.recovery is not None else None
    if best is None:
        return _Figure("not saved", LATER)
    return _Figure(units.seconds(best.cost_s.value), best.cost_s.value)


def _rated(row: Row) -> _Figure:
    if row.efficiency is None or row.world_size == 1:
        return _Figure("no efficiency", LATER)
    if compression.is_bound(row):
        return _Figure("only a bound", LATER)
    text = f"{wording.point(row.efficiency, 100)} %"
    return _Figure(text, -row.efficiency.value, row.efficiency)


def _doubt(row: Row) -> str:
    found = [name for name in marks(row) if name in OF_THE_HEADLINE]
    return ", ".join(" ".join(t for t in (said(name), details(row, name)) if t) for name in found)
