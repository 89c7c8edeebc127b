"""Races: who reaches the target first and why, and what that took each case."""

from collections.abc import Sequence

from scalebench.records.rows.race import RaceFigures
from scalebench.records.summary import Estimate, Row
from scalebench.report.tables.layout import FOLDED, RANKS, SHRINKING_CASE, Column, value, without
from scalebench.report.tables.listing import Table, pages
from scalebench.report.words import wording


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
    if estimate.low is None or estimate.high is None:
        return False
    return estimate.low >= estimate.value / 2 and estimate.high <= 2 * estimate.value


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
