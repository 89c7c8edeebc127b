"""What takes the missing part, in sentences: parts, slower computation, ranks that come late.

A part of the budget is named as a cause only where its interval excludes zero.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from scalebench import units
from scalebench.records.rows.budget import (
    MEASURED,
    RESIDUAL,
    WAIT,
    Budget,
    ComputeInflation,
    Part,
    agreeing,
)
from scalebench.records.rows.steps import Straggler
from scalebench.records.summary import Estimate, Row
from scalebench.report.words import wording
from scalebench.report.words.notes import marks

Words = Callable[[float], str]

NEGLIGIBLE = 0.0005
"""Of the step: below this a part is written as 0.0 %."""

WORTH_TELLING = 0.01
"""Of the step: estimates that differ by less make no difference to the answer."""
LATE = 0.01
"""Of the step: arrivals that differ by less make no difference to the answer."""

SELDOM = 10
"""Operations below which a rank that is hardly late cannot be said to come last always."""

VERY_LATE = 0.1
"""Of the step: so late, a few operations are enough if the rank comes last to all of them."""

FEW = 4
"""Operations below which no rank is named."""


def budgeted(rows: Sequence[Row]) -> list[tuple[Row, Budget]]:
    """Return the rows whose loss is accounted for, without the baseline, which has none."""
    return [
        (row, row.budget) for row in rows if row.budget is not None and not wording.is_baseline(row)
    ]


def disagreements(row: Row) -> list[tuple[str, Estimate, str, Estimate]]:
    """Return the pairs of estimates that disagree by more than 1 % of the step."""
    found = row.exposed_comm_estimates
    if found is None or row.step_s is None:
        return []
    return found.disagreements(WORTH_TELLING * row.step_s.value)


NAMES = {
    "smaller_batch_s": "smaller batch",
    "contention_s": "contention",
    "own_operators_s": "extra operators",
}

LEAST = 0.005
"""Of the step: a smaller part is not worth a line."""


@dataclass(frozen=True)
class InflationPart:
    """One measured part of slower computation, as a part of the step.

    Attributes:
        field: Of `ComputeInflation`.
    """

    field: str
    share: Estimate

    @property
    def certain(self) -> bool:
        """Whether its interval excludes zero."""
        return self.share.excludes_zero

    @property
    def text(self) -> str:
        """``"contention 10.2"``, with a word of doubt where it may be zero."""
        doubt = "" if self.certain else " (uncertain)"
        return f"{NAMES[self.field]} {wording.signed(100 * self.share.value)}{doubt}"


def inflation_parts(budget: Budget | None) -> list[InflationPart]:
    """Return the parts of a budget's slower computation that were measured."""
    if budget is None or budget.inflation is None:
        return []
    found: ComputeInflation = budget.inflation
    estimates = {name: getattr(found, name) for name in NAMES}
    return [
        InflationPart(name, estimate.scaled(1 / budget.measured_s))
        for name, estimate in estimates.items()
        if estimate is not None
    ]


def largest_inflation(budget: Budget | None) -> InflationPart | None:
    """Return the largest part that certainly takes time; None: there is none."""
    certain = [p for p in inflation_parts(budget) if p.certain and p.share.value >= LEAST]
    return max(certain, key=lambda part: part.share.value, default=None)


def inflation_note(row: Row) -> str | None:
    """Say what a row's slower computation consists of, where a part of it is certain."""
    if largest_inflation(row.budget) is None:
        return None
    parts = wording.joined([part.text for part in inflation_parts(row.budget)])
    return f"{wording.place(row)}: slower computation consists of {parts}"


LARGEST_RESIDUAL = 0.02
"""Of the step: a budget that is open with a smaller residual is open for another reason."""

OUTWEIGHS = 3
"""Times what is unexplained: a part of more is the largest although the parts do not add up."""

LEAST_GAP = 0.001
"""Of the step: a smaller gap has no causes."""

LEAST_OF_GAP = 0.05
"""A part that is less of the gap is in the table, not in the sentence."""

LIKELY = 0.5
"""Of an interval's half width: noise alone is so much in one of six cases at most."""

MISMATCHED = ("exposed_transfer", "wait")
"""Parts that cannot be separated where the ranks' operations could not be matched."""

TOGETHER = "transfer including waiting"
"""What takes the time where the two cannot be separated."""

ESTIMATE_NAMES = {"trace": "trace", "differential": "difference", "ddp_logger": "DDP's own logger"}


def causes(row: Row, named: bool = False) -> list[str]:
    """Say what takes the time that a row is missing to ideal; ``named``: one cause is said."""
    said = _causes(row)
    other = "No other cause is named" if named else "No cause is named"
    return [one.replace("No cause is named", other) for one in said]


def _causes(row: Row) -> list[str]:
    budget = row.budget
    if wording.is_baseline(row):
        return []
    if budget is None:
        return _no_budget(row)
    if abs(budget.gap) < LEAST_GAP:
        return []
    if not budget.closes:
        return [_open(budget)]
    return _parts(row, budget)


def points(share: float) -> str:
    """Write a part of the step in percent, with a true minus sign: ``"−3.9"``."""
    return wording.signed(100 * share)


def certain(row: Row, budget: Budget, part: Part) -> bool:
    """Whether a part of a row's budget is significantly different from zero, and no other's.

    Where transfer and wait have one number together, that number can be certain. What is
    unexplained is what it is.
    """
    if part is RESIDUAL:
        return True
    apart = budget.wait_s is not None
    if part.key in MISMATCHED and apart and "wait_s" in row.unavailable:
        return False
    return budget.certain(part)


def likely(budget: Budget, part: Part) -> bool:
    """Whether a part is more than half of its interval's half width, see `LIKELY`."""
    found = budget.estimate(part)
    width = found.half_width if found else None
    return found is not None and width is not None and found.value > LIKELY * width


def losses(row: Row, least: float) -> list[Part]:
    """Return the parts that take at least so much of the step, certain or not, the largest first.

    Empty: there is no budget, or it does not close.
    """
    budget = row.budget
    if budget is None or not budget.closes:
        return []
    found = [part for part in MEASURED if budget.share(part) >= least]
    return sorted(found, key=lambda part: -budget.share(part))


def outweighing(budget: Budget) -> Part | None:
    """Return the part of a budget with a rest that is the largest wherever the rest belongs.

    None: there is no such part, it may be noise, or steps next to the traced ones drifted.
    """
    first, second = sorted(MEASURED, key=lambda part: -budget.share(part))[:2]
    left = abs(budget.share(RESIDUAL))
    ahead = budget.share(first) - budget.share(second)
    large = ahead > left and budget.share(first) > OUTWEIGHS * left > OUTWEIGHS * LARGEST_RESIDUAL
    return first if large and likely(budget, first) else None


def certain_losses(row: Row, least: float) -> list[Part]:
    """Return those of `losses` that are certain."""
    return [part for part in losses(row, least) if row.budget and certain(row, row.budget, part)]


def largest_loss(rows: Sequence[Row]) -> tuple[float, str, Row] | None:
    """Return the largest certain loss of several rows: part of the step, cause and row.

    None: no part that is worth a name is certain.
    """
    takes = [
        (budget.share(part), name(part, budget), row)
        for row, budget in budgeted(rows)
        for part in certain_losses(row, least_share(budget))[:1]
    ]
    return max(takes, key=lambda found: found[0], default=None)


def drifted(budget: Budget) -> bool:
    """Whether traced steps were unlike the others, so that they tell nothing of these."""
    return not budget.closes and abs(budget.share(RESIDUAL)) <= LARGEST_RESIDUAL


def why_open(budget: Budget, residual: Words, drift: Words) -> str:
    """Say why the parts of a budget do not explain its step: what they leave, or a drift.

    ``residual`` says what the parts leave, given as a part of the step; ``drift`` says by how much
    steps next to the traced ones were slower, a ratio.
    """
    left = budget.share(RESIDUAL)
    return residual(left) if abs(left) > LARGEST_RESIDUAL else drift(budget.drift)


def _no_budget(row: Row) -> list[str]:
    reason = row.unavailable.get("budget")
    if row.exposed_comm_s is None or not reason:
        return []
    why = wording.plain(reason, wording.WHOLE_REASON)
    return [f"No cause is named for what is missing to ideal: {why}."]


def _open(budget: Budget) -> str:
    def residual(left: float) -> str:
        told = (
            f"leave {points(left)} % of the step unexplained"
            if left > 0
            else f"add up to {points(-left)} % more than the step"
        )
        probable = outweighing(budget)
        if probable is None:
            return f"No cause is named: the parts do not add up, they {told}."
        size = points(budget.share(probable))
        cause = wording.capital(name(probable, budget))
        return f"{cause} probably takes {size} % of the step; the parts do not add up, they {told}."

    return why_open(
        budget,
        residual,
        lambda drift: (
            "No cause is named: steps next to the traced ones were"
            f" {abs(100 * drift):.0f} % {'longer' if drift > 0 else 'shorter'} than the others that"
            " were measured (in the launch of row or baseline where they differ most)."
        ),
    )


def _parts(row: Row, budget: Budget) -> list[str]:
    least = least_share(budget)
    large = [part for part in MEASURED if abs(budget.share(part)) >= least]
    large.sort(key=lambda part: -abs(budget.share(part)))
    known = [part for part in large if certain(row, budget, part)]
    doubtful = [part for part in large if part not in known]
    if not known:
        return [_inconclusive(budget, doubtful)]
    takes = _clause([part for part in known if budget.share(part) > 0], budget, "takes")
    gains = _clause([part for part in known if budget.share(part) < 0], budget, "gives back")
    told = "; ".join(clause for clause in (takes, gains) if clause)
    said = [f"{_opening(row, budget)} {told}."]
    largest = largest_inflation(budget)
    if largest is not None and any(part.key == "compute_inflation" for part in known):
        said.append(f"The largest part of the slower computation is {largest.text}.")
    if doubtful:
        said.append(f"Uncertain, may be zero: {_listed(doubtful, budget)}.")
    return [" ".join(said)]


def _opening(row: Row, budget: Budget) -> str:
    if budget.gap < 0:
        return f"The ideal step would be {points(-budget.gap)} % longer:"
    efficiency = row.efficiency
    sure = efficiency is not None and efficiency.high is not None and efficiency.high < 1
    doubt = "" if sure else " (uncertain, may be nothing)"
    return f"Of the {points(budget.gap)} % lost{doubt},"


def _clause(parts: Sequence[Part], budget: Budget, verb: str) -> str:
    """Write ``"transfer takes 5.4 and idle 4.1"``."""
    if not parts:
        return ""
    names = [name(part, budget) for part in parts]
    sizes = [points(abs(budget.share(part))) for part in parts]
    first = f"{agreeing(names[0], verb)} {sizes[0]}"
    others = [f"{name} {size}" for name, size in zip(names[1:], sizes[1:], strict=True)]
    return wording.joined([first, *others])


def least_share(budget: Budget) -> float:
    """Return the part of the step below which a cause is not worth a name."""
    return max(LEAST_GAP, LEAST_OF_GAP * abs(budget.gap))


def name(part: Part, budget: Budget) -> str:
    """Return what a part of a budget is called as the subject of a sentence."""
    if part.key == "exposed_transfer" and not budget.knows(WAIT):
        return TOGETHER
    return part.name if budget.share(part) > 0 else part.gain or part.name


def _listed(parts: Sequence[Part], budget: Budget) -> str:
    names = [name(part, budget) for part in parts]
    sizes = [points(budget.share(part)) for part in parts]
    return wording.joined([f"{name} {size}" for name, size in zip(names, sizes, strict=True)])


def _inconclusive(budget: Budget, doubtful: Sequence[Part]) -> str:
    single = all(estimate.low is None for estimate in budget.estimates.values())
    why = "One launch cannot say" if single else "The measurement is too noisy to say"
    listed = f"; what was seen, uncertain: {_listed(doubtful, budget)}" if doubtful else ""
    subject, what = (
        (f"{points(budget.gap)} % is lost", "where")
        if budget.gap > 0
        else (f"The ideal step would be {points(-budget.gap)} % longer", "why")
    )
    return f"{subject}. {why} {what}{listed}."


def doubts(row: Row) -> list[str]:
    """Say where the measurements of communication contradict one another."""
    said = []
    for first, a, second, b in disagreements(row):
        names = f"{ESTIMATE_NAMES[first]} and {ESTIMATE_NAMES[second]}"
        said.append(
            f"{wording.capital(names)} disagree about exposed communication:"
            f" {units.seconds(a.value)} against {units.seconds(b.value)}."
        )
    if row.exposed_comm_s is not None and row.wait_s is None and "wait_s" in row.unavailable:
        reason = wording.plain(row.unavailable["wait_s"], 160)
        said.append(f"Waiting and transfer are not separated: {reason}.")
    return said


def tracing_cost(rows: Sequence[Row]) -> str | None:
    """Say how much longer traced steps took than clean ones; None: nothing was traced."""
    found = sorted(100 * row.trace_overhead.value for row in rows if row.trace_overhead)
    if not found:
        return None
    low, high = wording.signed(found[0], 0), wording.signed(found[-1], 0)
    span = high if low == high else f"{low} to {high}"
    made = f"made steps {span} % slower" if found[0] > 0 else f"changed steps by {span} %"
    return f"profiling {made}; the numbers above are corrected for that"


def not_apart(accounted: Sequence[tuple[Row, Budget]]) -> list[str]:
    """Say where transfer includes waiting, and why: one text for each reason."""
    where: dict[str, list[str]] = {}
    for row, budget in accounted:
        if not budget.knows(WAIT):
            reason = wording.plain(budget.not_apart or "no reason recorded", 160)
            where.setdefault(reason, []).append(wording.place(row))
    return [
        f"transfer includes waiting, {wording.joined(places)}: {reason}"
        for reason, places in where.items()
    ]


def clock_bound(accounted: Sequence[tuple[Row, Budget]]) -> str | None:
    """Say how far waits may be wrong where the ranks' hosts have clocks of their own."""
    bounds = [budget.clock_bound_s for _, budget in accounted if budget.knows(WAIT)]
    largest = max(bounds, default=0.0)
    if largest <= 0:
        return None
    certain_to = units.seconds(largest)
    return f"waits are certain to ± {certain_to}: the hosts' clocks were aligned by messages"


def arrivals(row: Row) -> list[Straggler]:
    """Return who came last how often, the most frequent first; of one rank alone: nothing."""
    return list(row.stragglers or ()) if row.world_size > 1 else []


def straggler(row: Row) -> Straggler | None:
    """Return the rank that holds the others up; None where no rank does so steadily.

    It comes last in more than 60 % of the operations and half as often again as chance would have
    it, by more than 1 % of a step. No test of significance: arrivals of one step depend on one
    another. Of fewer than ten operations it has to come last to all, by more than 10 % of a step.
    """
    found = arrivals(row)
    num_operations = sum(other.count for other in found)
    if not found or row.step_s is None or num_operations < FEW:
        return None
    first = found[0]
    if num_operations < SELDOM:
        always = first.share == 1 and first.median_late_s > VERY_LATE * row.step_s.value
        return first if always else None
    enough = num_operations >= 2 * SELDOM or first.share >= 0.9
    often = enough and first.share > 0.6 and first.stands_out(row.world_size)
    late = first.median_late_s > LATE * row.step_s.value
    return first if often and late else None


LEAST_OF_WAIT = 0.25
"""Of what the others wait: a part that explains less is no reason."""

OWN_PARTS = {
    "data_stall_s": "its data loading takes {own} a step, on the others {others}",
    "compute_s": "its computation takes {own} a step, on the others {others}",
    "codec_s": "its encoding takes {own} a step, on the others {others}",
    "other_idle_s": "it does nothing that PyTorch sees {own} a step, the others {others}",
}
"""What a rank does by itself, the surest reason first: how long it computes also depends on what
else the machine does."""


def action(rank: int, part: str) -> str:
    """Say what to look at in a late rank, given the part of it that takes longer."""
    if part == "data_stall_s":
        return f"Look at the loader of rank {rank}"
    if part in ("other_idle_s", "lateness_s"):
        return f"See what rank {rank} does (py-spy dump or record)"
    return f"Look at rank {rank}"


def reasons(row: Row, rank: int) -> dict[str, str]:
    """Say which of a late rank's own parts take longer than the others', the surest first.

    Empty: the traced steps do not show it.
    """
    times = (row.budget.ranks or []) if row.budget is not None else []
    own = next((one for one in times if one.rank == rank), None)
    others = [one for one in times if one.rank != rank]
    if own is None or not others:
        return {}
    waited_s = median(one.wait_s for one in others) - own.wait_s
    found = {}
    for field, text in OWN_PARTS.items():
        own_s = getattr(own, field) or 0.0
        others_s = median(getattr(one, field) or 0.0 for one in others)
        if waited_s > 0 and own_s - others_s >= LEAST_OF_WAIT * waited_s:
            said = text.format(own=units.seconds(own_s), others=units.seconds(others_s))
            found[field] = said
    return found


def lateness(late: Straggler) -> str:
    """Say to how many operations a rank comes last, and by how much."""
    few = late.share == 1 and late.count < SELDOM
    share = f"all {late.count}" if few else f"{100 * late.share:.0f} % of"
    return f"last to enter {share} operations, {units.seconds(late.median_late_s)} late"


def held_up(row: Row) -> list[str]:
    """Name the rank that steadily arrives last, and why: ``"Rank 1 is the slow one (last …"``."""
    late = straggler(row)
    if late is None or "foreign load" in marks(row):  # which makes any rank late
        return []
    why = wording.joined(list(reasons(row, late.rank).values()))
    return [f"Rank {late.rank} is the slow one ({lateness(late)}){f': {why}' if why else ''}."]
