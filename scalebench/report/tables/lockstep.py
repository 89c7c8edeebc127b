"""Lockstep: where each rank's time went, what waiting costs, and what stale gradients cost."""

from collections.abc import Sequence

from scalebench.records.rows.lockstep import LockstepFigures
from scalebench.records.rows.race import RaceFigures
from scalebench.records.summary import Estimate, Row
from scalebench.report.tables.layout import FOLDED, PLACE, Column, value, without
from scalebench.report.tables.listing import Table, ending, pages
from scalebench.report.words import wording

IN_LOCKSTEP = "ddp"
"""The strategy whose ranks wait for one another in every step."""

FEW = 4
"""So many of a thing are listed; of more only how far they reach."""


def looked_at(rows: Sequence[Row]) -> list[tuple[Row, LockstepFigures]]:
    """Return the rows that know where their ranks' time went."""
    return [(row, row.lockstep) for row in rows if row.lockstep is not None]


def percents(shares: Sequence[float]) -> str:
    """Write a share of each rank: ``"62, 97 %"``; of many ``"12 to 97 %"``."""
    if len(shares) > FEW:
        return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %"
    return f"{', '.join(f'{100 * share:.0f}' for share in shares)} %"


def distribution(staleness: dict[int, int]) -> str:
    """Write which part of the gradients is how stale: ``"0: 3 %, 1: 94 %, 2 to 7: 3 %"``."""
    total, ordered = sum(staleness.values()), sorted(staleness)
    common = sorted(sorted(ordered, key=lambda s: -staleness[s])[: FEW - 1])
    first, last = min(common), max(common)
    parts: list[tuple[str, int]] = []
    below = [steps for steps in ordered if steps < first]
    if below:
        parts.append((_span(below), sum(staleness[s] for s in below)))
    between = [steps for steps in ordered if first <= steps <= last]
    parts += [(str(steps), staleness[steps]) for steps in between]
    above = [steps for steps in ordered if steps > last]
    if above:
        parts.append((_span(above), sum(staleness[s] for s in above)))
    return ", ".join(f"{name}: {_percent(count / total)}" for name, count in parts)


def _span(steps: Sequence[int]) -> str:
    return str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "< 1 %"


def sentence(rows: Sequence[Row]) -> str | None:
    """Say whether lockstep loses at the largest size, or what replaces waiting costs more.

    None: there is nothing to compare: no DDP, or nobody else reached the target.
    """
    arrived = [(row, row.race) for row in rows if row.race and row.race.time_to_target_s]
    together = [pair for pair in arrived if pair[0].strategy == IN_LOCKSTEP]
    if not together:
        return None
    base, base_race = max(together, key=lambda pair: pair[0].world_size)
    others = [
        (row, race)
        for row, race in arrived
        if row.world_size == base.world_size
        and row.lockstep is not None
        and not row.lockstep.traced
    ]
    if not others:
        return None
    row, race = min(others, key=lambda pair: _seconds(pair[1]))
    gain = _seconds(base_race) / _seconds(race)
    needed = _samples(race) / _samples(base_race)
    verdict = _verdict(race.time_to_target_s, base_race.time_to_target_s)
    return (
        f"{verdict}: {_name(row)} trains {gain * needed:.2f} times the samples per second of"
        f" {_name(base)}, needs {needed:.2f} times the samples, and is {gain:.2f} times as"
        f" fast to the target{_waiting(base)}."
    )


def _verdict(without: Estimate | None, in_lockstep: Estimate | None) -> str:
    if wording.surely_above(in_lockstep, without):
        return "Lockstep loses here"
    if wording.surely_above(without, in_lockstep):
        return "Leaving lockstep costs more than waiting here"
    return "Whether lockstep loses here is not certain"


def _waiting(base: Row) -> str:
    if base.lockstep is None:
        return ""
    longest = max(base.lockstep.ranks, key=lambda one: one.wait)
    return (
        f"; in {_name(base)}, rank {longest.rank} waits {100 * longest.wait:.0f} % of its step for"
        " the others"
    )


def _name(row: Row) -> str:
    return wording.plain(row.case, 64)


def _seconds(race: RaceFigures) -> float:
    assert race.time_to_target_s is not None, "asked of a case that reached the target"
    return race.time_to_target_s.value


def _samples(race: RaceFigures) -> float:
    assert race.samples_to_target is not None, "asked of a case that reached the target"
    return race.samples_to_target.value


Found = tuple[Row, LockstepFigures]


def _batches(found: Found) -> str | None:
    known = [rank.num_batches for rank in found[1].ranks if rank.num_batches is not None]
    if not known:
        return None
    if len(known) > FEW:
        return f"{min(known):.0f} to {max(known):.0f}"
    return ", ".join(f"{count:.0f}" for count in known)


COLUMNS: tuple[Column[Found], ...] = (
    *PLACE,
    value("batches", _batches, str),
    Column("computing", lambda of: percents([one.compute for one in of[1].ranks])),
    Column("exchanging", lambda of: percents([one.exchange for one in of[1].ranks])),
    Column("waiting", lambda of: percents([one.wait for one in of[1].ranks])),
    value("staleness", lambda of: of[1].mean_staleness, lambda mean: f"{mean:.2f}"),
    value("of gradients", lambda of: of[1].staleness, distribution),
    value("dropped", lambda of: of[1].num_dropped or None, str),
)


LOCKSTEP = Table(
    "Lockstep",
    COLUMNS,
    looked_at,
    remark="where each rank's time went",
    notes=(
        "Of each rank's time: computing, exchanging (with waiting for an answer; of traced steps "
        "the transfer alone), waiting for slower ranks. Staleness: steps that the servers made "
        "while a gradient was computed.",
    ),
    below=ending(sentence),
    narrowing=(*without("dropped", "batches", "of gradients"), *FOLDED),
)
tables = pages(LOCKSTEP)
