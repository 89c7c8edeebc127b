"""Rounds until every row is decided, or the time is up: more launches for what is still open.

Who looks again and again until something is significant cries wolf, and who looks until nothing is
passes everything. So each look may make half the errors of the one before, the first half of what a
single one may: levels shrink and intervals grow. Together they err no more often than that one
(Boole's inequality), however many there are and whenever they end. What a look has decided stays
decided, unless a launch fails later: then the row has failed, if it had not regressed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from scalebench.errors import ScalebenchError
from scalebench.interleaving import Turns
from scalebench.plan.cells import row_name
from scalebench.verdict.result import GateResult, RowVerdict
from scalebench.verdict.results import Results

Judge = Callable[[Results, Results, float], GateResult]
"""Base, new and the share of all errors that the look may make → the verdicts."""

_Place = tuple[str, str, int, str]


@dataclass
class _Looks:
    """What was looked at so far.

    Attributes:
        after: Rounds that there were at each look.
        decided: Metric of a row → its verdict, from the first look that had one.
        ended: Why there are no further ones; ``""``: no reason but time.
    """

    after: list[int] = field(default_factory=list)
    decided: dict[_Place, RowVerdict] = field(default_factory=dict)
    ended: str = ""

    def share(self) -> float:
        return 0.5 ** (len(self.after) + 1)

    def take(self, result: GateResult, rounds: int) -> GateResult:
        """Return a look's result with what earlier looks decided, and keep what it decides."""
        rows = {_place(row): row for row in result.rows}
        lost = {row.place for row in result.rows if row.failed}
        for place, earlier in self.decided.items():
            still_there = place in rows and earlier.place not in lost
            if still_there or earlier.verdict == "regressed":
                rows[place] = earlier
        self.decided.update({p: row for p, row in rows.items() if not _is_open(row)})
        self.after.append(rounds)
        return replace(result, rows=tuple(rows.values()))


def until_decided(turns: Turns, rounds: int, judge: Judge, budget_s: float) -> GateResult:
    """Measure, judge, and measure again what is open, twice as often, while there is time.

    Args:
        turns: What measures.
        rounds: Before the first look; these are made whatever the budget.
        judge: Makes the verdicts.
        budget_s: Seconds for all rounds; none is begun that would likely end later.

    Returns:
        The last look's verdicts, with the earlier ones on what was decided earlier. A run that
        cannot be made ends it; the first look's rounds raise what they raise.
    """
    looks = _Looks()
    for _ in range(rounds):
        turns.measure(rounds)
    result = looks.take(judge(*turns.results(), looks.share()), rounds)
    while _open_rows(result) and _measure_more(turns, _only_open(result, turns), budget_s, looks):
        result = looks.take(judge(*turns.results(), looks.share()), len(turns.round_s))
    return replace(result, notes=(*result.notes, _told(looks, result, budget_s)))


def _measure_more(turns: Turns, narrowed: Sequence[str], budget_s: float, looks: _Looks) -> bool:
    """Make as many rounds again as there are, as far as the time reaches; tell whether any."""
    before = len(turns.round_s)
    while (
        not looks.ended
        and len(turns.round_s) < 2 * before
        and sum(turns.round_s) + turns.round_s[-1] <= budget_s
    ):
        try:
            turns.measure(2 * before, narrowed)
        except ScalebenchError as error:
            looks.ended = str(error)
    return len(turns.round_s) > before


def _place(row: RowVerdict) -> _Place:
    return (*row.place, row.metric)


def _is_open(row: RowVerdict) -> bool:
    """Tell whether further launches could decide a row that counts."""
    undecided = row.verdict == "inconclusive" and not row.no_worse
    return row.decides and undecided and row.basis == "launches"


def _open_rows(result: GateResult) -> list[RowVerdict]:
    return [row for row in result.rows if _is_open(row)]


def _only_open(result: GateResult, turns: Turns) -> list[str]:
    """Return the arguments of ``run`` that leave out the rows in which all is decided.

    The plain models on one rank stay where something of their suite is open: efficiency is formed
    with them, and within a round.
    """
    wanted = dict.fromkeys(row.place for row in _open_rows(result))
    suites = {suite for suite, _, _ in wanted}
    for row in turns.results()[1].rows:
        if row.suite in suites and row.strategy == "plain" and row.world_size == 1:
            wanted[row.suite, row.case, row.world_size] = None
    return [word for place in wanted for word in ("--only", row_name(*place))]


def _told(looks: _Looks, result: GateResult, budget_s: float) -> str:
    after = ", ".join(map(str, looks.after))
    times = f"{len(looks.after)} look{'' if len(looks.after) == 1 else 's'}, after {after} rounds"
    told = f"{times}; each may err half as often as the one before"
    left = len(_open_rows(result))
    if not left:
        return told
    why = looks.ended or f"{budget_s / 60:.3g} min were over"
    return f"{told}; {left} row{'' if left == 1 else 's'} undecided when it ended: {why}"
