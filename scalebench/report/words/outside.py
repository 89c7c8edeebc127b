"""What a user's script did between its steps, in a sentence."""

from collections.abc import Sequence

from scalebench import units
from scalebench.records.summary import Row
from scalebench.report.words import wording

LEAST_SHARE = 0.01
"""Of the clean window: less is not worth a line."""


def sentences(rows: Sequence[Row]) -> list[str]:
    """Say for each row with gaps between its steps how long they were, and where the longest."""
    return [f"{wording.place(row)}: {said}" for row in rows if (said := sentence(row))]


def sentence(row: Row) -> str:
    """Say what a row's script did between its steps; empty: nothing of note."""
    found = row.outside_step
    if found is None or found.share < LEAST_SHARE:
        return ""
    places = [
        f"{units.seconds(gap.seconds)} before step {gap.step} (rank {gap.rank})"
        for gap in found.largest
    ]
    return (
        f"outside of the steps {units.seconds(found.seconds)}, {units.percent(found.share)} of "
        f"the clean window, in {found.num_gaps} gaps; no part of the steps above. "
        f"The longest: {wording.joined(places)}"
    )
