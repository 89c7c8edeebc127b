"""What a user's script did between its steps, in a sentence."""

from collections.abc import Sequence

from scalebench import units
from scalebench.records.rows.script import LongestGap, OutsideSteps
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
        f"{units.seconds(gap.seconds)} before step {gap.step} (rank {gap.rank}{_kind(gap)})"
        for gap in found.largest
    ]
    plural = "" if found.num_gaps == 1 else "s"
    return (
        f"outside of the steps {units.seconds(found.seconds)}, {units.percent(found.share)} of "
        f"the clean window, in {found.num_gaps} gap{plural}{_parts(found)}; no part of the steps "
        "above. "
        f"The longest: {wording.joined(places)}"
    )


def _kind(gap: LongestGap) -> str:
    return f", {gap.kind}" if gap.kind in ("evaluation", "checkpoint") else ""


def _parts(found: OutsideSteps) -> str:
    """Say what the gaps were, largest first; empty: not recorded, or nothing was recognised."""
    parts = {
        "evaluation": found.evaluation_s or 0.0,
        "checkpoints": found.checkpoint_s or 0.0,
        "other": found.other_s or 0.0,
    }
    if not parts["evaluation"] and not parts["checkpoints"]:
        return ""
    largest_first = sorted(parts.items(), key=lambda one: -one[1])
    return f" ({', '.join(f'{name} {units.seconds(s)}' for name, s in largest_first if s)})"
