"""A case in at most eight lines: its result, its losses as a strip, a sentence, an advice."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench import units
from scalebench.records.rows.race import RaceFigures
from scalebench.records.summary import Row
from scalebench.report.findings.brief import CaseInBrief, case_in_brief
from scalebench.report.findings.findings import Finding
from scalebench.report.page.addresses import row_address
from scalebench.report.page.bars import IntervalBar, Strip, Track, is_noisy, strip, widest
from scalebench.report.page.figure_style import Looks
from scalebench.report.page.palette import Look
from scalebench.report.tables import races
from scalebench.report.words import wording
from scalebench.report.words.plain_text import plain


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
    row, told = finding.headline, case_in_brief(finding)
    sentence, next_step = _sentence(finding, told), told.next_step or ""
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


def _sentence(finding: Finding, told: CaseInBrief) -> str:
    """Return the one sentence of a card: what costs most, else the answer."""
    if finding.kind == "scaling":
        if told.losses:
            return f"{told.losses[0][0].upper()}{told.losses[0][1:]}."
        return finding.because[0] if finding.because else finding.sentence
    if finding.kind == "inconclusive":
        return f"{told.result[0].upper()}{told.result[1:]}."
    if finding.kind == "failed":
        return finding.notes[-1] if finding.notes else finding.sentence
    return plain(finding.sentence, 200)
