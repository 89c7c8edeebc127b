"""Races: who reaches the target first and why; what lockstep and stale gradients cost."""

import math
from collections.abc import Sequence

from scalebench.records.rows.race import LockstepFigures, RaceFigures, StageFigures
from scalebench.records.summary import Estimate, Row
from scalebench.report.tables.layout import (
    FOLDED,
    RANKS,
    SHRINKING_CASE,
    Column,
    Table,
    ending,
    pages,
    placed,
    value,
    without,
)
from scalebench.report.words import wording
from scalebench.units import bytes_or_zero


def racing(rows: Sequence[Row]) -> list[tuple[Row, RaceFigures]]:
    """Return the rows of races with what came of them."""
    return [(row, row.race) for row in rows if row.race is not None]


def target_line(rows: Sequence[Row]) -> str | None:
    """Say which loss the cases race to; None: there is no race."""
    found = racing(rows)
    if not found:
        return None
    race = found[0][1]
    source = "given" if race.target_from == "given" else f"that of {race.target_from}"
    seeds = "1 seed" if race.num_seeds == 1 else f"{race.num_seeds} seeds"
    return (
        f"target: a loss of {race.target_loss:.4g} on held-out samples ({source}) · "
        f"{race.samples} samples each · {seeds}"
    )


def headline(rows: Sequence[Row]) -> str | None:
    """Say which case reaches the target first, and what it owes that to; None: there is no race."""
    found = racing(rows)
    if not found:
        return None
    first = first_at_target(rows)
    if all(_is_baseline(*pair) for pair in found):
        return "Only the baseline has a result: nothing raced with it. Give the run more time."
    if first is None:
        return "No case reached the target with every seed. Give the race more samples."
    arrived = [(row, race) for row, race in found if race.time_to_target_s is not None]
    return f"{sentence(*first)}{_doubt(*first, arrived)}"


def first_at_target(rows: Sequence[Row]) -> tuple[Row, RaceFigures] | None:
    """Return the case that reaches the target first, the baseline apart; None: no case does."""
    arrived = [
        (race.time_to_target_s.value, row, race)
        for row, race in racing(rows)
        if race.time_to_target_s is not None and not _is_baseline(row, race)
    ]
    if not arrived:
        return None
    _, row, race = min(arrived, key=lambda found: found[0])
    return row, race


def sentence(row: Row, race: RaceFigures) -> str:
    """Say how much sooner than the baseline a case reaches the target, and why."""
    name = f"{wording.plain(row.case, 64)} on {wording.ranks(row)}"
    if race.time_to_target_s is None:
        why = race.unavailable.get("time_to_target_s", "it did not reach the target")
        return f"{name}: {wording.plain(why, 200)}."
    base = f"{wording.plain(race.baseline[0], 64)} on {_ranks(race.baseline[1])}"
    within = wording.seconds(race.time_to_target_s)
    said = f"{name} reaches {race.target_loss:.4g} in {within}"
    if _is_baseline(row, race):
        return f"{said}: the baseline."
    speedup, statistical = race.speedup_to_target, race.statistical_efficiency
    if speedup is None or statistical is None:
        return f"{said}."
    faster = f"{wording.plus_minus(speedup)}{wording.TIMES} as fast as {base}"
    rate = speedup.value / statistical.value
    return (
        f"{said}, {faster}: {rate:.2f} times the samples per second, {_samples(statistical.value)}."
    )


def _samples(statistical: float) -> str:
    more = 100 * (1 / statistical - 1)
    if abs(more) < 1:
        return "as many samples"
    return f"{abs(more):.0f} % {'more' if more > 0 else 'fewer'} samples"


def _doubt(best: Row, race: RaceFigures, arrived: Sequence[tuple[Row, RaceFigures]]) -> str:
    """Name the cases that may be as fast: their intervals overlap with that of the fastest."""
    assert race.time_to_target_s is not None, "asked of a case that reached the target"
    if race.time_to_target_s.high is None:
        return " Not certain: one seed."
    latest = race.time_to_target_s.high
    close = [
        wording.plain(row.case, 64)
        for row, of_row in arrived
        if row is not best and (of_row.time_to_target_s.low or 0.0) <= latest  # type: ignore[union-attr]
    ]
    return f" Not certain: {wording.joined(close)} may be as fast." if close else ""


def _is_baseline(row: Row, race: RaceFigures) -> bool:
    return (row.case, row.world_size) == race.baseline


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"


FEW = 3
"""So many rows that did not reach the target share one line."""


def _race(row: Row) -> RaceFigures:
    assert row.race is not None, "asked of a row that is no race"
    return row.race


COLUMNS: tuple[Column[Row], ...] = (
    SHRINKING_CASE,
    RANKS,
    Column("batch", lambda row: str(row.global_batch)),
    Column("reached", lambda row: f"{_race(row).num_reached} of {_race(row).num_seeds}"),
    value("samples", lambda row: _race(row).samples_to_target, wording.count),
    value("time", lambda row: _race(row).time_to_target_s, wording.seconds),
    value("statistical", lambda row: _race(row).statistical_efficiency, wording.percent),
    value(
        "noise scale\npredicts",
        lambda row: _race(row).predicted_statistical_efficiency,
        lambda ratio: f"{100 * ratio:.0f} %",
    ),
    value("hardware", lambda row: _race(row).hardware_efficiency, wording.percent),
    value(
        "speedup",
        lambda row: _race(row).speedup_to_target,
        lambda e: f"{wording.plus_minus(e)}{wording.TIMES}",
    ),
    value("loss at\nequal time", lambda row: _race(row).loss_at_equal_time, wording.plus_minus),
    value("final\nloss", lambda row: _race(row).final_loss, wording.plus_minus),
)


def raced(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of races."""
    return [row for row, _ in racing(rows)]


def _noise(rows: Sequence[Row]) -> list[str]:
    scale = _race(rows[0]).noise_scale
    if scale is None:
        return []
    of_steps = [
        (row, race.noise_scale_of_steps)
        for row, race in racing(rows)
        if race.noise_scale_of_steps is not None
    ]
    own = [
        f"{wording.plain(row.case, 64)} N={row.world_size}: {wording.plus_minus(known)}"
        for row, known in of_steps
        if _is_useful(known)
    ]
    told = (
        f"gradient noise scale: {wording.plus_minus(scale)} samples (McCandlish et al. 2018): a "
        "batch of that size needs twice the samples of a tiny one"
    )
    if not of_steps:
        return [told]
    found = ", ".join(own) or "not known within a factor of two"
    return [f"{told}; from the ranks' gradients in the steps: {found}"]


def _is_useful(estimate: Estimate) -> bool:
    low, high = estimate.ends or (0.0, math.inf)
    return low >= estimate.value / 2 and high <= 2 * estimate.value


def _missed(rows: Sequence[Row]) -> list[str]:
    missed = [(row, race) for row, race in racing(rows) if race.num_reached < race.num_seeds]
    if len(missed) < FEW:
        return [sentence(row, race) for row, race in missed]
    lowest = [
        f"{wording.plain(row.case, 64)} N={row.world_size}: {_lowest(race)}" for row, race in missed
    ]
    return [
        f"not reached with every seed within {missed[0][1].samples} samples; lowest losses: "
        f"{', '.join(lowest)}"
    ]


def _lowest(race: RaceFigures) -> str:
    return wording.DASH if race.lowest_loss is None else f"{race.lowest_loss:.4g}"


RACES = Table(
    "time to loss",
    COLUMNS,
    raced,
    lead=lambda rows: (target_line(rows) or "",),
    about=lambda rows: target_line(rows) or "",
    notes=(
        "samples and time until the target; statistical: samples of the baseline over samples; "
        "hardware: samples per second over N times the baseline's",
    ),
    below=lambda rows: [(text, "dim") for text in (*_noise(raced(rows)), *_missed(rows))],
    narrowing=(
        *without(
            *("final loss", "noise scale predicts", "samples", "batch", "loss at equal time"),
            "reached",
        ),
        *FOLDED,
    ),
)
tables = pages(RACES)


IN_LOCKSTEP = "ddp"
"""The strategy whose ranks wait for one another in every step."""

FEW_RANKS = 4
"""So many of a thing are listed; of more only how far they reach."""


def looked_at(rows: Sequence[Row]) -> list[tuple[Row, LockstepFigures]]:
    """Return the rows that know where their ranks' time went."""
    return [(row, row.lockstep) for row in rows if row.lockstep is not None]


def percents(shares: Sequence[float]) -> str:
    """Write a share of each rank: ``"62, 97 %"``; of many ``"12 to 97 %"``."""
    if len(shares) > FEW_RANKS:
        return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %"
    return f"{', '.join(f'{100 * share:.0f}' for share in shares)} %"


def distribution(staleness: dict[int, int]) -> str:
    """Write which part of the gradients is how stale: ``"0: 3 %, 1: 94 %, 2 to 7: 3 %"``."""
    total, ordered = sum(staleness.values()), sorted(staleness)
    common = sorted(sorted(ordered, key=lambda s: -staleness[s])[: FEW_RANKS - 1])
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


def lockstep_sentence(rows: Sequence[Row]) -> str | None:
    """Say whether lockstep loses at the largest size, or what replaces waiting costs more.

    None: there is nothing to compare: no DDP, or no other case reached the target.
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
    needed = _samples_needed(race) / _samples_needed(base_race)
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


def _samples_needed(race: RaceFigures) -> float:
    assert race.samples_to_target is not None, "asked of a case that reached the target"
    return race.samples_to_target.value


def _batches(found: LockstepFigures) -> str | None:
    known = [rank.num_batches for rank in found.ranks if rank.num_batches is not None]
    if not known:
        return None
    if len(known) > FEW_RANKS:
        return f"{min(known):.0f} to {max(known):.0f}"
    return ", ".join(f"{count:.0f}" for count in known)


LOCKSTEP_COLUMNS: tuple[Column[tuple[Row, LockstepFigures]], ...] = placed(
    value("batches", _batches, str),
    Column("computing", lambda one: percents([rank.compute for rank in one.ranks])),
    Column("exchanging", lambda one: percents([rank.exchange for rank in one.ranks])),
    Column("waiting", lambda one: percents([rank.wait for rank in one.ranks])),
    value("staleness", lambda one: one.mean_staleness, lambda mean: f"{mean:.2f}"),
    value("of gradients", lambda one: one.staleness, distribution),
    value("dropped", lambda one: one.num_dropped or None, str),
)


LOCKSTEP = Table(
    "Lockstep",
    LOCKSTEP_COLUMNS,
    looked_at,
    remark="where each rank's time went",
    notes=(
        "Of each rank's time: computing, exchanging (with waiting for an answer; of traced steps "
        "the transfer alone), waiting for slower ranks. Staleness: steps that a server, or a "
        "pipeline's stage, made while a gradient was computed.",
    ),
    below=ending(lockstep_sentence),
    narrowing=(*without("dropped", "batches", "of gradients"), *FOLDED),
)


def stages(rows: Sequence[Row]) -> list[tuple[Row, StageFigures]]:
    """Return the stages of the pipelines that are never flushed."""
    return [(row, stage) for row, found in looked_at(rows) for stage in found.stages or ()]


WEIGHTS = Table(
    "Weights of earlier steps",
    placed(
        Column[StageFigures]("stage", lambda one: str(one.stage)),
        Column[StageFigures]("steps old", lambda one: str(one.staleness)),
        Column[StageFigures]("law", lambda one: str(one.staleness_law)),
        Column[StageFigures]("versions", lambda one: str(one.weight_versions)),
        Column[StageFigures]("law", lambda one: str(one.weight_versions_law)),
        Column[StageFigures]("old weights", lambda one: bytes_or_zero(one.stash_bytes)),
        Column[StageFigures]("law", lambda one: bytes_or_zero(one.stash_law_bytes)),
    ),
    stages,
    remark="what stages keep that are never flushed",
    notes=(
        "Steps old: the most between the weights of a gradient and the step by it. Versions of the "
        "weights, the newest among them, and the memory of the others.",
    ),
)
lockstep_tables = pages(LOCKSTEP, WEIGHTS)
