"""The typical step beside the mean one, and what is told where the two differ."""

from collections.abc import Sequence

import numpy as np

from scalebench.analysis.attribution import LARGEST_DIFFERENCE
from scalebench.analysis.mean_step import period_of
from scalebench.analysis.rows.context import Context
from scalebench.analysis.rows.fields import NO_LAUNCH, Fields, known, null
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.steps import clean_pace, launch_step_s
from scalebench.records.rows.step_kinds import StepKinds
from scalebench.stats import estimate_over_launches

ALIKE = 1e-9
"""Of logarithms: what clocks tell."""

NONE_DIFFERS = "the mean step is the typical one"


def step_kinds_of_row(row: Launches, _: Context) -> Fields:
    """Return the typical step, and how steps differ where the mean one is another."""
    good = list(row.good.values())
    if not good:
        return null(["typical_step_s", "step_kinds"], NO_LAUNCH)
    typical_s = [float(np.median(clean_pace(result))) for result in good]
    longer = [launch_step_s(one) / typical for one, typical in zip(good, typical_s, strict=True)]
    differ = min(longer) > LARGEST_DIFFERENCE
    return {
        "typical_step_s": estimate_over_launches(typical_s),
        "step_kinds": known(kinds_of(clean_pace(good[0])) if differ else None, NONE_DIFFERS),
        "stamps": ["steps differ"] if differ else [],
    }


def kinds_of(step_s: Sequence[float]) -> StepKinds | None:
    """Divide steps into short and long ones, by their logarithms; None: all are alike.

    Where the squares of the two kinds' distance are largest. Source: Otsu 1979.
    """
    steps = np.sort(np.asarray(step_s, dtype=float))
    logs, count = np.log(steps), np.arange(1, len(steps))
    below = np.cumsum(logs)[:-1] / count
    above = (logs.sum() - np.cumsum(logs)[:-1]) / (len(steps) - count)
    apart = count * (len(steps) - count) * (above - below) ** 2
    if not len(apart) or apart.max() <= ALIKE:
        return None
    cut = int(np.argmax(apart)) + 1
    period = period_of(np.asarray(step_s, dtype=float))
    return StepKinds(
        period=period if period > 1 else None,
        short_s=float(steps[:cut].mean()),
        long_s=float(steps[cut:].mean()),
        long_share=1 - cut / len(steps),
    )
