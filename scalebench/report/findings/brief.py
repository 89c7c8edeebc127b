"""The verdict as a terminal has room for it: a headline per suite, two lines per case.

The same findings as `scalebench.report.findings.findings`, without the rest of what is known.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scalebench.records.rows.budget import RESIDUAL, Budget
from scalebench.records.summary import Row, Summary
from scalebench.report.findings import ranking
from scalebench.report.findings.findings import Finding, SuiteVerdict, headlines, judge
from scalebench.report.tables import compression, races, recovery
from scalebench.report.words import causes, wording

LONGEST_REASON = 60


@dataclass(frozen=True)
class CaseInBrief:
    """What a terminal says about one case.

    Attributes:
        speedup: At the largest N; empty: there is none.
        result: The efficiency with its interval, or why there is none.
        losses: What costs most, and how certain that is; the same in several lengths, the longest
            first; empty: nothing is lost.
        next_step: What helps most; None: no rule has a number to go by.
    """

    case: str
    speedup: str
    result: str
    losses: tuple[str, ...]
    next_step: str | None


@dataclass(frozen=True)
class SuiteInBrief:
    """What a terminal says about one suite.

    Attributes:
        title: Which suite, and at which size it is judged.
        headline: What scales best, with its interval, and how certain that is.
        next_step: That of all cases, where it is the same for several; then no case has one.
        is_race: The cases raced to a loss, or were saved and restored: a table of their own says
            of each what came of it.
    """

    title: str
    headline: str
    cases: tuple[CaseInBrief, ...]
    next_step: str | None = None
    is_race: bool = False


def judge_in_brief(summary: Summary) -> list[SuiteInBrief]:
    """Return the verdict of each suite that has more than a baseline."""
    groups = wording.by_suite(summary.rows)
    found = (suite_in_brief(verdict, groups[verdict.suite]) for verdict in judge(summary).suites)
    return [suite for suite in found if suite.cases or suite.is_race]


def suite_in_brief(verdict: SuiteVerdict, rows: Sequence[Row]) -> SuiteInBrief:
    """Return the verdict of one suite, of which ``rows`` are all rows."""
    ranked = ranking.rank(headlines(verdict.findings))
    best = ranked.best if ranked else None
    of_race = races.headline(rows) or recovery.headline(rows)
    if of_race is not None:
        title = f"verdict on suite {wording.plain(verdict.suite, 64)}{where(best)}"
        return SuiteInBrief(title=title, headline=of_race, cases=(), is_race=True)
    findings = [finding for finding in verdict.findings if finding.kind != "baseline"]
    cases = [case_in_brief(finding, best) for finding in findings]
    steps = {case.next_step for case in cases}
    sure = [of.certain for of in findings if of.certain and (best is None or of.headline is best)]
    memory = ranking.least_memory(ranked)
    said = [ranking.headline(ranked), compression.headline(rows), memory, *sure[:1]]
    same = cases[0].next_step if len(cases) > 1 and len(steps) == 1 else None
    return SuiteInBrief(
        title=f"verdict on suite {wording.plain(verdict.suite, 64)}{where(best)}",
        headline=" ".join(t for t in said if t),
        cases=tuple(replace(case, next_step=None) if same else case for case in cases),
        next_step=same,
    )


def where(best: Row | None) -> str:
    """Say at which size a suite is judged, behind a comma; empty: at none."""
    if best is None:
        return ""
    few = f", oversubscribed: more ranks than {wording.scarce(best)}" if best.oversubscribed else ""
    return f", {wording.ranks(best)}{few}"


def case_in_brief(finding: Finding, best: Row | None = None) -> CaseInBrief:
    """Return what is said about a case; ``best`` is the row that its suite is judged by."""
    row = finding.headline
    rated = row is not None and row.efficiency is not None and row.world_size > 1
    return CaseInBrief(
        case=wording.plain(finding.case, 64),
        speedup=_speedup(row, best) if row is not None and rated else "",
        result=_result(finding),
        losses=_losses(finding) if rated else (),
        next_step=finding.next_step,
    )


def _losses(finding: Finding) -> tuple[str, ...]:
    if finding.headline is None:
        return ()
    return (finding.cause,) if finding.cause else losses(finding.headline, bool(finding.certain))


def _speedup(row: Row, best: Row | None) -> str:
    elsewhere = best is None or row.world_size != best.world_size
    where = f"N={row.world_size} " if elsewhere else ""
    return where + (f"{wording.point(row.speedup)}{wording.TIMES}" if row.speedup else "")


def _result(finding: Finding) -> str:
    row = finding.headline
    if row is None:
        return "no result at any size"
    if finding.kind == "inconclusive":
        return f"inconclusive: {wording.interval(row.efficiency, 100)} %" if row.efficiency else ""
    if row.world_size == 1:
        return "measured on one rank only: nothing can be said about scaling"
    if row.efficiency is None:
        reason = row.unavailable.get("efficiency", "there is no plain baseline")
        return f"efficiency unknown: {wording.plain(reason, LONGEST_REASON)}"
    return f"{wording.plus_minus(row.efficiency, 100)} %"


def losses(row: Row, named: bool = False) -> tuple[str, ...]:
    """Say what costs a row most, and how certain that is, or why no cause is named.

    Args:
        row: On several ranks.
        named: A cause is certain without the loss budget, and told elsewhere.

    Returns:
        The same in several lengths, the longest first; nothing where nothing is lost.
    """
    if compression.is_bound(row):
        return ("a bound, not a way to train: nothing is communicated", "a bound: no communication")
    budget = row.budget
    none = f"no {'other ' if named else ''}cause is named"
    if budget is None:
        reason = row.unavailable.get("budget")
        return (f"{none}: {wording.plain(reason, LONGEST_REASON)}",) if reason else ()
    if not budget.closes:
        return (f"{none}: {_why_open(budget)}", none)
    found = causes.losses(row, causes.least_share(budget))
    if not found:
        return ()
    largest, share = found[0], budget.share(found[0])
    name, size = causes.name(largest, budget), causes.points(share)
    of = f" of the {causes.points(budget.gap)} % lost" if share < budget.gap else " % of the step"
    if causes.certain(row, budget, largest):
        return (f"biggest cause: {name}, {size}{of}", f"{name}: {size} % lost")
    if row.efficiency is None or row.efficiency.n == 1:
        return (
            f"one launch saw: {name}, {size}{of}",
            f"{name}: {size} % (not certain)",
        )
    doubt = "probable, not certain" if causes.likely(budget, largest) else "uncertain"
    told = f"{doubt}: {name}, {size}{of}"
    sure = next((part for part in found if causes.certain(row, budget, part)), None)
    if sure is None:
        return (told, f"{name}: {size} % (uncertain)")
    sure_name, sure_size = causes.name(sure, budget), causes.points(budget.share(sure))
    lost = f"certain: {sure_size} % lost to {sure_name}"
    likely = f"{doubt.partition(',')[0]}: {size} % lost to {name}"
    both = f"{likely}; certain: {sure_size} % to {sure_name}"
    return (f"{told}. {wording.capital(lost)}", both, lost)


def _why_open(budget: Budget) -> str:
    unexplained = abs(budget.share(RESIDUAL))
    if unexplained > causes.LARGEST_RESIDUAL:
        return f"{causes.points(unexplained)} % of the step is unexplained"
    slower = "more" if budget.drift > 0 else "less"
    return f"while parts were measured, a step took {abs(100 * budget.drift):.0f} % {slower}"
