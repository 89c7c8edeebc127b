"""The verdict in plain words, made from the rows and from nothing else.

No cause is named that was not measured; what is not known is called inconclusive.

What to try first in a run: the steps that could win most, over all its suites.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scalebench import units
from scalebench.records.summary import Estimate, Row, Summary
from scalebench.report.findings import notes, ranking
from scalebench.report.findings.notes import disturbance, losses, notes_on
from scalebench.report.findings.ranking import certain
from scalebench.report.tables import compression, predictions, races, recovery
from scalebench.report.words import causes, wording
from scalebench.report.words.notes import precision_note

Kind = Literal["scaling", "inconclusive", "single", "failed", "baseline"]

COMPLETE = "complete"

SHORT_REASON = 60
MOST_STEPS = 3
"""A reader acts on one; a few more show how much less the next would win."""


@dataclass(frozen=True)
class Finding:
    """What a run says about one case.

    Attributes:
        kind: ``inconclusive``: measured, but the interval is too wide to say how it scales;
            ``single``: only one rank was measured; ``baseline``: the plain model.
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

    @property
    def name(self) -> str:
        """The case, fit to be shown."""
        return wording.plain(self.case, 64)

    @property
    def result(self) -> str:
        """In a few words: the efficiency with its interval, or why there is none."""
        row = self.headline
        if row is None:
            return "no result at any size"
        if row.world_size == 1:
            return "measured on one rank only: nothing can be said about scaling"
        if row.efficiency is None:
            reason = row.unavailable.get("efficiency", "there is no plain baseline")
            return f"efficiency unknown: {wording.plain(reason, SHORT_REASON)}"
        if self.kind == "inconclusive":
            return f"inconclusive: {wording.interval(row.efficiency, 100)} %"
        return f"{wording.plus_minus(row.efficiency, 100)} %"

    @property
    def losses(self) -> tuple[str, ...]:
        """What costs most, in several lengths as `biggest_cause` has them."""
        row = self.headline
        if row is None or row.efficiency is None or row.world_size == 1:
            return ()
        return (self.cause,) if self.cause else biggest_cause(row, bool(self.certain))


@dataclass(frozen=True)
class SuiteVerdict:
    """The findings of one suite, and which of its cases scales best, if that is known.

    Attributes:
        ranking: Which case scales best, in sentences; None: nothing to compare.
        headline: The same in one line, with its interval, and how certain that is.
        best: The row of the highest efficiency; None: no case was rated.
        is_race: The cases raced to a loss, or were saved and restored: a separate table says of
            each what came of it.
    """

    suite: str
    facts: str
    ranking: str | None
    headline: str
    findings: tuple[Finding, ...]
    best: Row | None
    is_race: bool

    @property
    def name(self) -> str:
        """The suite, fit to be shown."""
        return wording.plain(self.suite, 64)

    @property
    def title(self) -> str:
        """Which suite, and at which size it is judged."""
        return f"verdict on suite {self.name}{where(self.best)}"

    @property
    def cases(self) -> tuple[Finding, ...]:
        """The findings that a terminal lists: without the baseline; of a race none."""
        kept = (finding for finding in self.findings if finding.kind != "baseline")
        return () if self.is_race else tuple(kept)

    @property
    def next_step(self) -> str | None:
        """That of all cases, where it is the same for several."""
        steps = {case.next_step for case in self.cases}
        return steps.pop() if len(self.cases) > 1 and len(steps) == 1 else None

    def speedup(self, case: Finding) -> str:
        """Write a case's speedup, with its N where that is not the suite's; empty: none."""
        row = case.headline
        if row is None or row.efficiency is None or row.world_size == 1:
            return ""
        elsewhere = self.best is None or row.world_size != self.best.world_size
        size = f"N={row.world_size} " if elsewhere else ""
        return size + (f"{wording.point(row.speedup)}{wording.TIMES}" if row.speedup else "")


@dataclass(frozen=True)
class RunVerdict:
    """Everything a run says, in words."""

    general: tuple[str, ...]
    suites: tuple[SuiteVerdict, ...]


def judge(summary: Summary) -> RunVerdict:
    """Turn a summary into its verdict."""
    suites = []
    for suite, rows in wording.by_suite(summary.rows).items():
        findings = tuple(judge_case(group, rows) for group in wording.by_case(rows).values())
        suites.append(_judge_suite(suite, rows, findings))
    return RunVerdict(general(summary), tuple(suites))


def _judge_suite(suite: str, rows: Sequence[Row], findings: tuple[Finding, ...]) -> SuiteVerdict:
    ranked = ranking.rank(headlines(findings))
    best = ranked.best if ranked else None
    race = races.headline(rows) or recovery.headline(rows)
    sure = [
        one.certain
        for one in findings
        if one.kind != "baseline" and one.certain and (best is None or one.headline is best)
    ]
    texts = (ranking.headline(ranked), compression.headline(rows), ranking.least_memory(ranked))
    in_full = (ranking.sentence(ranked), compression.verdict(rows))
    return SuiteVerdict(
        suite,
        wording.suite_facts(rows),
        " ".join(text for text in in_full if text) or None,
        race or " ".join(text for text in (*texts, *sure[:1]) if text),
        findings,
        best,
        race is not None,
    )


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
    """Whether some rows are of a suite that traces steps: one that saves, and logs, have none."""
    saving = {r.suite for r in rows if r.recovery is not None or wording.of_logs([r])}
    return any(row.suite not in saving for row in rows)


def headlines(findings: Sequence[Finding]) -> list[Row]:
    """Return the rows that the cases of a suite are judged by."""
    return [finding.headline for finding in findings if finding.headline is not None]


def judge_case(rows: Sequence[Row], of_suite: Sequence[Row] = ()) -> Finding:
    """Say how one case scales.

    ``rows`` are in the order of N; ``of_suite`` is given where the case is to be compared with its
    neighbours.
    """
    headline = headline_row(rows)
    kind, sentence = _answer(rows, headline)
    suite = of_suite or rows
    advised = notes.advise(headline, suite) if headline else None
    known = certain(headline, suite) if headline else []
    sure = [wording.as_sentence(one.sentence) for one in known[:1] if one.sentence]
    first = notes.first_loss(headline, suite) if headline else None
    step = headline.step_s if headline else None
    last = rows[-1]
    return Finding(
        suite=last.suite,
        case=last.case,
        label=wording.strategy_label(last),
        kind=kind,
        sentence=sentence,
        because=(*sure, *(_because(headline, bool(sure)) if headline else ())),
        advice=advised.whole if advised else None,
        next_step=advised.next_step if advised else None,
        notes=tuple(n for n in notes_on(rows, headline, suite) if not _says_no_more(n, sure)),
        headline=headline,
        certain=sure[0] if sure else None,
        cause=first.share(step.value) if step and first and first.sentence else "",
    )


def _says_no_more(note: str, sure: Sequence[str]) -> bool:
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
        *(r for r in measured if r.world_size > 1 and r.efficiency and not r.oversubscribed)
    ]
    scaled = [row for row in measured if row.world_size > 1 and row.efficiency]
    several = [row for row in measured if row.world_size > 1]
    for choice in (preferred, scaled, several, measured):
        if choice:
            return max(choice, key=lambda row: row.world_size)
    return None


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
    reason = wording.plain(
        row.unavailable.get("efficiency", "there is no plain baseline"), wording.WHOLE_REASON
    )
    return f"{_rate(row, f'{label} on {wording.ranks(row)}')} Its efficiency is unknown: {reason}."


def _scaling(row: Row, label: str) -> tuple[Kind, str]:
    assert row.efficiency is not None
    where = f"{wording.ranks(row)} ({row.scaling} scaling{_crowded(row)})"
    if wording.too_wide(row.efficiency):
        span = wording.interval(row.efficiency, 100)
        return "inconclusive", (
            f"Inconclusive: the efficiency of {label} on {where} lies anywhere within {span} %."
        )
    reached = f"reaches {wording.point(row.speedup)}{wording.TIMES} on" if row.speedup else "on"
    phrase = wording.efficiency_phrase(row.efficiency)
    return "scaling", f"{label} {reached} {where}: {phrase}."


def _crowded(row: Row) -> str:
    return f", oversubscribed: more ranks than {wording.scarce(row)}" if row.oversubscribed else ""


def where(best: Row | None) -> str:
    """Say at which size a suite is judged, behind a comma; empty: at none."""
    if best is None:
        return ""
    few = f", oversubscribed: more ranks than {wording.scarce(best)}" if best.oversubscribed else ""
    return f", {wording.ranks(best)}{few}"


def biggest_cause(row: Row, named: bool = False) -> tuple[str, ...]:
    """Say what costs a row most, and how certain that is, or why no cause is named.

    ``named``: a cause is certain without the loss budget, and is said elsewhere.

    Returns:
        The same in several lengths, the longest first; nothing where nothing is lost.
    """
    if compression.is_bound(row):
        return ("a bound, not a way to train: nothing is communicated", "a bound: no communication")
    budget = row.budget
    none = f"no {'other ' if named else ''}cause is named"
    if budget is None:
        reason = row.unavailable.get("budget")
        return (f"{none}: {wording.plain(reason, SHORT_REASON)}",) if reason else ()
    if not budget.closes:
        why = causes.why_open(
            budget,
            lambda left: f"{causes.points(abs(left))} % of the step is unexplained",
            lambda drift: (
                f"while parts were measured, a step took {abs(100 * drift):.0f} %"
                f" {'more' if drift > 0 else 'less'}"
            ),
        )
        probable = causes.outweighing(budget)
        if probable is None:
            return (f"{none}: {why}", none)
        size = causes.points(budget.share(probable))
        told = f"probable cause: {causes.name(probable, budget)}, {size} % of the step"
        return (f"{told}; {why}", told)
    found = causes.losses(row, causes.least_share(budget))
    if not found:
        return ()
    largest, share = found[0], budget.share(found[0])
    name, size = causes.name(largest, budget), causes.points(share)
    of = f" of the {causes.points(budget.gap)} % lost" if share < budget.gap else " % of the step"
    if causes.certain(row, budget, largest):
        return (f"biggest cause: {name}, {size}{of}", f"{name}: {size} % lost")
    if row.efficiency is None or row.efficiency.n == 1:
        return (f"one launch saw: {name}, {size}{of}", f"{name}: {size} % (not certain)")
    doubt = "probable" if causes.likely(budget, largest) else "possible"
    told = f"{doubt} cause: {name}, {size}{of}"
    sure = next(iter(causes.certain_losses(row, causes.least_share(budget))), None)
    if sure is None:
        return (told, f"{name}: {size} % ({doubt})")
    sure_name, sure_size = causes.name(sure, budget), causes.points(budget.share(sure))
    lost = f"certain: {sure_size} % lost to {sure_name}"
    likely = f"{doubt}: {size} % lost to {name}"
    both = f"{likely}; certain: {sure_size} % to {sure_name}"
    return (f"{told}. {wording.capital(lost)}", both, lost)


@dataclass(frozen=True)
class NextStep:
    """One thing to do, and what it could win.

    Attributes:
        at_most_s: Seconds of a step that this takes: no action wins more.
        larger_batch: Whether a larger batch is what to try.
        also: Other suites whose best case has the same thing to do, and less to win.
    """

    action: str
    row: Row
    cause: str
    at_most_s: Estimate
    larger_batch: bool = False
    also: tuple[str, ...] = ()

    @property
    def gain(self) -> str:
        """What it could win: ``"up to 3.4 ms of the 20.0 ms step, 17 %"``."""
        assert self.row.step_s is not None
        step_s = self.row.budget.measured_s if self.row.budget else self.row.step_s.value
        half_s = self.at_most_s.half_width
        most = units.seconds(self.at_most_s.value, half_s)
        share = units.percent(self.at_most_s.value / step_s, half_s and half_s / step_s)
        return f"up to {most} of the {units.seconds(step_s)} step, {share}"

    @property
    def whence(self) -> str:
        """What takes that time, and where: ``"ddp: ddp-25mb, N=2, other idle time"``."""
        suite = wording.plain(self.row.suite, 64)
        few = f"; also in {wording.joined(self.also)}" if self.also else ""
        more = f"; {len(self.also)} more suites" if len(self.also) > MOST_STEPS else few
        return f"{suite}: {wording.place(self.row)}, {self.cause}{more}"


def next_steps(
    verdicts: Sequence[SuiteVerdict], groups: Mapping[str, Sequence[Row]]
) -> tuple[NextStep, ...]:
    """Return what to try first in a run, that which could win most seconds of a step first.

    Only the best case of each suite is looked at: the reader trains with that one. Only
    losses that are significant count, and only with an advice that has a number behind it.
    """
    found = [
        step
        for verdict in verdicts
        for row in _best(verdict)
        for step in _of_row(row, groups[verdict.suite])
    ]
    found.sort(key=lambda step: -step.at_most_s.value)
    return tuple(_merged(found)[:MOST_STEPS])


def _best(verdict: SuiteVerdict) -> Sequence[Row]:
    """Return the row of a suite's best case; all, where they cannot be ranked."""
    heads = headlines(verdict.findings)
    ranked = ranking.rank(heads)
    if ranked is None:
        return [row for row in heads if row.world_size > 1]
    best = ranking.best_row(heads)
    raced = best is not None and best.race is not None
    return (best,) if best is not None and (raced or ranked.comparable) else ranked.rows


def _of_row(row: Row, of_suite: Sequence[Row]) -> list[NextStep]:
    return [
        NextStep(
            *(loss.advice.next_step, row, loss.cause, loss.taken_s),
            larger_batch=loss.advice.larger_batch,
        )
        for loss in losses(row, of_suite)
        if row.step_s is not None
    ]


def _merged(found: Sequence[NextStep]) -> list[NextStep]:
    """Tell once what helps several: a larger batch wins most where it wins most."""
    once: dict[str, NextStep] = {}
    for step in found:
        key = "larger batch" if step.larger_batch else step.action
        first = once.setdefault(key, step)
        suite = wording.plain(step.row.suite, 64)
        if step.row.suite != first.row.suite and suite not in first.also:
            once[key] = replace(first, also=(*first.also, suite))
    return list(once.values())
