"""The first screen: a card for each suite with its small picture, a line for each fact."""

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from scalebench import units
from scalebench.records.summary import Estimate, Row, Summary, TimedCollectives
from scalebench.report.figures.style import DASHES, NEUTRAL, SYMBOLS, Look, Looks
from scalebench.report.findings import ranking
from scalebench.report.findings.advice_rules import NOT_ALONE
from scalebench.report.findings.findings import (
    Finding,
    NextStep,
    SuiteVerdict,
    biggest_cause,
    headlines,
    where,
)
from scalebench.report.findings.notes import first_loss
from scalebench.report.findings.ranking import certain
from scalebench.report.markdown import code, escape
from scalebench.report.page.cards import CaseLine, case_lines
from scalebench.report.page.offline import fragment, row_address
from scalebench.report.tables import communication, predictions, recovery
from scalebench.report.tables.layout import PlainTable
from scalebench.report.words import causes, wording
from scalebench.report.words.notes import marks, said
from scalebench.report.words.wording import CaseKey

WIDTH, HEIGHT = 250, 152
LEFT, RIGHT, TOP, BOTTOM = 43, 6, 8, 32
MOST_MARKS = 240
"""With more rows only the lines are drawn: marks would cover each other."""

MOST_TICKS = 8
DODGE = 7.0
"""Pixels between two cases at one N, at most."""
MOST_CASES = 6
"""Of a suite on the overview, the best first; the others stand in its own view."""


@dataclass(frozen=True)
class _Axes:
    sizes: tuple[int, ...]
    ceiling: float

    def x(self, size: int) -> float:
        inner = WIDTH - LEFT - RIGHT
        if len(self.sizes) == 1:
            return LEFT + inner / 2
        margin = min(26.0, inner / (2 * len(self.sizes)))
        place = self.sizes.index(size) / (len(self.sizes) - 1)
        return LEFT + margin + (inner - 2 * margin) * place

    def y(self, efficiency: float) -> float:
        share = efficiency / self.ceiling
        inner = HEIGHT - TOP - BOTTOM
        return TOP + inner * (1 - min(max(share, 0.0), 1.0))


def efficiency_chart(
    rows: Sequence[Row],
    looks: Looks,
    links: Mapping[int, str],
    label: str,
    before: Sequence[Row] = (),
) -> Markup | None:
    """Return the picture; None: no case has an efficiency.

    ``links``: ``id`` of a row → address of its view. ``before``: rows of an earlier run, drawn
    pale.
    """
    drawn, earlier = _rated(rows), _rated(before)
    if not drawn:
        return None
    known = [row.efficiency for row in (*drawn, *earlier) if row.efficiency]
    most = max(one.reach[1] for one in known)
    sizes = tuple(sorted({row.world_size for row in (*drawn, *earlier)}))
    axes = _Axes(sizes, min(max(1.05, 1.03 * most), 2.0))
    groups = wording.by_case(drawn)
    parts = [*_grid(axes)]
    with_marks = len(drawn) <= MOST_MARKS
    for key, group in wording.by_case(earlier).items():
        index = list(groups).index(key) if key in groups else 0
        pale = _case(key, looks[key], group, axes, _shift(index, len(groups), axes), None)
        parts += [f'<g opacity="0.35">{"".join(pale)}</g>']
    for index, (key, group) in enumerate(groups.items()):
        shift = _shift(index, len(groups), axes)
        parts += _case(key, looks[key], group, axes, shift, links if with_marks else None)
    return Markup(
        f'<svg class="effchart" viewBox="0 0 {WIDTH} {HEIGHT}" role="group"'
        f' aria-label="{html.escape(label)}">{"".join(parts)}</svg>'
    )


def _rated(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.efficiency and not wording.is_baseline(row)]


def _shift(index: int, count: int, axes: _Axes) -> float:
    room = (WIDTH - LEFT - RIGHT) / len(axes.sizes) * 0.5
    step = min(DODGE, room / max(count, 1))
    return (index - (count - 1) / 2) * step


def _grid(axes: _Axes) -> list[str]:
    lines = [
        f'<line class="{"ideal" if tick == 1 else "grid"}" x1="{LEFT}" x2="{WIDTH - RIGHT}"'
        f' y1="{axes.y(tick):.1f}" y2="{axes.y(tick):.1f}"/>'
        f'<text x="{LEFT - 7}" y="{axes.y(tick) + 4:.1f}" text-anchor="end">'
        f"{100 * tick:.0f} %</text>"
        for tick in (0.0, 0.5, 1.0)
    ]
    every = -(-len(axes.sizes) // MOST_TICKS)
    lines += [
        f'<text x="{axes.x(size):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{size}'
        "</text>"
        for size in axes.sizes[::every]
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    lines.append(f'<text x="{middle}" y="{HEIGHT - 3}" text-anchor="middle">ranks (N)</text>')
    return lines


def _case(
    key: CaseKey,
    look: Look,
    group: Sequence[Row],
    axes: _Axes,
    shift: float,
    links: Mapping[int, str] | None,
) -> list[str]:
    points = [
        (axes.x(row.world_size) + shift, row, row.efficiency) for row in group if row.efficiency
    ]
    line = " ".join(f"{x:.1f},{axes.y(one.value):.1f}" for x, _, one in points)
    dash = DASHES[look.dash]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    said = [
        f'<polyline points="{line}" fill="none" stroke="{look.color}" stroke-width="1.6"{dashed}/>'
    ]
    if links is None:
        return said
    for x, row, one in points:
        said.append(_mark(look, axes, x, row, one, links.get(id(row), "")))
    return said


def _mark(look: Look, axes: _Axes, x: float, row: Row, one: Estimate, link: str) -> str:
    color = look.color
    whisker = ""
    if one.ends:
        bottom, top = map(axes.y, one.ends)
        whisker = (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"'
            f' stroke="{color}" stroke-width="1.6"/>'
        )
    hollow = row.oversubscribed or one.low is None
    fill = "var(--paper)" if hollow else color
    text = html.escape(
        f"{wording.place(row)}: {wording.plus_minus(one, 100)} %"
        + (", oversubscribed" if row.oversubscribed else "")
    )
    mark = (
        f'{whisker}<path d="{SYMBOLS[look.symbol]}" transform="translate({x:.1f}'
        f' {axes.y(one.value):.1f})" fill="{fill}" stroke="{color}" stroke-width="1.4"/>'
        f'<circle cx="{x:.1f}" cy="{axes.y(one.value):.1f}" r="9" fill="transparent"/>'
        f"<title>{text}</title>"
    )
    if not link:
        return f"<g>{mark}</g>"
    return f'<g data-row="{html.escape(link)}">{mark}</g>'


def swatch(look: Look, hollow: bool = False) -> Markup:
    """Return a case's marker, for a name next to it."""
    color = look.color or NEUTRAL
    fill = "none" if hollow else color
    return Markup(
        '<svg class="marker" viewBox="-7 -7 14 14" width="14" height="14" aria-hidden="true">'
        f'<path d="{SYMBOLS[look.symbol]}" fill="{fill}" stroke="{color}" stroke-width="1.4"/>'
        "</svg>"
    )


@dataclass(frozen=True)
class SuiteCard:
    """A suite on the overview.

    Attributes:
        place: At which size it is judged.
        headline: What scales best, and how certain that is.
        chart: Efficiency over N of all its cases; None: there is none.
        caption: What the figures of the lines are.
        more: Cases that have no line.
        loss: What costs most in the case that ``next_step`` is about.
        next_step: What to try next; empty: nothing.
        missing: How many rows have no result; empty: all have one.
    """

    name: str
    link: str
    place: str
    headline: str
    chart: Markup | None
    caption: str
    cases: tuple[CaseLine, ...]
    more: int
    loss: str
    next_step: str
    missing: str


@dataclass(frozen=True)
class Fact:
    """One line about the run, and where more of it stands.

    Attributes:
        link: Address; empty: nowhere.
    """

    name: str
    text: str
    link: str = ""


def suite_card(
    verdict: SuiteVerdict, rows: Sequence[Row], looks: Looks, prefix: Sequence[str] = ()
) -> SuiteCard:
    """Return the card of one suite, of which ``rows`` are all rows."""
    best = ranking.best_row(headlines(verdict.findings))
    links = {id(row): row_address(row, prefix) for row in rows}
    heads = [
        finding.headline
        for finding in verdict.findings
        if finding.headline is not None and finding.kind != "baseline"
    ]
    caption, lines = case_lines(verdict.findings, looks, prefix)
    headline = recovery.without_costs(rows) or verdict.headline
    about = f"Efficiency over N, {verdict.name}: {headline}"
    step = verdict.next_step or _next_step(verdict.findings, best)
    return SuiteCard(
        name=verdict.name,
        link=fragment(*prefix, verdict.suite),
        place=_place(best, heads or rows),
        headline=headline if heads else _nothing(rows),
        chart=efficiency_chart(rows, looks, links, about),
        caption=caption,
        cases=lines[:MOST_CASES],
        more=max(0, len(lines) - MOST_CASES),
        loss=_loss(heads if verdict.next_step else _of_step(verdict.findings, best) or heads, rows),
        next_step="" if step.endswith(NOT_ALONE) else step,  # a note above all cards says it
        missing=_missing(rows),
    )


def _place(best: Row | None, rows: Sequence[Row]) -> str:
    if best is not None:
        return f"{best.scaling} scaling{where(best)}"
    largest = max(rows, key=lambda row: row.world_size)
    return f"{largest.scaling} scaling, {wording.ranks(largest)}"


def _nothing(rows: Sequence[Row]) -> str:
    if any(row.status == "ok" for row in rows):
        return "Only the baseline was measured."
    return f"Nothing was measured. {wording.not_measured(rows[0])}."


def _loss(heads: Sequence[Row], rows: Sequence[Row]) -> str:
    """Say what costs most in these cases; of one, how certain that is."""
    first = first_loss(heads[0], rows) if len(heads) == 1 else None
    if first is not None and first.sentence is not None and (step := heads[0].step_s):
        return first.share(step.value)
    found = causes.largest_loss(heads)
    if found is not None and len(heads) > 1:
        share, cause, row = found
        of = f"{cause}, {causes.points(share)} % of the step of {wording.plain(row.case, 64)}"
        return of if _none_is_larger(heads, share) else f"{of}, the largest that is certain"
    if (
        len(heads) == 1
        and heads[0].budget
        and (told := biggest_cause(heads[0], bool(certain(heads[0], rows))))
    ):
        return f"{wording.plain(heads[0].case, 64)}: {told[0].removeprefix('biggest cause: ')}"
    sure = ((one, row.step_s) for row in heads if row.step_s for one in certain(row, rows)[:1])
    for one, step in sure:
        return one.share(step.value)
    budgets = [row.budget for row in heads if row.budget]
    if not budgets:
        never_traced = all(r.recovery is not None or wording.of_logs([r]) for r in heads)
        return "" if never_traced else "not known: no step was traced"
    if not any(budget.closes for budget in budgets):
        return "not known: traced steps were unlike the others"
    return "too uncertain to say"


def _none_is_larger(heads: Sequence[Row], share: float) -> bool:
    """Tell whether no part of a step that may be zero seems to take more than this share."""
    return all(
        one.budget is not None and causes.certain(one, one.budget, part)
        for one in heads
        for part in causes.losses(one, share)
    )


def _stepping(findings: Sequence[Finding], best: Row | None) -> list[Finding]:
    """Return the case that has something to try: the best, if it has."""
    told = [finding for finding in findings if finding.next_step]
    return ([finding for finding in told if finding.headline is best] or told)[:1]


def _of_step(findings: Sequence[Finding], best: Row | None) -> list[Row]:
    return [one.headline for one in _stepping(findings, best) if one.headline is not None]


def _next_step(findings: Sequence[Finding], best: Row | None) -> str:
    for one in _stepping(findings, best):
        of = f"{wording.plain(one.case, 64)}: " if len(findings) > 2 else ""
        return f"{of}{one.next_step}"
    return ""


def _missing(rows: Sequence[Row]) -> str:
    told = []
    for status, words in (("failed", "failed"), ("oom", "out of memory"), ("skipped", "skipped")):
        count = sum(row.status == status for row in rows)
        told += [f"{count} {words}"] if count else []
    total = f"{len(rows)} row{'' if len(rows) == 1 else 's'}"
    return f"{total}: {wording.joined(told)}" if told else ""


def facts(
    summary: Summary, predicted: Mapping[str, Any] | None, about: Mapping[str, str]
) -> tuple[Fact, ...]:
    """Return what one asks of a run besides its results, a line each.

    ``about``: section of the run's own view → address.
    """
    made = (
        _doubts(summary.rows, about.get("marks", "")),
        _model(predicted),
        _machine(summary.environment, about.get("environment", "")),
        Fact("Repeat it", wording.plain(summary.reproduce, 300), about["reproduce"]),
    )
    return tuple(fact for fact in made if fact.text)


def _doubts(rows: Sequence[Row], link: str) -> Fact:
    counted = Counter(name for row in rows for name in marks(row))
    measured = sum(row.status == "ok" for row in rows)
    if not rows:
        return Fact("Read with care", "")
    if not counted:
        return Fact("Read with care", "no row is marked", "")
    told = [f"{said(name)} ({count} of {measured} rows)" for name, count in counted.items()]
    return Fact("Read with care", ", ".join(told), link)


def _model(predicted: Mapping[str, Any] | None) -> Fact:
    if predicted is None:
        return Fact("Model", "")
    worst = predicted["worst"]
    place = wording.place_name(worst["case"], worst["world_size"])
    off = predictions.signed_percent(predicted["worst_error"])
    mean = predictions.percent(predicted["mean_error"])
    if predicted["num_rows"] == 1:
        return Fact("Model", f"the predicted step of {place} is {off} off the measured one")
    return Fact("Model", f"predicted steps are {mean} off on average; furthest {off}, {place}")


def _machine(environment: Mapping[str, Any], link: str) -> Fact:
    cpu = environment.get("cpu")
    if isinstance(cpu, dict):
        cpu = cpu.get("model")
    devices = environment.get("devices")
    named = [
        str(one.get("name")) for one in devices or () if isinstance(one, dict) and one.get("name")
    ] if isinstance(devices, list) else []  # fmt: skip
    told = [f"{named.count(name)} {TIMES} {name}" for name in dict.fromkeys(named)]
    cores, memory = environment.get("cores"), environment.get("memory_bytes")
    told += [str(cpu)] if isinstance(cpu, str) else []
    told += [f"{cores} cores"] if isinstance(cores, int) else []
    told += [units.bytes_(memory)] if isinstance(memory, int) else []
    told += [f"torch {environment['torch']}"] if isinstance(environment.get("torch"), str) else []
    return Fact("Machine", wording.plain(" · ".join(told), 240), link)


TIMES = wording.TIMES


@dataclass(frozen=True)
class LinkCard:
    """What timed collectives came to.

    Attributes:
        link: Address of the links' own view; empty: it has no figure.
    """

    name: str
    link: str
    headline: str
    operations: PlainTable | None


def link_card(found: TimedCollectives | None, link: str) -> LinkCard | None:
    """Return the card; None: no collectives were timed."""
    if found is None:
        return None
    lines = tuple(
        (
            wording.plain(one.op, 40),
            str(one.world_size),
            units.seconds(one.alpha_s),
            f"{units.bytes_(one.bandwidth_byte_per_s)}/s"
            if one.bandwidth_byte_per_s
            else wording.DASH,
            wording.plain(one.law, 40),
        )
        for one in communication.operations(found)
    )
    header = ("operation", "ranks", "a message costs (α)", "a link carries (B)", "law")
    words = frozenset({0, header.index("law")})
    table = PlainTable("Operations", "", header, lines, words) if lines else None
    names = wording.joined([wording.plain(name, 64) for name in found.suites])
    return LinkCard(names, link, communication.headline(found), table)


def overview_markdown(
    title: str,
    run: str,
    cards: Sequence[SuiteCard],
    timed: LinkCard | None,
    first: Sequence[NextStep],
    facts: Sequence[Fact],
    reproduce: str,
) -> str:
    """Return the overview of a run."""
    blocks = [f"### {escape(title)}", escape(run, 200)]
    if first:
        lines = (_step(number, step) for number, step in enumerate(first, 1))
        blocks.append("\n".join(["**Try first**", "", *lines]))
    blocks += [_suite(card) for card in cards]
    if timed is not None:
        blocks.append(f"**{escape(timed.name)}**: {escape(timed.headline)}")
    told = [f"- {escape(one.name)}: {escape(one.text)}" for one in facts if one.name != "Repeat it"]
    blocks.append("\n".join(told))
    blocks.append(code(reproduce, 600))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _step(number: int, step: NextStep) -> str:
    return f"{number}. {escape(step.action)}: {escape(step.gain)} ({escape(step.whence)})"


def _suite(card: SuiteCard) -> str:
    lines = [f"**{escape(card.name)}** ({escape(card.place)}): {escape(card.headline)}", ""]
    lines += [
        f"- {escape(line.name)}: {escape(line.text)}"
        + (f" (read with care: {escape(line.doubt)})" if line.doubt else "")
        for line in card.cases
    ]
    if card.more:
        lines.append(f"- {card.more} more")
    for name, text in (("Largest loss", card.loss), ("Try next", card.next_step)):
        if text:
            lines.append(f"- **{name}**: {escape(text)}")
    return "\n".join(lines)
