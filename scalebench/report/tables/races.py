"""Races: when each case reached the target, and what that took."""

from collections.abc import Sequence

from scalebench import units
from scalebench.records.rows.race import RaceFigures
from scalebench.records.summary import Estimate, Row
from scalebench.report.tables.layout import FOLDED, RANKS, SHRINKING_CASE, Column, value, without
from scalebench.report.tables.listing import Table, pages
from scalebench.report.words import racing, wording

FEW = 3
"""So many rows that did not reach the target share one line."""


def _race(row: Row) -> RaceFigures:
    assert row.race is not None, "asked of a row that is no race"
    return row.race


def _percent(estimate: Estimate) -> str:
    return f"{wording.plus_minus(estimate, 100)} %"


def _seconds(estimate: Estimate) -> str:
    return units.seconds(estimate.value, estimate.half_width)


def _loss(estimate: Estimate) -> str:
    return wording.plus_minus(estimate)


COLUMNS: tuple[Column[Row], ...] = (
    SHRINKING_CASE,
    RANKS,
    Column("batch", lambda row: str(row.global_batch)),
    Column("reached", lambda row: f"{_race(row).num_reached} of {_race(row).num_seeds}"),
    value(
        "samples",
        lambda row: _race(row).samples_to_target,
        lambda e: units.count(e.value, e.half_width),
    ),
    value("time", lambda row: _race(row).time_to_target_s, _seconds),
    value("statistical", lambda row: _race(row).statistical_efficiency, _percent),
    value(
        "noise scale\npredicts",
        lambda row: _race(row).predicted_statistical_efficiency,
        lambda ratio: f"{100 * ratio:.0f} %",
    ),
    value("hardware", lambda row: _race(row).hardware_efficiency, _percent),
    value(
        "speedup",
        lambda row: _race(row).speedup_to_target,
        lambda e: f"{wording.plus_minus(e)}{wording.TIMES}",
    ),
    value("loss at\nequal time", lambda row: _race(row).loss_at_equal_time, _loss),
    value("final\nloss", lambda row: _race(row).final_loss, _loss),
)


def raced(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of races."""
    return [row for row, _ in racing.racing(rows)]


def _noise(rows: Sequence[Row]) -> list[str]:
    """Say up to which batch more samples in a step save steps, by the gradient noise scale."""
    scale = _race(rows[0]).noise_scale
    if scale is None:
        return []
    of_steps = [
        (row, race.noise_scale_of_steps)
        for row, race in racing.racing(rows)
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
    """Say whether a value is known within a factor of two, so that one can act on it."""
    if estimate.low is None or estimate.high is None:
        return False
    return estimate.low >= estimate.value / 2 and estimate.high <= 2 * estimate.value


def _missed(rows: Sequence[Row]) -> list[str]:
    """Say of the rows that did not reach the target how far they came."""
    missed = [(row, race) for row, race in racing.racing(rows) if race.num_reached < race.num_seeds]
    if len(missed) < FEW:
        return [racing.sentence(row, race) for row, race in missed]
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
    lead=lambda rows: (racing.target_line(rows) or "",),
    about=lambda rows: racing.target_line(rows) or "",
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
