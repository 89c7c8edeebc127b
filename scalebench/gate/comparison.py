"""One metric of one row in both runs: the verdicts in the units of the summary, and why.

Where a change comes from is told by the two loss budgets and the exact quantities.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scalebench import units
from scalebench.gate.family import Judgement, Pair, paired
from scalebench.gate.metrics import Metric
from scalebench.gate.observation import Measured, Observation, collective_counts
from scalebench.gate.result import WORSE, Basis, Mismatch, RowVerdict, Verdict
from scalebench.records.rows.budget import PARTS, agreeing
from scalebench.records.rows.race import RaceFigures
from scalebench.records.summary import Row

SAME = 1e-9
"""Exact numbers that differ by less, as a ratio, differ by rounding."""

HOPELESS = 10
"""A smallest findable change above this factor says that hardly any would be found."""
WHOLE = 1e-6
"""A mean count this near a whole number was the same in all launches."""


@dataclass(frozen=True)
class Comparison:
    """A metric as two rows of the same name have it.

    Attributes:
        base: None: the baseline's row has no number.
        rounds: Whether the launches of both sides took turns, so that they form pairs.
        base_runs: Every accepted run of the baseline by itself, where there are several.
    """

    metric: Metric
    base_row: Row
    new_row: Row
    base: Observation | None
    new: Observation | None
    rounds: bool = False
    base_runs: tuple[Measured, ...] = ()

    @property
    def launches(self) -> tuple[Measured, Measured] | None:
        """What the launches of both sides say; None: the metric is one number."""
        if self.base is None or self.new is None:
            return None
        if self.base.launches is None or self.new.launches is None:
            return None
        return self.base.launches, self.new.launches

    @property
    def worse(self) -> int:
        """1: larger is worse, -1: smaller is."""
        return -1 if self.metric.higher_is_better else 1

    @property
    def change(self) -> float | None:
        """``new / base - 1``; of prediction errors the difference of the magnitudes."""
        if self.base is None or self.new is None:
            return None
        was, is_ = self.base.value, self.new.value
        if self.metric.name == "prediction_error":
            return abs(is_) - abs(was)
        return (is_ - was) / abs(was) if was else None

    @property
    def floor(self) -> float | None:
        """The floor on the scale of `change`; None: there is no such scale."""
        if self.metric.name == "prediction_error":
            return self.metric.absolute_floor
        if self.base is None or not self.base.value:
            return None
        return self.metric.floor(self.base.value)

    @property
    def host_allowance(self) -> float:
        """By how much another host alone may change it, a ratio; 0: only one run was accepted."""
        return self.metric.host_allowance if self.base_runs else 0.0

    @property
    def decides(self) -> bool:
        """Whether the verdict counts for the exit code."""
        over_runs = bool(self.base_runs) and self.metric.decides_over_runs
        return self.metric.decides or over_runs

    def verdict(self, verdict: Verdict, reason: str = "", basis: Basis = "none") -> RowVerdict:
        """Return a verdict with what is known without any test."""
        row, metric = self.new_row, self.metric
        sides = self.launches
        return RowVerdict(
            *(row.suite, row.case, row.world_size, metric.name, metric.unit, verdict),
            base=self.base.value if self.base else None,
            new=self.new.value if self.new else None,
            change=None if verdict == "not comparable" else self.change,
            floor=self.floor,
            decides=self.decides,
            higher_is_better=metric.higher_is_better,
            basis=basis,
            reason=reason,
            base_launches=sides[0].num_launches if sides else 0,
            new_launches=sides[1].num_launches if sides else 0,
            base_runs=max(len(self.base_runs), 1),
            host_allowance=self.host_allowance,
        )

    def pair(self) -> Pair:
        """Return what is judged together with the other rows of the call; only with launches."""
        assert self.launches is not None and self.base is not None, "asked of single numbers"
        floor = self.floor or 0.0
        if self.metric.kind == "positive":
            up, down = math.log1p(floor), -math.log1p(-min(floor, 1 - SAME))
        else:
            up = down = max(floor * abs(self.base.value), self.metric.absolute_floor)
        name = self.metric.name
        sides = paired(*self.launches) if self.rounds else self.launches
        return Pair(name, *sides, floor=up, floor_down=down, worse=self.worse,
                    decides=self.decides, shared=self.rounds or name == "efficiency",
                    runs=self.base_runs, hosts=math.log1p(self.host_allowance),
                    jobs=self.of_jobs)  # fmt: skip

    @property
    def of_jobs(self) -> bool:
        """Whether both sides are whole jobs, read from their logs."""
        return self.base_row.strategy == self.new_row.strategy == "imported"

    def _ratio(self, difference: float | None) -> float | None:
        if difference is None or self.base is None:
            return None
        if self.metric.kind == "positive":
            return math.expm1(min(difference, 700.0))
        return difference / abs(self.base.value) if self.base.value else None

    def concluded(self, judgement: Judgement) -> RowVerdict:
        """Return the verdict that the family's judgement comes to."""
        low, high = judgement.change.interval or (None, None)
        detectable = judgement.min_detectable
        if detectable is not None and self.metric.kind == "positive":
            detectable = abs(self._ratio(self.worse * detectable) or 0.0)
        else:
            detectable = self._ratio(detectable)
        told = self.verdict(judgement.finding, basis="launches")
        told = replace(
            told,
            change=self._ratio(judgement.change.value),
            low=self._ratio(low),
            high=self._ratio(high),
            min_detectable=detectable,
            p_value=judgement.p_value,
            rank_p_value=judgement.rank_p_value,
            further_launches=judgement.further_launches,
            run_sd=self._ratio(judgement.run_sd),
        )
        reason = _reason(told, judgement, self.of_jobs)
        return replace(told, reason=reason, no_worse=told.verdict == "not worse")

    def explained(self, verdict: RowVerdict, explanation: Sequence[str]) -> RowVerdict:
        """Add the explanation where there is something to explain."""
        beyond = abs(verdict.change or 0.0) > (verdict.floor or 0.0)
        open_ = verdict.verdict in ("no change seen", "inconclusive") and beyond
        wanted = verdict.verdict in (*WORSE, "improved") or open_
        return replace(verdict, explanation=tuple(explanation) if wanted else ())


def _reason(verdict: RowVerdict, judgement: Judgement, of_jobs: bool) -> str:
    tolerance = f"tolerance of {units.rough_percent(verdict.floor or 0)}"
    if verdict.verdict == "inconclusive":
        few = min(verdict.base_launches, verdict.new_launches)
        if of_jobs:
            return (
                f"{few} log a side: how much jobs of the same code differ is not in it; import the "
                "logs of three or more jobs of each"
            )
        launches = f"{few} launch{'' if few == 1 else 'es'} a side"
        return f"{launches}: too few to show how much launches differ; use --repeats 5"
    if judgement.objection:
        return judgement.objection
    if verdict.verdict != "no change seen":
        return {
            "regressed": f"the whole interval is worse than the {tolerance}",
            "probably regressed": f"worse for sure, perhaps by less than the {tolerance}",
            "improved": f"the whole interval is better by more than the {tolerance}",
            "not worse": f"not worse by the {tolerance}; it is not clear whether better",
        }.get(verdict.verdict, f"the whole interval lies within the {tolerance}")
    seen = units.rough_percent(verdict.min_detectable) if verdict.min_detectable else "any size"
    what = "slowdown" if verdict.unit == "s" else "change for the worse"
    sentence = f"a {what} of {seen} or more would have been seen"
    if (verdict.min_detectable or 0) > HOPELESS:
        sentence = f"hardly any {what} would have been seen: add launches"
    if verdict.run_sd is not None:
        differ = (
            f"{verdict.base_runs} accepted runs differ by {units.rough_percent(verdict.run_sd)}"
        )
        return f"{sentence}; {differ} beyond their launches"
    return sentence


def exact_verdict(comparison: Comparison) -> RowVerdict:
    """Return the verdict on a number without noise: any difference counts.

    A count that is no whole number differed between launches: it is shown and does not decide.
    """
    assert comparison.base is not None and comparison.new is not None
    was, is_ = comparison.base.value, comparison.new.value
    if comparison.metric.unit == "count" and not (_whole(was) and _whole(is_)):
        reason = "the count is not the same in all launches, so it is not exact"
        return replace(comparison.verdict("inconclusive", reason), decides=False)
    if _depends_on_rank(comparison):
        reason = "the ranks do different work, and the two runs report different ranks"
        return replace(comparison.verdict("inconclusive", reason), decides=False)
    if abs(is_ - was) <= SAME * max(abs(was), abs(is_)):
        return comparison.verdict("unchanged", "the same", "exact")
    worse = (is_ > was) == (comparison.worse > 0)
    reason = "exact: any difference counts"
    return comparison.verdict("regressed" if worse else "improved", reason, "exact")


def _whole(count: float) -> bool:
    return abs(count - round(count)) < WHOLE


def _depends_on_rank(comparison: Comparison) -> bool:
    if comparison.metric.unit != "count" and comparison.metric.name not in (
        "wire_bytes",
        "payload_bytes",
    ):
        return False
    rows = (comparison.base_row, comparison.new_row)
    if all(row.pipeline is None for row in rows):
        return False
    ranks = {row.budget.rank if row.budget else None for row in rows}
    return len(ranks) > 1 or None in ranks


def single_verdict(comparison: Comparison) -> RowVerdict:
    """Return the verdict on one number per side, compared with the floor; its noise is unknown."""
    assert comparison.base is not None and comparison.new is not None
    change, floor = comparison.change, comparison.floor
    if change is None or floor is None:
        same = comparison.base.value == comparison.new.value
        reason = "both are 0" if same else "the baseline is 0: there is no ratio"
        return comparison.verdict("unchanged" if same else "inconclusive", reason, "single")
    told = f"tolerance of {units.rough_percent(floor)}"
    if abs(change) <= floor:
        return comparison.verdict("unchanged", f"within the {told}", "single")
    worse = (change > 0) == (comparison.worse > 0)
    return comparison.verdict("regressed" if worse else "improved", f"beyond the {told}", "single")


TIME_TO_TARGET = "time_to_target_s"

SAME_TARGET = 0.01
"""Targets that differ by less, as a ratio, are the same: that of a baseline is its own loss, which
differs by rounding."""


def decided_by_race(comparison: Comparison) -> RowVerdict | None:
    """Return the verdict on a time to a target that needs no interval; None: it needs one.

    A time that is not known because the target was not reached is longer than the baseline's: it
    is not missing.
    """
    if comparison.metric.name != TIME_TO_TARGET:
        return None
    was, is_ = comparison.base_row.race, comparison.new_row.race
    if was is None or is_ is None:
        return None
    if abs(is_.target_loss / was.target_loss - 1) > SAME_TARGET:
        reason = (
            f"the targets differ: a loss of {was.target_loss:.4g} and of {is_.target_loss:.4g}; "
            "give both runs the same --target-loss"
        )
        return comparison.verdict("not comparable", reason)
    if _reached(was) and not _reached(is_):
        reason = (
            f"{is_.num_seeds - is_.num_reached} of {is_.num_seeds} seeds no longer reach the target"
        )
        return comparison.verdict("regressed", reason, "single")
    if _reached(is_) and not _reached(was):
        return comparison.verdict("improved", "every seed reaches the target now", "single")
    if not _reached(is_):
        return comparison.verdict("inconclusive", "neither run reaches the target with every seed")
    return None


def _reached(race: RaceFigures) -> bool:
    return race.num_reached == race.num_seeds


TELLING = 0.1
"""Of the change: smaller parts are not named."""


def explain_efficiency(base: Row, new: Row) -> list[str]:
    """Say which parts of the step took the points that the efficiency lost, or gave them back."""
    if base.efficiency is None or new.efficiency is None:
        return []
    was, is_ = base.efficiency.value, new.efficiency.value
    points = 100 * (is_ - was)
    word = "fell" if points < 0 else "rose"
    line = (
        f"efficiency at N={new.world_size} {word} {abs(points):.1f} points, "
        f"from {100 * was:.1f} % to {100 * is_:.1f} %"
    )
    if base.budget is None or new.budget is None:
        return [f"{line}; the cause is not known, because one side has no loss budget"]
    was_s, is_s = base.budget.known_like(new.budget), new.budget.known_like(base.budget)
    lost = {
        part.name: 100
        * (was_s[part.field] / base.budget.measured_s - is_s[part.field] / new.budget.measured_s)
        for part in PARTS
        if part.field in was_s
    }
    told = _largest(lost, points)
    return [f"{line}; {told}" if told else line]


def explain_step(base: Row, new: Row) -> list[str]:
    """Say which parts of the step its additional time is in."""
    if base.step_s is None or new.step_s is None or base.budget is None or new.budget is None:
        return []
    moved = {"the same work on one process": new.budget.ideal_s - base.budget.ideal_s}
    was_s, is_s = base.budget.known_like(new.budget), new.budget.known_like(base.budget)
    for part in PARTS:
        if part.field in was_s:
            moved[part.name] = is_s[part.field] - was_s[part.field]
    total = new.step_s.value - base.step_s.value
    if not total:
        return []
    named = _same_way(moved, total)
    if not named:
        return []
    parts = ", ".join(f"{units.seconds(abs(value))} in {phrase}" for phrase, value in named)
    word = "longer" if total > 0 else "shorter"
    return [f"the step is {units.seconds(abs(total))} {word}: {parts}"]


def explain_exact(base: Row, new: Row) -> list[str]:
    """Say how the communication of a step changed."""
    lines = []
    ours, theirs = collective_counts(base), collective_counts(new)
    for kind in sorted({*ours, *theirs}):
        was, is_ = ours.get(kind, 0.0), theirs.get(kind, 0.0)
        if was != is_:
            name = kind.replace("_", "-")
            lines.append(f"{name} count per step went from {was:g} to {is_:g}")
    sent = (base.wire_bytes, new.wire_bytes)
    if sent[0] is not None and sent[1] is not None and sent[0] != sent[1]:
        before, now = units.bytes_(sent[0]), units.bytes_(sent[1])
        lines.append(f"each rank sends {now} per step, before {before}")
    return lines


def explain_settings(mismatches: Sequence[Mismatch]) -> list[str]:
    """Say what of the row's specification is different."""
    return [
        f"{m.name} went from {m.base or 'nothing'} to {m.new or 'nothing'}"
        for m in mismatches
        if m.where
    ]


def explain_baseline(base_s: float | None, new_s: float | None) -> list[str]:
    """Say that the one-process step changed, by which every efficiency is divided."""
    if not base_s or not new_s or abs(new_s / base_s - 1) < 0.01:
        return []
    word = "slower" if new_s > base_s else "faster"
    return [
        f"the plain model in one process is {abs(new_s / base_s - 1) * 100:.1f} % {word}, "
        "and efficiency is measured against it"
    ]


def _largest(moved: Mapping[str, float], total: float) -> str:
    named = _same_way(moved, total)
    if not named:
        return ""
    (first, points), *rest = named
    head = f"{agreeing(first, 'explains')} {abs(points):.1f} of them"
    return ", ".join([head, *(f"{name} {abs(value):.1f}" for name, value in rest)])


def _same_way(moved: Mapping[str, float], total: float) -> list[tuple[str, float]]:
    along = [(name, value) for name, value in moved.items() if value * total > 0]
    told = [(name, value) for name, value in along if abs(value) >= TELLING * abs(total)]
    return sorted(told, key=lambda part: -abs(part[1]))[:3]
