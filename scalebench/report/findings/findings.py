"""The verdict in plain words, made from the rows and from nothing else.

No cause is named that was not measured; what is not known is called inconclusive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scalebench import units
from scalebench.records.summary import Estimate, Row, Summary
from scalebench.report.findings import advice, ranking
from scalebench.report.findings.certain import certain
from scalebench.report.findings.disturbance import disturbance
from scalebench.report.tables import compression, predictions
from scalebench.report.tables.columns import check
from scalebench.report.words import causes, script_remarks, warnings, wording
from scalebench.report.words.notes import precision_note
from scalebench.report.words.warnings import details, mark_name

Kind = Literal["scaling", "inconclusive", "single", "failed", "baseline"]

COMPLETE = "complete"

DOUBTED = {
    "budget open": "causes",
    "estimates disagree": "causes",
    "kernels lost": "causes",
}
"""Stamp → what it makes doubtful, where that is not the headline number."""


@dataclass(frozen=True)
class Finding:
    """What a run says about one case.

    Attributes:
        kind: ``inconclusive``: measured, but the interval is too wide to say how it scales;
            ``single``: only one rank was measured; ``baseline``: the plain model.
        sentence: How it scales.
        because: What costs most, and what the cost model says, where there is a number for it.
        advice: What to do about it; None: no rule has a number to go by.
        next_step: The advice in one line.
        notes: What has to be known with it, short sentences.
        headline: The row that the answer is about; None when nothing was measured.
        certain: What is certain of it at any noise and takes most; None: nothing is.
        cause: What the advice is about and how much of the step that takes, where the loss budget
            does not say it; empty: it does.
    """

    suite: str
    case: str
    label: str
    kind: Kind
    sentence: str
    because: tuple[str, ...]
    advice: str | None
    next_step: str | None
    notes: tuple[str, ...]
    headline: Row | None
    certain: str | None = None
    cause: str = ""

    @property
    def verdict(self) -> str:
        """The answer with its causes: the same text in table, Markdown and page."""
        return " ".join((self.sentence, *self.because, *([self.advice] if self.advice else [])))


@dataclass(frozen=True)
class SuiteVerdict:
    """The findings of one suite, and which of its cases scales best, if that can be told."""

    suite: str
    facts: str
    ranking: str | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class RunVerdict:
    """Everything a run says, in words.

    Attributes:
        general: Sentences about the whole run.
    """

    general: tuple[str, ...]
    suites: tuple[SuiteVerdict, ...]


def judge(summary: Summary) -> RunVerdict:
    """Turn a summary into its verdict."""
    suites = []
    for suite, rows in wording.by_suite(summary.rows).items():
        findings = tuple(judge_case(group, rows) for group in wording.by_case(rows).values())
        facts = wording.suite_facts(rows)
        suites.append(SuiteVerdict(suite, facts, _ranking(findings, rows), findings))
    return RunVerdict(general(summary), tuple(suites))


def general(summary: Summary) -> tuple[str, ...]:
    """Say what holds for the whole run: how it ended, and what it cannot answer."""
    said = []
    if summary.status != COMPLETE:
        said.append(
            f"This run is not complete ({wording.plain(summary.status, 40)}): what follows is"
            " what was measured until then."
        )
    disturbed = disturbance(summary)
    said += [disturbed] if disturbed else []
    wide = precision_note(summary)
    said += [wording.as_sentence(wide)] if wide else []
    measured = [row for row in summary.rows if row.status == "ok"]
    if not measured and summary.collectives is None:
        said.append("Nothing was measured; the reasons are listed below.")
    elif _could_be_traced(measured) and all(row.exposed_comm_s is None for row in measured):
        said.append(
            "No step was traced, so no cause is named for what is missing to ideal; a run without"
            " --no-trace names them."
        )
    return tuple(said)


def _could_be_traced(rows: Sequence[Row]) -> bool:
    """Whether some rows come from a suite that traces steps: one that saves traces none."""
    saving = {row.suite for row in rows if row.recovery is not None}
    return any(row.suite not in saving for row in rows)


def _ranking(findings: Sequence[Finding], rows: Sequence[Row]) -> str | None:
    ranked = ranking.sentence(ranking.rank(headlines(findings)))
    said = [text for text in (ranked, compression.verdict(rows)) if text]
    return " ".join(said) or None


def headlines(findings: Sequence[Finding]) -> list[Row]:
    """Return the rows that the cases of a suite are judged by."""
    return [finding.headline for finding in findings if finding.headline is not None]


def judge_case(rows: Sequence[Row], of_suite: Sequence[Row] = ()) -> Finding:
    """Say how one case scales.

    Args:
        rows: Its rows, by world size.
        of_suite: All rows of the suite, where the case is to be compared with its neighbours.
    """
    headline = headline_row(rows)
    kind, sentence = _answer(rows, headline)
    notes = [
        *_correctness(rows),
        *_wrapper_cost(rows, headline),
        *_exposed(headline),
        *compression.sentences(headline, of_suite or rows),
        *(causes.held_up(headline) if headline else ()),
        *(causes.doubts(headline) if headline else ()),
        *_oversubscribed(rows, headline),
        *_missing_sizes(rows),
        *(_seen_of_script(headline, rows) if headline else ()),
        *_stamped(rows),
    ]
    told = advice.advise(headline, of_suite or rows) if headline else None
    known = certain(headline, of_suite or rows) if headline else []
    sure = [note for one in known[:1] for note in _as_note(one.sentence)]
    notes = [note for note in notes if not _told_already(note, sure)]
    first = advice.first_loss(headline, of_suite or rows) if headline else None
    step = headline.step_s if headline else None
    last = rows[-1]
    label = wording.strategy_label(last)
    return Finding(
        suite=last.suite,
        case=last.case,
        label=label,
        kind=kind,
        sentence=sentence,
        because=(*sure, *(_because(headline, bool(sure)) if headline else ())),
        advice=told.whole if told else None,
        next_step=told.next_step if told else None,
        notes=tuple(notes),
        headline=headline,
        certain=sure[0] if sure else None,
        cause=first.share(step.value) if step and first and first.sentence else "",
    )


def _seen_of_script(row: Row, rows: Sequence[Row]) -> list[str]:
    told = (
        script_remarks.kinds_sentence(row),
        script_remarks.gaps_sentence(row),
        *script_remarks.remarks(row, rows),
    )
    return [wording.as_sentence(said) for said in told if said]


def _as_note(said: str | None) -> list[str]:
    return [wording.as_sentence(said)] if said else []


def _told_already(note: str, sure: Sequence[str]) -> bool:
    """Tell whether a note says no more than what is certain: who is slow, or what is called."""
    short = note.removesuffix(".").partition(": its ")[0].partition(": it ")[0]
    return any(said.startswith(short) for said in sure)


def _because(headline: Row, named: bool) -> tuple[str, ...]:
    said = [*causes.causes(headline, named), predictions.sentence(headline)]
    return tuple(text for text in said if text)


def headline_row(rows: Sequence[Row]) -> Row | None:
    """Return the row to be judged by: the largest measured N, oversubscribed only at need."""
    measured = [row for row in rows if row.status == "ok"]
    preferred = [
        *(r for r in measured if r.world_size > 1 and r.efficiency and not r.oversubscribed),
    ]
    scaled = [row for row in measured if row.world_size > 1 and row.efficiency]
    several = [row for row in measured if row.world_size > 1]
    for choice in (preferred, scaled, several, measured):
        if choice:
            return max(choice, key=lambda row: row.world_size)
    return None


def too_wide(estimate: Estimate) -> bool:
    """Whether an efficiency's interval allows both perfect scaling and less than half of it."""
    if estimate.low is None or estimate.high is None:
        return False
    return estimate.low < 0.5 and estimate.high >= 1.0


def _answer(rows: Sequence[Row], headline: Row | None) -> tuple[Kind, str]:
    label = wording.strategy_label(rows[-1])
    if headline is None:
        return "failed", f"{label} has no result at any size."
    if wording.is_baseline(headline):
        return "baseline", _rate(headline, f"{label} on one rank, the baseline")
    if headline.world_size == 1:
        cost = _rate(headline, f"{label} was measured on one rank only")
        return "single", f"{cost} Nothing can be said about scaling."
    if headline.efficiency is None:
        return "single", _without_efficiency(headline, label)
    return _scaling(headline, label)


def _rate(row: Row, subject: str) -> str:
    if row.throughput is None:
        return f"{subject}."
    rate = wording.count(row.throughput)
    things = "samples" if wording.counts_samples(row) else "steps"
    return f"{subject}: {rate} {things} per second."


def _without_efficiency(row: Row, label: str) -> str:
    reason = wording.plain(row.unavailable.get("efficiency", "there is no plain baseline"), 110)
    return f"{_rate(row, f'{label} on {wording.ranks(row)}')} Its efficiency is unknown: {reason}."


def _scaling(row: Row, label: str) -> tuple[Kind, str]:
    assert row.efficiency is not None
    where = f"{wording.ranks(row)} ({row.scaling} scaling{_crowded(row)})"
    if too_wide(row.efficiency):
        span = wording.interval(row.efficiency, 100)
        return "inconclusive", (
            f"Inconclusive: the efficiency of {label} on {where} lies anywhere within {span} %."
        )
    reached = f"reaches {wording.point(row.speedup)}{wording.TIMES} on" if row.speedup else "on"
    phrase = wording.efficiency_phrase(row.efficiency)
    return "scaling", f"{label} {reached} {where}: {phrase}."


def _crowded(row: Row) -> str:
    return f", oversubscribed: more ranks than {wording.scarce(row)}" if row.oversubscribed else ""


def _correctness(rows: Sequence[Row]) -> list[str]:
    said = []
    wrong = [r for r in rows if r.correctness and r.correctness.status == "deviates"]
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
    said = f"On one rank the strategy itself {_cost(single.efficiency)}"
    wrapped = headline.efficiency_wrapped if headline and headline.world_size > 1 else None
    if wrapped is not None:
        against = wording.point(wrapped, 100)
        said += f"; against its own speed on one rank the efficiency is {against} %"
    return [f"{said}."]


def _cost(alone: Estimate) -> str:
    if alone.low is not None and alone.high is not None and alone.low <= 1.0 <= alone.high:
        ends = [wording.signed((1 - end) * 100) for end in (alone.high, alone.low)]
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
