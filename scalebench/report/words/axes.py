"""Which dimension of a mesh the time goes to that ranks do not compute."""

from collections.abc import Sequence

from scalebench import units
from scalebench.records.rows.communication import AxisFigures
from scalebench.records.summary import Row
from scalebench.report.words import wording

FEW = 0.01
"""Part of a step below which exposed communication is not worth a sentence."""
SLOWER = 2.0
"""How many times slower than along the others messages have to be for their link to be named."""


def costliest(row: Row) -> AxisFigures | None:
    """Return the dimension along which most communication is exposed; None: there are not two."""
    axes = row.axes or []
    step_s = row.step_s.value if row.step_s is not None else None
    exposed_s = sum(one.exposed_s for one in axes)
    if len(axes) < 2 or exposed_s <= 0 or (step_s is not None and exposed_s < FEW * step_s):
        return None
    return max(axes, key=lambda one: one.exposed_s)


def sentence(row: Row) -> str | None:
    """Say along which dimension of its mesh a row loses most time, and how fast that one is."""
    most = costliest(row)
    if most is None:
        return None
    axes = row.axes or []
    share = most.exposed_s / sum(one.exposed_s for one in axes)
    name = wording.plain(most.axis, 40)
    said = f"Axis {name} has {units.percent(share)} of the exposed communication"
    others = [one.wire_byte_per_s for one in axes if one is not most]
    known = [rate for rate in others if rate is not None]
    own = most.wire_byte_per_s
    if own is None or not known or min(known) < SLOWER * own:
        return f"{said}."
    return (
        f"{said}: it moves {units.bytes_(own)}/s, the others {units.bytes_(min(known))}/s or more. "
        "Its links are slower, or its ranks wait; another order of the mesh may help."
    )


def sentences(rows: Sequence[Row]) -> str | None:
    """Say it of the row with the most ranks; None: no row has several dimensions."""
    told = [(row.world_size, row.case, said) for row in rows if (said := sentence(row))]
    if not told:
        return None
    world_size, case, said = max(told, key=lambda one: one[0])
    return f"{wording.plain(case, 64)} at N={world_size}: {said}"
