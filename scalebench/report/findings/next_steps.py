"""What to try first in a run: the steps that could win most, over all its suites."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scalebench import units
from scalebench.records.summary import Row
from scalebench.report.findings import ranking
from scalebench.report.findings.advice import losses
from scalebench.report.findings.findings import SuiteVerdict, headlines
from scalebench.report.words import wording
from scalebench.stats import Estimate

MOST_STEPS = 3
"""A reader acts on one; a few more show how much less the next would win."""


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
