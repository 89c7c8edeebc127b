"""The launches of each row, what its analysis rests on, and ratios between rows."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from scalebench.analysis import counted_batch
from scalebench.analysis.attribution import LaunchAttribution, attribute
from scalebench.analysis.rows.round_noise import Block, RoundNoise, interleaved_variances
from scalebench.analysis.run import StoredRun
from scalebench.analysis.steps import (
    launch_step_s,
    launch_throughput,
    mean_step,
    own_clean_steps,
    steps_of_block,
)
from scalebench.costmodel.links.fitted import LinkModel
from scalebench.grouping import by_key
from scalebench.records.run import CellResult
from scalebench.records.summary import Row, RowKey
from scalebench.spec import Cell, Script
from scalebench.stats import CONFIDENCE, Estimate, estimate_over_launches

CONFIDENCE_OF_LOOKS = 0.97
"""Of the intervals of a run whose rounds are added until they are narrow: they then hold 95 %.

Who looks after every round and stops when an interval is narrow enough stops more often where the
rounds happen to agree, and such an interval holds less often than it says: 91 % of the time in
place of 95 % where a suite has one row and its baseline. Intervals with a confidence of 97 % hold
94 % and more then, at whatever width one stops (``benchmarks/block_coverage.py``, up to eight
rounds). They are the ones to look at and the ones to report.
"""
T = TypeVar("T")

NO_LAUNCH = "no launch of this row succeeded"

Fields = dict[str, Any]
"""Name of a row's field → its value, or `Unavailable`.

``stamps`` is the list of what has to be known before the row is trusted; those of all subjects are
joined. Of two subjects that say a field the later one holds.
"""


@dataclass(frozen=True)
class Launches:
    """All cells of one row, and what became of those that were run.

    Attributes:
        cell: The row's cell (of its first launch).
        inspection: Result of the launch that checked correctness, if it was run.
        measured: Repeat → result, of the launches that were run.
        num_planned: Measuring launches that the plan holds.
        shards: Launches of one rank's shard alone that succeeded.
        checkpoints: Launches that saved and restored, whatever became of them.
        growth: How the work of a user's script grows with N; None: it has no launch that succeeded,
            or it is no script.
    """

    cell: Cell
    inspection: CellResult | None = None
    measured: Mapping[int, CellResult] = field(default_factory=dict)
    num_planned: int = 0
    shards: tuple[CellResult, ...] = ()
    checkpoints: tuple[CellResult, ...] = ()
    growth: counted_batch.Growth | None = None

    @property
    def no_ratio(self) -> str | None:
        """Why this row is compared with no other number of ranks; None: it may be."""
        if self.growth is None or self.cell.world_size == 1:
            return None
        return self.growth.why_unknown

    @cached_property
    def work(self) -> float:
        """What a step of the job does: samples, or what stands for them."""
        found = [counted_batch.work_of_step(result) for result in self.good.values()]
        return float(np.mean(found)) if found else float(self.cell.global_batch)

    @cached_property
    def good(self) -> dict[int, CellResult]:
        """The measuring launches that succeeded."""
        return {r: result for r, result in self.measured.items() if result.status == "ok"}

    @cached_property
    def log_steps(self) -> dict[int, float]:
        """Repeat → logarithm of the step time, of the launches that succeeded."""
        return {repeat: math.log(launch_step_s(result)) for repeat, result in self.good.items()}

    @cached_property
    def step_s(self) -> Estimate | None:
        """Seconds per step; None: no launch succeeded."""
        steps = [launch_step_s(result) for result in self.good.values()]
        return estimate_over_launches(steps) if steps else None

    @cached_property
    def counted(self) -> bool:
        """Whether the samples of a step are known."""
        known: Sequence[CellResult | None] = list(self.good.values()) or (None,)
        return all(counted_batch.knows_samples(self.cell, result) for result in known)

    @cached_property
    def throughput(self) -> Estimate | None:
        """Samples per second of the job; steps per second where a script's samples are unknown."""
        each = [
            launch_throughput(r) if self.counted else 1 / launch_step_s(r)
            for r in self.good.values()
        ]
        return estimate_over_launches(each) if each else None

    @cached_property
    def within(self) -> float:
        """Variance of the logarithm of a launch's step time as its own steps tell it."""
        found = [mean_step(result).variance for result in self.good.values()]
        return float(np.mean(found)) if found else 0.0

    @cached_property
    def blocks(self) -> dict[int, list[Block]]:
        """Repeat → clean blocks, of the launches that took turns with those of other rows."""
        return {n: clean_blocks(result) for n, result in self.good.items() if result.shared_with}

    @cached_property
    def attributed(self) -> dict[int, LaunchAttribution]:
        """The good launches that can be attributed."""
        found = {repeat: attribute(result) for repeat, result in self.good.items()}
        return {repeat: launch for repeat, launch in found.items() if launch is not None}


Table = Mapping[tuple[str, str, int], Launches]
"""(suite, case, world size) → launches."""


def grouped(run: StoredRun) -> Table:
    """Return the launches of every row, in the order of the plan."""
    cells = by_key((cell.row_key, cell) for cell in run.info.plan if cell.purpose == "measure")
    results = by_key((one.cell.row_key, one) for one in run.results.values())

    def of(key: tuple[str, str, int], *purposes: str) -> tuple[CellResult, ...]:
        return tuple(one for one in results.get(key, ()) if one.cell.purpose in purposes)

    table = {
        key: replace(
            _launches(of_row, next(reversed(of(key, "inspect")), None), run),
            shards=tuple(one for one in of(key, "shard") if one.status == "ok"),
            checkpoints=of(key, "save", "restore", "fail"),
        )
        for key, of_row in cells.items()
    }
    return {key: _as_counted(row, table) for key, row in table.items()}


def _as_counted(row: Launches, table: Table) -> Launches:
    """Return a row of a script with the scaling that its launches show, and its share of the work.

    Where samples are not known, the work of a rank takes the place of the batch, so that every
    ratio is of the same work.
    """
    case, n = row.cell.row_key[:2], row.cell.world_size
    of_case = [
        next(iter(r.good.values())) for r in table.values() if r.good and r.cell.row_key[:2] == case
    ]
    if not isinstance(row.cell.strategy, Script):
        return row
    growth = counted_batch.growth_of(row.cell, of_case)
    changes: dict[str, Any] = {} if growth.scaling == "unknown" else {"scaling": growth.scaling}
    if n in growth.rank_work:
        work = growth.rank_work[n]
        changes |= {"rank_batch": work, "global_batch": work * n}
    measured = {
        repeat: result.model_copy(update={"cell": result.cell.model_copy(update=changes)})
        for repeat, result in row.measured.items()
    }
    cell = row.cell.model_copy(update=changes)
    return replace(row, cell=cell, measured=measured, growth=growth)


def clean_blocks(result: CellResult) -> list[Block]:
    """Return the clean blocks of a launch; of independent ranks the mean over them."""
    jobs = [[rank] for rank in result.ranks]
    if result.cell.purpose != "independent":
        jobs = [result.ranks]
    return [
        Block(
            block.start_ns,
            block.end_ns,
            float(np.mean([np.mean(steps_of_block(job, block)) for job in jobs])),
        )
        for block in result.ranks[0].blocks
        if block.phase == "clean"
        and block.count > 1
        and block.start_ns is not None
        and block.end_ns is not None
        and block.end_ns > block.start_ns
    ]


def independent(run: StoredRun) -> Table:
    """Return the launches of plain ranks that know nothing of one another; see `Cell.purpose`.

    Their case is called `independent_case`.
    """
    cells = by_key(
        ((cell.suite, independent_case(cell.case, cell.rank_batch), cell.world_size), cell)
        for cell in run.info.plan
        if cell.purpose == "independent"
    )
    return {
        key: Launches(
            cell=launches[0],
            measured={c.repeat: run.results[c.id] for c in launches if c.id in run.results},
            num_planned=len(launches),
        )
        for key, launches in cells.items()
    }


def independent_case(case: str, rank_batch: int) -> str:
    """Return the name for independent ranks of a plain case, each on ``rank_batch`` samples."""
    return f"{case}, {rank_batch} samples each"


def _launches(cells: Sequence[Cell], inspection: CellResult | None, run: StoredRun) -> Launches:
    """Return the launches of a row; a script's have the batch that its ranks counted."""
    results = {c.repeat: run.results[c.id] for c in cells if c.id in run.results}
    measured = {
        repeat: counted_batch.with_counted_batch(result) for repeat, result in results.items()
    }
    counted = next((r.cell for r in measured.values() if r.status == "ok"), cells[0])
    sizes = {"global_batch", "rank_batch", "backend"}
    cell = cells[0].model_copy(update=counted.model_dump(include=sizes))
    return Launches(cell, inspection, measured, num_planned=len(cells))


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


class Unavailable(Exception):
    """There is no such value; the text says why. As a field's value: the field is null."""


def known(value: T | None, why: str | None) -> T | Unavailable:
    """Return a field's value; None: it is null for this reason."""
    return Unavailable(why) if value is None else value


def null(names: Iterable[str], why: object) -> Fields:
    """Return fields that are all null for one reason."""
    return dict.fromkeys(names, Unavailable(str(why)))


def found_by(find: Callable[..., T], *arguments: Any) -> T | Unavailable:
    """Return what a function finds, or why it raises `Unavailable`."""
    try:
        return find(*arguments)
    except Unavailable as why:
        return why


def union_of(subjects: Iterable[Fields]) -> dict[str, Any]:
    """Return the fields of a row, with ``stamps`` and ``unavailable``, from what subjects say."""
    joined: Fields = {}
    stamps: list[str] = []
    for fields in subjects:
        stamps += fields.get("stamps", [])
        joined |= fields
    why = {name: str(value) for name, value in joined.items() if isinstance(value, Unavailable)}
    return {**joined, **dict.fromkeys(why), "stamps": stamps, "unavailable": why}


def with_fields(row: Row, fields: Fields) -> Row:
    """Return a row with what one more subject says of it."""
    update = union_of([fields])
    reasons = {name: why for name, why in row.unavailable.items() if name not in fields}
    update["stamps"] = row.stamps + update["stamps"]
    update["unavailable"] = reasons | update["unavailable"]
    return row.model_copy(update=update)


@dataclass(frozen=True)
class Context:
    """A run as its rows see it.

    Attributes:
        link: What its operations take, or why no link was calibrated.
    """

    status: str
    ratios: Ratios
    link: LinkModel | str

    @classmethod
    def of(cls, run: StoredRun) -> "Context":
        """Return the context of a run's rows, however far it came."""
        return cls(run.info.status, Ratios.of(run), cls.link_of(run))

    @staticmethod
    def link_of(run: StoredRun) -> LinkModel | str:
        """Return the run's own link, with what ranks played over it; or why there is none."""
        if run.link is None:
            return run.link_unavailable
        return LinkModel(run.link.fits, rehearsals=run.link.played)

    @property
    def table(self) -> Table:
        """The launches of every row."""
        return self.ratios.table

    def launches(self, row: Row) -> Launches:
        """Return the launches of a row."""
        return self.table[row.suite, row.case, row.world_size]

    def baseline(self, row: Launches) -> Launches | None:
        """Return what a row's efficiency is against; see `plain_baseline`."""
        return plain_baseline(row, self.table)

    def at_one_rank(self, row: Launches) -> Launches | None:
        """Return the row's own case at N=1; None: there is none that it may be compared with."""
        return None if row.no_ratio else self.table.get((row.cell.suite, row.cell.case, 1))


Subject = Callable[[Launches, Context], Fields]
"""Says its fields of a row from the row's launches and the run's context."""

AmongRows = Callable[[Row, Sequence[Row], Context], Fields]
"""Says its fields of a row that is worked out, from the run's other rows as well."""
