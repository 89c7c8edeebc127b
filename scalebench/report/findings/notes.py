"""What to do about a case, and what has to be known with its result, or of a whole run.

What to do about a case: what is certain of it, or the first rule that has a number to go by.

See `scalebench.report.findings.ranking` and `scalebench.report.findings.advice_rules`.

Other programs, throttling, swapping or drift may spoil a run. That stands above all tables, from
the stamps of its rows, and from how the rounds of launches differ.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from math import exp
from statistics import fmean

from scalebench import units
from scalebench.grouping import by_key
from scalebench.records.rows.budget import Part
from scalebench.records.summary import Estimate, Row, Summary, log_steps, series_of
from scalebench.report.findings.advice_rules import (
    FIRST,
    INVALID,
    LAST,
    LEAST_LOSS,
    RULES,
    TOO_WIDE,
    Advice,
    AdviceInput,
    Loss,
    Rule,
)
from scalebench.report.findings.ranking import certain
from scalebench.report.tables import compression
from scalebench.report.tables.columns import check
from scalebench.report.words import causes, notes, script_checks, wording
from scalebench.report.words.notes import details, mark_name, marks, said

DOUBTED = {"budget open": "causes", "estimates disagree": "causes", "kernels lost": "causes"}
"""Stamp → what it makes doubtful, where that is not the headline number."""


def advise(row: Row, of_suite: Sequence[Row] = ()) -> Advice | None:
    """Say what to do about a case; None: nothing has a number to go by."""
    first = first_loss(row, of_suite)
    if first is not None:
        return first.advice
    case = AdviceInput(row, of_suite)
    if not _can_gain(row):
        return None
    return _first(FIRST, case) or (None if case.losses else _first(LAST, case))


def first_loss(row: Row, of_suite: Sequence[Row] = ()) -> Loss | None:
    """Return the loss to act on first; None: something else is to be done first.

    One of less than 1 % of the step is none.
    """
    found = losses(row, of_suite)
    if not found or not row.step_s:
        return None
    return None if found[0].taken_s.value < LEAST_LOSS * row.step_s.value else found[0]


def losses(row: Row, of_suite: Sequence[Row] = ()) -> list[Loss]:
    """Return each loss of a case that has advice: those that are certain, then the likely ones.

    What is certain at any noise, and the parts of the loss budget that it does not explain. A part
    that is certain stands behind a larger one that is only likely; none stands behind a larger one
    that nothing is known of, and none is told where there is something else to do first: `FIRST`.
    """
    case = AdviceInput(row, of_suite)
    can_gain = _can_gain(row)
    if can_gain and _first(INVALID, case):
        return []
    sure = certain(row, of_suite)
    parts = _parts(case, {one.about for one in sure}) if can_gain else []
    known = list(takewhile(case.is_certain, parts))
    found = sorted([*sure, *_advised(case, known)], key=lambda loss: -loss.taken_s.value)
    return [*found, *_advised(case, parts[len(known) :])]


def _can_gain(row: Row) -> bool:
    return not wording.is_baseline(row) and row.world_size > 1 and row.efficiency is not None


def _parts(case: AdviceInput, explained: set[str | None]) -> list[Part]:
    """Return the parts that are worth a change; where the efficiency is vague, certain ones."""
    if _first([rule for rule in FIRST if rule is not TOO_WIDE], case):
        return []
    parts = [part for part in case.losses if part.key not in explained]
    vague = _first([TOO_WIDE], case) is not None
    return list(takewhile(case.is_certain, parts)) if vague else parts


def _advised(case: AdviceInput, parts: Sequence[Part]) -> list[Loss]:
    found = []
    for part in parts:
        told = _first([rule for rule in RULES if rule.about == part.key], case)
        taken_s = case.budget.estimates.get(part.field) if case.budget else None
        if told is not None and taken_s is not None and case.budget:
            if not case.is_certain(part):
                action = f"Probably, not certain: {told.action}"
                brief = f"Probably: {told.next_step}"
                told = replace(told, action=action, in_brief=brief)
            found.append(Loss(causes.name(part, case.budget), taken_s, told))
    return found


def _first(rules: Sequence[Rule], case: AdviceInput) -> Advice | None:
    return next((said for rule in rules if (said := rule.says(case)) is not None), None)


def notes_on(rows: Sequence[Row], headline: Row | None, of_suite: Sequence[Row]) -> list[str]:
    """Return the notes on a case.

    ``rows`` are in the order of N. ``headline`` None: nothing was measured.
    """
    return [
        *_correctness(rows),
        *_wrapper_cost(rows, headline),
        *_exposed(headline),
        *compression.sentences(headline, of_suite),
        *(causes.held_up(headline) if headline else ()),
        *(causes.doubts(headline) if headline else ()),
        *_oversubscribed(rows, headline),
        *_missing_sizes(rows),
        *(_seen_of_script(headline, rows) if headline else ()),
        *_stamped(rows),
    ]


def _seen_of_script(row: Row, rows: Sequence[Row]) -> list[str]:
    told = (
        script_checks.kinds_sentence(row),
        script_checks.gaps_sentence(row),
        *script_checks.remarks(row, rows),
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
        reason = wording.plain(
            unverified[0].correctness.reason or "no reason recorded", wording.WHOLE_REASON
        )
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
    reasons = by_key(
        (wording.not_measured(row), str(row.world_size)) for row in rows if row.status != "ok"
    )
    return [f"N = {wording.joined(sizes)} {reason}." for reason, sizes in reasons.items()]


def _stamped(rows: Sequence[Row]) -> list[str]:
    stamped = by_key(
        (name, row)
        for row in rows
        for name in dict.fromkeys(mark_name(stamp) for stamp in row.stamps)
    )
    return [_with_care(name, bearers) for name, bearers in stamped.items() if name]


def _with_care(name: str, bearers: Sequence[Row]) -> str:
    told = details(bearers[0], name) if len(bearers) == 1 else ""
    why = f"{notes.said(name)} ({told})" if told else notes.said(name)
    if any(wording.is_baseline(row) for row in bearers) and name not in DOUBTED:
        return f"Read every efficiency with care, it rests on this baseline: {why}."
    rated = all(row.efficiency is not None for row in bearers)
    number = DOUBTED.get(name, "efficiency" if rated else "step time")
    sizes = wording.joined([str(row.world_size) for row in bearers])
    return f"Read the {number} at N = {sizes} with care: {why}."


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
    loaded = [text for name in OTHERS if (text := _disturbed(measured, name))]
    drifted = drift(measured)
    if drifted is not None and drifted >= LEAST_DRIFT:
        loaded.append(
            f"all cases together were {100 * drifted:.0f} % slower in one round than in another"
        )
    clocked = [text for name in CLOCKS if (text := _disturbed(measured, name))]
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


def _disturbed(rows: Sequence[Row], name: str) -> str:
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
