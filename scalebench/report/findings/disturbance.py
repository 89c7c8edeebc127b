"""Whether something spoiled a whole run: other programs, throttling, swapping, drift.

What stands above all tables, from what the run recorded: the stamps of its rows, and
how the rounds of launches differ.
"""

from collections.abc import Sequence
from math import exp
from statistics import fmean

from scalebench.records.baseline import log_steps, series_of
from scalebench.records.summary import Row, Summary
from scalebench.report.words import wording
from scalebench.report.words.warnings import details, marks, said

OTHERS = ("foreign load", "swap")
"""Stamps of what somebody else did to the machine."""
CLOCKS = ("throttled", "clocks differ")
"""Stamps of clocks. The job's own load causes them as well: no other program has to be there."""

LEAST_ROWS = 3
"""Rows that have to slow down together before it is the machine that drifted."""

LEAST_DRIFT = 0.05
"""Between the slowest and the fastest round, as a ratio of steps."""


def disturbance(summary: Summary) -> str | None:
    """Say what disturbed a run; None: nothing that it recorded."""
    measured = [row for row in summary.rows if row.status == "ok"]
    loaded = [text for name in OTHERS if (text := _stamped(measured, name))]
    drifted = drift(measured)
    if drifted is not None and drifted >= LEAST_DRIFT:
        loaded.append(
            f"all cases together were {100 * drifted:.0f} % slower in one round than in another"
        )
    clocked = [text for name in CLOCKS if (text := _stamped(measured, name))]
    told = []
    if loaded:
        told.append(
            f"The machine was not quiet: {'; '.join(loaded)}. Read the numbers with care, or stop"
            " what disturbs first (see scalebench doctor)."
        )
    if clocked:
        told.append(
            f"The devices changed their clocks: {'; '.join(clocked)}. A GPU does so at its power"
            " limit, too. To compare by a few per cent, lock the clocks (nvidia-smi -lgc, or the"
            " governor performance)."
        )
    return " ".join(told) or None


def _stamped(rows: Sequence[Row], name: str) -> str:
    """Say how many rows have a stamp, with the details of one: the baseline, if it has it."""
    stamped = [row for row in rows if name in marks(row)]
    if not stamped:
        return ""
    first = next((row for row in stamped if wording.is_baseline(row)), stamped[0])
    example = wording.plain(details(first, name), 120)
    told = f" ({wording.place(first)}: {example})" if example else ""
    return f"{said(name)} on {len(stamped)} of {len(rows)} rows{told}"


def drift(rows: Sequence[Row]) -> float | None:
    """Return how much slower the slowest round was than the fastest, over all rows alike.

    The logarithm of a launch's step time, less the mean of its row, averaged over the rows: what
    is left is what the round did to all of them.

    Returns:
        A plain ratio minus 1; None: too few rows with several launches, or too few rounds in which
        all of them were launched.
    """
    series = series_of(*rows)
    of_rows = [steps for row in rows if len(steps := log_steps(row, series)) > 1]
    if len(of_rows) < LEAST_ROWS:
        return None
    shared = set.intersection(*(set(steps) for steps in of_rows))
    if len(shared) < 2:
        return None
    means = [fmean(steps[repeat] for repeat in shared) for steps in of_rows]
    effects = [
        fmean(steps[repeat] - mean for steps, mean in zip(of_rows, means, strict=True))
        for repeat in shared
    ]
    return exp(max(effects) - min(effects)) - 1
