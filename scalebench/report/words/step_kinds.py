"""What is said where steps differ: the mean one, the typical one, and the kinds of steps."""

from collections.abc import Sequence

from scalebench import units
from scalebench.records.rows.step_kinds import StepKinds
from scalebench.records.summary import Row
from scalebench.report.words import wording


def sentences(rows: Sequence[Row]) -> list[str]:
    """Say for each row whose steps differ how; rows without such steps say nothing."""
    return [f"{wording.place(row)}: {said}" for row in rows if (said := sentence(row))]


def sentence(row: Row) -> str:
    """Say how a row's steps differ; empty: they do not."""
    if row.step_kinds is None or row.step_s is None or row.typical_step_s is None:
        return ""
    return (
        f"a step takes {units.seconds(row.step_s.value)} in the mean, which all numbers rest on, "
        f"and typically {units.seconds(row.typical_step_s.value)}: {kinds(row.step_kinds)}"
    )


def kinds(found: StepKinds) -> str:
    """Say how many steps take how long."""
    short, long = units.seconds(found.short_s), units.seconds(found.long_s)
    num_long = round(found.long_share * (found.period or 0))
    if found.period is None or not 0 < num_long < found.period:
        return f"{units.percent(found.long_share)} of the steps take {long}, the others {short}"
    if num_long == 1:
        return (
            f"{found.period - 1} of {found.period} steps take {short}, every "
            f"{ordinal(found.period)} {long}"
        )
    return f"of {found.period} steps {num_long} take {long}, the others {short}"


def ordinal(number: int) -> str:
    """Return 2nd for 2."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"
