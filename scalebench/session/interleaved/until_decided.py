"""Rounds until every row is decided, or the time is up: more launches for what is still open.

Repeated testing until something is significant inflates false positives; repeated testing until
nothing is passes everything. So each interim analysis has half the error budget of the one before,
the first half of what a single one has: levels shrink and intervals grow. Together they err no more
often than that one (Boole's inequality), however many there are and whenever they end. What an
analysis has decided stays decided, unless a launch fails later: then the row has failed, if it had
not regressed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from scalebench.errors import ScalebenchError
from scalebench.gate.result import GateResult, RowVerdict
from scalebench.gate.results import Results
from scalebench.session.interleaved.ab_runs import InterleavedRuns
from scalebench.session.plan.cells import row_name

Judge = Callable[[Results, Results, float], GateResult]
"""Base, new and the part of all errors that the analysis may make → the verdicts."""

_Place = tuple[str, str, int, str]


@dataclass
class _InterimAnalyses:
    """The interim analyses so far.

    Attributes:
        after: Rounds that there were at each analysis.
        decided: Metric of a row → its verdict, from the first analysis that had one.
        ended: Why there are no further ones; ``""``: no reason but time.
    """

    after: list[int] = field(default_factory=list)
    decided: dict[_Place, RowVerdict] = field(default_factory=dict)
    ended: str = ""

    def error_budget(self) -> float:
        """Return the part of all errors that the next analysis may make."""
        return 0.5 ** (len(self.after) + 1)

    def take(self, result: GateResult, rounds: int) -> GateResult:
        """Return an analysis's result with what earlier ones decided, and keep what it decides."""
        rows = {_place(row): row for row in result.rows}
        lost = {row.place for row in result.rows if row.failed}
        for place, earlier in self.decided.items():
            still_there = place in rows and earlier.place not in lost
            if still_there or earlier.verdict == "regressed":
                rows[place] = earlier
        self.decided.update({p: row for p, row in rows.items() if not result.is_open(row)})
        self.after.append(rounds)
        return replace(result, rows=tuple(rows.values()))


def until_decided(
    interleaved: InterleavedRuns,
    rounds: int,
    judge: Judge,
    budget_s: float,
    fewest: int | None = None,
) -> GateResult:
    """Measure, judge, and measure again what is open, twice as often, while there is time.

    ``rounds`` come before the first analysis; ``fewest`` of them are made whatever the budget,
    None: all. A round that would likely end after ``budget_s`` seconds does not begin.

    Returns:
        The last analysis's verdicts, with the earlier ones on what was decided earlier. A run that
        cannot be made ends it; the first analysis's rounds raise what they raise.
    """
    analyses = _InterimAnalyses()
    for number in range(rounds):
        if number < (fewest or rounds) or _has_time(interleaved, budget_s):
            interleaved.measure(rounds)
    rounds = len(interleaved.round_s)
    result = analyses.take(judge(*interleaved.results(), analyses.error_budget()), rounds)
    while _open_rows(result) and _measure_more(
        interleaved, _only_open(result, interleaved), budget_s, analyses
    ):
        result = analyses.take(
            judge(*interleaved.results(), analyses.error_budget()), len(interleaved.round_s)
        )
    return replace(result, notes=(*result.notes, _note(analyses, result, budget_s)))


def _measure_more(
    interleaved: InterleavedRuns, only: Sequence[str], budget_s: float, analyses: _InterimAnalyses
) -> bool:
    """Make as many rounds again as there are, as far as the time reaches; tell whether any."""
    before = len(interleaved.round_s)
    while (
        not analyses.ended
        and len(interleaved.round_s) < 2 * before
        and _has_time(interleaved, budget_s)
    ):
        try:
            interleaved.measure(2 * before, only)
        except ScalebenchError as error:
            analyses.ended = str(error)
    return len(interleaved.round_s) > before


def _has_time(interleaved: InterleavedRuns, budget_s: float) -> bool:
    """Tell whether a round as long as the last one ends within the budget."""
    return sum(interleaved.round_s) + interleaved.round_s[-1] <= budget_s


def _place(row: RowVerdict) -> _Place:
    return (*row.place, row.metric)


def _open_rows(result: GateResult) -> list[RowVerdict]:
    return [row for row in result.rows if result.is_open(row)]


def _only_open(result: GateResult, interleaved: InterleavedRuns) -> list[str]:
    """Return the names of the rows in which something is open.

    The plain models on one rank stay where something of their suite is open: efficiency is formed
    with them, and within a round.
    """
    wanted = dict.fromkeys(row.place for row in _open_rows(result))
    suites = {suite for suite, _, _ in wanted}
    for row in interleaved.results()[1].rows:
        if row.suite in suites and row.strategy == "plain" and row.world_size == 1:
            wanted[row.suite, row.case, row.world_size] = None
    return [row_name(*place) for place in wanted]


def _note(analyses: _InterimAnalyses, result: GateResult, budget_s: float) -> str:
    num = len(analyses.after)
    after = ", ".join(map(str, analyses.after))
    times = f"{num} interim {'analysis' if num == 1 else 'analyses'}, after {after} rounds"
    note = f"{times}; each has half the error rate of the one before"
    left = len(_open_rows(result))
    if not left:
        return note
    why = analyses.ended or f"{budget_s / 60:.3g} min had passed"
    return f"{note}; {left} row{'' if left == 1 else 's'} undecided at the end: {why}"
