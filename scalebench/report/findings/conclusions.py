"""One sentence for each figure of a suite, made from the rows that it draws."""

from collections.abc import Sequence
from math import exp
from statistics import median

from scalebench import units
from scalebench.records.baseline import log_steps, series_of
from scalebench.records.summary import Row, StepSamples
from scalebench.report.findings.findings import headline_row
from scalebench.report.words import wording


def speedup_sentence(rows: Sequence[Row]) -> str:
    """Conclude the speedup figure of one suite in one sentence."""
    heads = _heads(rows)
    heads = [row for row in heads if row.speedup]
    if not heads:
        return "No speedup beyond one rank was measured."
    best = max(heads, key=lambda row: row.speedup.value if row.speedup else 0.0)
    assert best.speedup is not None
    name = wording.plain(best.case, 64)
    span = wording.interval(best.speedup)
    told = f" ({span})" if span else " (no interval)"
    crowded = ", oversubscribed" if best.oversubscribed else ""
    return (
        f"The largest speedup is {wording.point(best.speedup)}{wording.TIMES}{told}, {name} on"
        f" {wording.ranks(best)}{crowded}; ideal is {best.world_size}{wording.TIMES}."
    )


def efficiency_sentence(rows: Sequence[Row]) -> str:
    """Conclude the efficiency figure of one suite in one sentence."""
    heads = [row for row in _heads(rows) if row.efficiency]
    if not heads:
        return "No efficiency beyond one rank was measured."
    largest = max(row.world_size for row in heads)
    heads = [row for row in heads if row.world_size == largest]
    values = [row.efficiency.value * 100 for row in heads if row.efficiency]
    where = f"On {wording.ranks(heads[0])}"
    few = wording.scarce(heads[0])
    crowded = f", more ranks than {few}," if heads[0].oversubscribed else ""
    if len(heads) == 1 and heads[0].efficiency:
        phrase = wording.efficiency_phrase(heads[0].efficiency)
        return f"{where}{crowded} {wording.plain(heads[0].case, 64)} keeps {phrase}."
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    reach = low if low == high else f"between {low} and {high}"
    cases = f"the {len(heads)} cases" if low != high else "both" if len(heads) == 2 else "all cases"
    return f"{where}{crowded} {cases} reach {reach} % of ideal."


def _heads(rows: Sequence[Row]) -> list[Row]:
    found = [headline_row(group) for group in wording.by_case(rows).values()]
    return [row for row in found if row and not wording.is_baseline(row) and row.world_size > 1]


def steps_sentence(rows: Sequence[Row]) -> str:
    """Conclude the step-time figure of one suite: where launches differ most."""
    spreads = []
    for row in rows:
        middles = [exp(middle) for middle in log_steps(row, series_of(row)).values()]
        if len(middles) > 1 and median(middles) > 0:
            spreads.append(((max(middles) - min(middles)) / median(middles), row))
    if not spreads:
        return "Each case has one launch: how much launches differ is unknown."
    spread, row = max(spreads, key=lambda pair: pair[0])
    return (
        f"The step times of launches differ most in {wording.plain(row.case, 64)} on"
        f" {wording.ranks(row)}: {units.percent(spread)} between the slowest and the fastest."
    )


def clean_samples(row: Row) -> list[StepSamples]:
    """Return the launches of a row that have at least one clean step."""
    return [sample for sample in row.samples if sample.step_s]
