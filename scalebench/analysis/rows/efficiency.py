"""Ratios between the rows of a run: speedup, efficiency, and what sharing a machine costs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from scalebench.analysis.rows.launches import (
    Launches,
    Table,
    grouped,
    independent,
    independent_case,
)
from scalebench.analysis.run import StoredRun
from scalebench.analysis.timing.paired_blocks import interleaved_variances
from scalebench.analysis.timing.round_noise import RoundNoise
from scalebench.analysis.timing.steps import launch_step_s, own_clean_steps
from scalebench.records.summary import RowKey
from scalebench.spec import Script
from scalebench.stats import CONFIDENCE, Estimate

CONFIDENCE_OF_LOOKS = 0.97
"""Of the intervals of a run whose rounds are added until they are narrow: they then hold 95 %.

Who looks after every round and stops when an interval is narrow enough stops more often where the
rounds happen to agree, and such an interval holds less often than it says: 91 % of the time in
place of 95 % where a suite has one row and its baseline. Intervals with a confidence of 97 % hold
94 % and more then, at whatever width one stops (``benchmarks/block_coverage.py``, up to eight
rounds). They are the ones to look at and the ones to report.
"""


@dataclass(frozen=True)
class Ratios:
    """Ratios between rows of a run, with what all launches of a suite know of their noise.

    Attributes:
        independent: Those of independent plain ranks.
        noise: Suite → what its launches know of their noise together.
        confidence: With which intervals are taken to hold 95 %; more where rounds were added until
            they were narrow.
    """

    table: Table
    independent: Table
    noise: Mapping[str, RoundNoise]
    confidence: float = CONFIDENCE

    @classmethod
    def of(cls, run: StoredRun) -> "Ratios":
        """Work out the noise of launches, those of a suite together."""
        table, others = grouped(run), independent(run)
        timed = {**table, **others}
        noise: dict[str, RoundNoise] = {}
        for suite in dict.fromkeys(key[0] for key in timed):
            rows = {key: row for key, row in timed.items() if key[0] == suite}
            logs = {key: row.log_steps for key, row in rows.items()}
            in_turns = interleaved_variances({key: row.blocks for key, row in rows.items()})
            within = {key: in_turns.get(key, row.within) for key, row in rows.items()}
            noise[suite] = RoundNoise.of(logs, within)
        looks = run.info.spec.precision is not None
        return cls(table, others, noise, CONFIDENCE_OF_LOOKS if looks else CONFIDENCE)

    def speedup(self, row: Launches, base: Launches | None) -> Estimate | None:
        """Estimate ``X_N / X_1``, X the samples per second of the job; None: not known."""
        return self._throughput(row, base, 1)

    def efficiency(self, row: Launches, base: Launches | None) -> Estimate | None:
        """Estimate ``X_N / (N · X_1)``; None: there is no round in which both succeeded."""
        return self._throughput(row, base, row.cell.world_size)

    def step_ratio(self, row: Launches, base: Launches, comparisons: int) -> Estimate | None:
        """Estimate a row's step over another's; None: there is no round in which both succeeded.

        ``comparisons``: how many such intervals are to hold together (Bonferroni).
        """
        confidence = 1 - (1 - self.confidence) / comparisons
        return self._steps(row, base, 1, confidence)

    def efficiencies(self) -> Iterator[tuple[Launches, Launches, Estimate]]:
        """Yield every row whose efficiency has an estimate, its baseline, and the estimate."""
        for row in self.table.values():
            base = plain_baseline(row, self.table)
            found = self.efficiency(row, base)
            if base is not None and found is not None and row is not base:
                yield row, base, found

    def smaller_batch(self, row: Launches, base: Launches) -> Estimate | None:
        """Estimate how much longer plain training takes for each sample of a rank's batch.

        Over each sample of the baseline's batch, both on one rank; 1: no longer. None: it was not
        measured.
        """
        if row.cell.rank_batch == base.cell.rank_batch:
            return Estimate(value=1.0, low=1.0, high=1.0, n=max(1, len(base.good)))
        alone = self._independent(row, base, 1)
        if alone is None:
            return None
        return self._steps(alone, base, base.cell.rank_batch / row.cell.rank_batch)

    def contention(self, row: Launches, base: Launches) -> Estimate | None:
        """Estimate how much longer a plain step takes where N ranks train at once.

        Over the same step on one rank alone, nothing being sent; 1: no longer. None: it was not
        measured.
        """
        crowd, alone = self._crowd_and_alone(row, base)
        return None if crowd is None or alone is None else self._steps(crowd, alone, 1)

    def slowdowns(self, row: Launches, base: Launches) -> list[float] | None:
        """Return the same of each rank, medians over the launches; None: it was not measured."""
        crowd, alone = self._crowd_and_alone(row, base)
        if crowd is None or alone is None or not crowd.good or not alone.good:
            return None
        of_ranks = [
            [own_clean_steps(rank)[0].mean() for rank in one.ranks] for one in crowd.good.values()
        ]
        alone_s = np.median([launch_step_s(one) for one in alone.good.values()])
        return list(np.median(of_ranks, axis=0) / alone_s)

    def _crowd_and_alone(
        self, row: Launches, base: Launches
    ) -> tuple[Launches | None, Launches | None]:
        """Return plain ranks on the row's batch: as many as the row has at once, and one."""
        same_batch = row.cell.rank_batch == base.cell.rank_batch
        alone = base if same_batch else self._independent(row, base, 1)
        return self._independent(row, base, row.cell.world_size), alone

    def has_independent(self, row: Launches, base: Launches) -> bool:
        """Tell whether independent plain ranks were to be launched for a row."""
        return self._independent(row, base, row.cell.world_size) is not None

    def _independent(self, row: Launches, base: Launches, num_ranks: int) -> Launches | None:
        name = independent_case(base.cell.case, row.cell.rank_batch)
        return self.independent.get((row.cell.suite, name, num_ranks))

    def _throughput(self, row: Launches, base: Launches | None, ranks: int) -> Estimate | None:
        if base is None or calls_per_step(row) != calls_per_step(base):
            return None
        return self._steps(base, row, row.work / base.work / ranks)

    def _steps(
        self, above: Launches, below: Launches, factor: float, confidence: float | None = None
    ) -> Estimate | None:
        """Estimate ``factor · step of above / step of below`` over the rounds that have both."""
        noise = self.noise[below.cell.suite]
        return noise.ratio(_key(below), _key(above), factor, confidence or self.confidence)


def _key(row: Launches) -> RowKey:
    cell = row.cell
    if cell.purpose != "independent":
        return cell.row_key
    return (cell.suite, independent_case(cell.case, cell.rank_batch), cell.world_size)


def calls_per_step(row: Launches) -> set[int]:
    """Return how many calls of optimizers made a step of a script, in any of a row's launches."""
    found = (result.ranks[0].facts.get("calls_per_step") for result in row.good.values())
    return {calls for calls in found if calls is not None}


def plain_baseline(row: Launches, table: Table) -> Launches | None:
    """Return the plain model's launches, with the same loader if there are such; or the script's.

    A user's script is measured against itself on one rank.
    """
    if row.no_ratio:
        return None
    if isinstance(row.cell.strategy, Script):
        return table.get((row.cell.suite, row.cell.case, 1))
    wanted = row.cell.strategy.baseline()
    for loader in (row.cell.loader, None):
        for other in table.values():
            cell = other.cell
            if (
                cell.suite == row.cell.suite
                and cell.loader == loader
                and cell.strategy == wanted
                and cell.workload == row.cell.workload
                and cell.reference_batch == row.cell.reference_batch
            ):
                return other
    return None
