"""When to stop adding rounds, and what looking after every round does to an interval.

Who looks after every round and stops when an interval is narrow enough stops more often where the
rounds happen to agree, and such an interval holds less often than it says: 91 % of the time in
place of 95 % where a suite has one row and its baseline. Intervals with a confidence of 97 % hold
94 % and more then, at whatever width one stops (``benchmarks/block_coverage.py``). They are the
ones to look at and the ones to report.
"""

from collections.abc import Sequence

from scalebench.stats import Estimate

CONFIDENCE_OF_LOOKS = 0.97
"""Of the intervals of a run whose rounds are added until they are narrow: they then hold 95 %."""

FEWEST_ROUNDS = 3
MOST_ROUNDS = 8


def is_enough(num_rounds: int, estimates: Sequence[Estimate], half_width: float) -> bool:
    """Return whether to add no further round.

    Args:
        num_rounds: That there are.
        estimates: Of every row, with the confidence `CONFIDENCE_OF_LOOKS`.
        half_width: Wanted of all of them.
    """
    if num_rounds < FEWEST_ROUNDS or num_rounds >= MOST_ROUNDS:
        return num_rounds >= MOST_ROUNDS
    return all(one.half_width is not None and one.half_width <= half_width for one in estimates)
