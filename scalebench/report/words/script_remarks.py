"""What was seen of a user's script besides its steps, and where steps differ, in sentences."""

from collections.abc import Sequence

from scalebench import units
from scalebench.records.rows.script import LoaderSettings, LongestGap, OutsideSteps, ProcessGroups
from scalebench.records.rows.steps import StepKinds
from scalebench.records.summary import Row
from scalebench.report.words import script_checks, wording

LEAST_SHARE = 0.01
"""Of the step: a search that takes less is not worth a line in the brief table."""


def needless_search(row: Row) -> tuple[float | None, float | None] | None:
    """Return seconds and share of the clean step of DDP's search for unused parameters.

    None: it found some, or is off; each of the two: not timed.
    """
    searching = [
        one
        for one in row.wrappers or ()
        if one.find_unused_parameters and not one.static_graph and one.unused_bytes is not None
    ]
    if not searching or any(one.unused_bytes for one in searching):
        return None
    seconds = row.script.unused_search_s if row.script else None
    if seconds is None or row.step_s is None:
        return seconds, None
    return seconds, seconds / row.step_s.value


def brief(rows: Sequence[Row]) -> list[str]:
    """Return what is worth a change of the script: of the row with most ranks alone."""
    row = _largest(rows)
    if row is None:
        return []
    _, share = needless_search(row) or (None, None)
    told = [
        *script_checks.brief(row),
        _calls(row),
        _search(row) if share is not None and share >= LEAST_SHARE else "",
        _never_seen(row, rows),
        host_waits(row) if row.device == "cuda" else "",
    ]
    return [f"{wording.place(row)}: {said}" for said in told if said]


def in_full(rows: Sequence[Row]) -> list[str]:
    """Return all remarks on the row with most ranks."""
    row = _largest(rows)
    return [f"{wording.place(row)}: {said}" for said in remarks(row, rows)] if row else []


def _largest(rows: Sequence[Row]) -> Row | None:
    measured = [row for row in rows if row.status == "ok" and row.script is not None]
    return max(measured, key=lambda row: row.world_size, default=None)


def remarks(row: Row, of_case: Sequence[Row] = ()) -> list[str]:
    """Return all that was seen, as sentences without a full stop; ``of_case``: at other sizes."""
    if row.script is None:
        return []
    told = [
        *script_checks.in_full(row),
        _calls(row),
        _search(row),
        host_waits(row),
        _loader(row.script.loader),
        _groups(row.script.groups),
        _never_seen(row, of_case),
    ]
    return [said for said in told if said]


def _calls(row: Row) -> str:
    calls = row.script.calls_per_step if row.script else None
    return f"a step is {calls} optimizer calls" if calls and calls > 1 else ""


def _search(row: Row) -> str:
    found = needless_search(row)
    if found is None:
        return ""
    said = "DDP searches for unused parameters (find_unused_parameters=True) and finds none"
    seconds, share = found
    if seconds is None:
        return said
    part = "" if share is None else f", {units.percent(share)} of it"
    return f"{said}, which takes {units.seconds(seconds)} of a step{part}"


def host_waits(row: Row) -> str:
    """Say how often a step waits for the device and where; empty: never, or not known."""
    found = row.script.host_waits if row.script else None
    if found is None or not found.places:
        return ""
    first = found.places[0]
    place = f"{wording.plain(first.file, 80)}:{first.line}"
    calls = f"{found.per_step:.3g} call{'' if found.per_step == 1 else 's'} a step"
    waits = "have" if found.per_step != 1 else "has"
    what = "wait for the GPU" if row.device == "cuda" else "read a tensor, for which a GPU waits"
    return f"{calls} {waits} the host {what}; the first is {first.call} in {place}"


def _never_seen(row: Row, of_case: Sequence[Row]) -> str:
    found, steps = row.outside_step, max((len(s.step_s) for s in row.samples), default=0)
    if found is None or not steps:
        return ""
    all_found = [found, *(one.outside_step for one in of_case if one.outside_step is not None)]
    parts = {
        "evaluation": [one.evaluation_s for one in all_found],
        "checkpoint": [one.checkpoint_s for one in all_found],
    }
    missing = [name for name, seconds in parts.items() if not any(seconds) and 0 in seconds]
    if not missing:
        return ""
    return (
        f"no {wording.joined(missing, 'and no')} was seen in the {steps} measured steps; if the"
        " script does that less often, no number here has its time"
    )


def _loader(found: LoaderSettings | None) -> str:
    if found is None or found.num_workers is None:
        return ""
    if not found.num_workers:
        return "the DataLoader has no workers: batches are made in the training process"
    plural = "" if found.num_workers == 1 else "s"
    return f"the DataLoader has {found.num_workers} worker{plural}"


def _groups(found: Sequence[ProcessGroups]) -> str:
    others = [one for one in found if one.name != "world"]
    if not others:
        return ""
    return f"process groups besides that of all ranks: {wording.joined(list(map(_group, others)))}"


def _group(found: ProcessGroups) -> str:
    name = f"{wording.plain(found.name, 40)} of " if found.name else "of "
    several = f"{found.count} × " if found.count > 1 else ""
    return f"{several}{name}{found.ranks} rank{'' if found.ranks == 1 else 's'}"


LEAST_GAP_SHARE = 0.01
"""Of the clean window: less is not worth a line."""


def gaps_sentences(rows: Sequence[Row]) -> list[str]:
    """Say for each row with gaps between its steps how long they were, and where the longest."""
    return [f"{wording.place(row)}: {said}" for row in rows if (said := gaps_sentence(row))]


def gaps_sentence(row: Row) -> str:
    """Say what a row's script did between its steps; empty: nothing of note."""
    found = row.outside_step
    if found is None or found.share < LEAST_GAP_SHARE:
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


def kinds_sentences(rows: Sequence[Row]) -> list[str]:
    """Say for each row whose steps differ how; rows without such steps say nothing."""
    return [f"{wording.place(row)}: {said}" for row in rows if (said := kinds_sentence(row))]


def kinds_sentence(row: Row) -> str:
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
        return (
            f"{units.rough_percent(found.long_share)} of the steps take {long}, the others {short}"
        )
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
