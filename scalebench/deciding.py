"""Rounds until every row is decided, or the time is up: more launches for what is still open.

Who looks again and again until something is significant cries wolf. So each look tests at half the
level of the one before, the first at half of what a single one would: together they err no more
often than that one (Boole's inequality), however many there are and whenever they end. What a look
has decided stays decided.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from scalebench.interleaving import Turns
from scalebench.verdict.change import TEST_LEVEL
from scalebench.verdict.result import GateResult, RowVerdict
from scalebench.verdict.results import Results

Judge = Callable[[Results, Results, float], GateResult]
"""Base, new and the level to test at → the verdicts."""

_Place = tuple[str, str, int, str]


@dataclass
class _Looks:
    """What was looked at so far."""

    after: list[int] = field(default_factory=list)
    decided: dict[_Place, RowVerdict] = field(default_factory=dict)

    def level(self) -> float:
        return TEST_LEVEL * 0.5 ** (len(self.after) + 1)

    def take(self, result: GateResult, rounds: int) -> GateResult:
        """Return a look's result with what earlier looks decided, and keep what it decides."""
        rows = tuple(self.decided.get(_place(row), row) for row in result.rows)
        self.decided.update({_place(row): row for row in rows if not _is_open(row)})
        self.after.append(rounds)
        return replace(result, rows=rows)


def until_decided(turns: Turns, rounds: int, judge: Judge, budget_s: float) -> GateResult:
    """Measure, judge, and measure again what is open, twice as often, while there is time.

    Args:
        turns: What measures.
        rounds: Before the first look; these are made whatever the budget.
        judge: Makes the verdicts.
        budget_s: Seconds for all rounds; none is begun that would likely end later.

    Returns:
        The last look's verdicts, with the earlier ones on what was decided earlier.
    """
    looks = _Looks()
    for _ in range(rounds):
        turns.measure(rounds)
    result = looks.take(judge(*turns.results(), looks.level()), rounds)
    while _open_rows(result) and _measure_more(
        turns, _only_open(result, turns.arguments), budget_s
    ):
        result = looks.take(judge(*turns.results(), looks.level()), len(turns.round_s))
    return replace(result, notes=(*result.notes, _told(looks, result, budget_s)))


def _measure_more(turns: Turns, narrowed: Sequence[str], budget_s: float) -> bool:
    """Make as many rounds again as there are, as far as the time reaches; tell whether any."""
    before = len(turns.round_s)
    while len(turns.round_s) < 2 * before and sum(turns.round_s) + turns.round_s[-1] <= budget_s:
        turns.measure(2 * before, narrowed)
    return len(turns.round_s) > before


def _place(row: RowVerdict) -> _Place:
    return (*row.place, row.metric)


def _is_open(row: RowVerdict) -> bool:
    """Tell whether further launches could decide a row that counts."""
    undecided = row.verdict == "inconclusive" and not row.no_worse
    return row.decides and undecided and row.basis == "launches"


def _open_rows(result: GateResult) -> list[RowVerdict]:
    return [row for row in result.rows if _is_open(row)]


def _only_open(result: GateResult, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of ``run`` that leave out sizes and cases in which all is decided.

    One rank and the plain model stay, because efficiency is formed with them; of a suite in which
    nothing is open one case stays, because a suite has to have one.
    """
    rows = _open_rows(result)
    names = list(dict.fromkeys(row.case for row in result.rows))
    wanted = dict.fromkeys(["plain", *(row.case for row in rows)])
    for suite in dict.fromkeys(row.suite for row in result.rows):
        of_suite = [row.case for row in result.rows if row.suite == suite]
        if not any(case in wanted for case in of_suite):
            wanted[of_suite[0]] = None
    sizes = {row.world_size for row in rows}
    if any(row.world_size == 1 for row in result.rows):
        sizes.add(1)
    chosen = " or ".join(wanted)
    # A word matches all names that it is part of: the decided ones among them are named to go.
    beside = [n for n in names if n not in wanted and not any(n in case for case in wanted)]
    if beside:
        chosen = f"({chosen}) and not ({' or '.join(beside)})"
    if asked := _selection(arguments):
        chosen = f"({asked}) and ({chosen})"
    return ["--gpus", ",".join(map(str, sorted(sizes))), "-k", chosen]


def _selection(arguments: Sequence[str]) -> str | None:
    """Return the ``-k`` among the arguments of ``run``, the last one; None: there is none."""
    found = None
    for argument, following in zip(arguments, (*arguments[1:], ""), strict=False):
        if argument.startswith("-k"):
            found = argument.removeprefix("-k") or following
    return found


def _told(looks: _Looks, result: GateResult, budget_s: float) -> str:
    after = ", ".join(map(str, looks.after))
    times = f"{len(looks.after)} look{'' if len(looks.after) == 1 else 's'}, after {after} rounds"
    level = "each tests at half the level of the one before"
    left = len(_open_rows(result))
    if not left:
        return f"{times}; {level}"
    rows = f"{left} row{'' if left == 1 else 's'}"
    return f"{times}; {level}; {rows} undecided when {budget_s / 60:.3g} min were over"
