"""What has to be known with a case's result, in short sentences."""

from collections.abc import Sequence

from scalebench import units
from scalebench.records.summary import Estimate, Row
from scalebench.report.tables import compression
from scalebench.report.tables.columns import check
from scalebench.report.words import causes, late_ranks, script_remarks, warnings, wording
from scalebench.report.words.warnings import details, mark_name

DOUBTED = {"budget open": "causes", "estimates disagree": "causes", "kernels lost": "causes"}
"""Stamp → what it makes doubtful, where that is not the headline number."""


def notes_on(rows: Sequence[Row], headline: Row | None, of_suite: Sequence[Row]) -> list[str]:
    """Return the notes on a case.

    ``rows`` are in the order of N. ``headline`` None: nothing was measured.
    """
    return [
        *_correctness(rows),
        *_wrapper_cost(rows, headline),
        *_exposed(headline),
        *compression.sentences(headline, of_suite),
        *(late_ranks.held_up(headline) if headline else ()),
        *(causes.doubts(headline) if headline else ()),
        *_oversubscribed(rows, headline),
        *_missing_sizes(rows),
        *(_seen_of_script(headline, rows) if headline else ()),
        *_stamped(rows),
    ]


def _seen_of_script(row: Row, rows: Sequence[Row]) -> list[str]:
    told = (
        script_remarks.kinds_sentence(row),
        script_remarks.gaps_sentence(row),
        *script_remarks.remarks(row, rows),
    )
    return [wording.as_sentence(said) for said in told if said]


def _correctness(rows: Sequence[Row]) -> list[str]:
    said = []
    wrong = [row for row in rows if row.deviates]
    if wrong:
        worst = wording.joined([f"{check(row)} on {row.world_size}" for row in wrong])
        said.append(f"Gradient check {worst}: the speed of a wrong result counts for nothing.")
    unverified = [
        r for r in rows if r.correctness and r.correctness.status == "unverified" and r.step_s
    ]
    if unverified:
        sizes = wording.joined([str(row.world_size) for row in unverified])
        assert unverified[0].correctness is not None
        reason = wording.plain(unverified[0].correctness.reason or "no reason recorded", 110)
        said.append(f"Gradients unverified on {sizes}: {reason}.")
    return said


def _wrapper_cost(rows: Sequence[Row], headline: Row | None) -> list[str]:
    single = next((row for row in rows if row.world_size == 1 and row.efficiency), None)
    if single is None or single.efficiency is None or wording.is_baseline(single):
        return []
    if wording.of_logs([single]):  # it is the job itself
        return []
    said = f"On one rank the strategy itself {_cost(single.efficiency)}"
    wrapped = headline.efficiency_wrapped if headline and headline.world_size > 1 else None
    if wrapped is not None:
        against = wording.point(wrapped, 100)
        said += f"; against its own speed on one rank the efficiency is {against} %"
    return [f"{said}."]


def _cost(alone: Estimate) -> str:
    if alone.ends and alone.ends[0] <= 1.0 <= alone.ends[1]:
        ends = [wording.signed((1 - end) * 100) for end in reversed(alone.ends)]
        return f"has a cost that the noise hides (between {ends[0]} and {ends[1]} %)"
    cost = units.significant((1 - alone.value) * 100, (alone.half_width or 0) * 100 or None)
    if alone.value > 1.0:
        return f"is faster than the plain model by {cost.lstrip('-')} %"
    doubt = "" if alone.low is not None else ", one launch"
    return f"costs {cost} % of the speed{doubt}"


def _exposed(headline: Row | None) -> list[str]:
    if headline is None or headline.exposed_comm_s is None or headline.step_s is None:
        return []
    if headline.world_size == 1:
        return []
    exposed = headline.exposed_comm_s
    if exposed.value <= 0 or (exposed.low is not None and exposed.low <= 0):
        return []
    time = wording.seconds(exposed)
    return [f"In traced steps, exposed communication takes {time}."]


def _oversubscribed(rows: Sequence[Row], headline: Row | None) -> list[str]:
    others = [
        f"{row.world_size} ({wording.point(row.efficiency, 100)} %)"
        for row in rows
        if row.oversubscribed and row is not headline and row.status == "ok" and row.efficiency
    ]
    if not others:
        return []
    few = wording.scarce(rows[-1])
    return [f"Oversubscribed, more ranks than {few}, not scaling: {wording.joined(others)}."]


def _missing_sizes(rows: Sequence[Row]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.status != "ok":
            reasons.setdefault(wording.not_measured(row), []).append(str(row.world_size))
    return [f"N = {wording.joined(sizes)} {reason}." for reason, sizes in reasons.items()]


def _stamped(rows: Sequence[Row]) -> list[str]:
    stamped: dict[str, list[Row]] = {}
    for row in rows:
        for name in dict.fromkeys(mark_name(stamp) for stamp in row.stamps):
            stamped.setdefault(name, []).append(row)
    return [_with_care(name, bearers) for name, bearers in stamped.items() if name]


def _with_care(name: str, bearers: Sequence[Row]) -> str:
    told = details(bearers[0], name) if len(bearers) == 1 else ""
    why = f"{warnings.said(name)} ({told})" if told else warnings.said(name)
    if any(wording.is_baseline(row) for row in bearers) and name not in DOUBTED:
        return f"Read every efficiency with care, it rests on this baseline: {why}."
    rated = all(row.efficiency is not None for row in bearers)
    number = DOUBTED.get(name, "efficiency" if rated else "step time")
    sizes = wording.joined([str(row.world_size) for row in bearers])
    return f"Read the {number} at N = {sizes} with care: {why}."
