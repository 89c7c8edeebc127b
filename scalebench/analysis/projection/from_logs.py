"""The job that a case would be at another number of ranks; so for a run that was read from logs.

A run that was read from logs, at sizes that no log is of: how its steps grow goes on.

A log has no parts of a step. So two numbers, neither negative, are fitted to the steps at each N,
by least squares of relative errors: ``T(N) = a·w(N) + c·x(N)``, w the samples of a rank and x the
doublings ``log2 N``, or what an all-reduce takes on links that are named. Each size beyond the
second is also predicted from the smaller ones: how far off that is makes the interval.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from scalebench import units
from scalebench.analysis.projection.recovery import NothingToProject, ProjectedRow, Projection
from scalebench.analysis.projection.scores import Compared, half_width, typical_error
from scalebench.analysis.rows.at_one_rank import prediction_base
from scalebench.analysis.rows.launches import Launches, Table, grouped
from scalebench.analysis.run import StoredRun
from scalebench.costmodel.links.fitted import LinkTimes, NoFit
from scalebench.records.summary import Row, Summary
from scalebench.spec import Cell
from scalebench.spec.presets import divisible
from scalebench.stats import Estimate, Variance, quantile

MESSAGE_BYTES = 25 * 2**20
"""Of the all-reduce whose time grows as what a step loses: DDP's usual bucket."""
Growth = Callable[[int], float]


def cases_at_one(run: StoredRun) -> list[Launches]:
    """Return every case but the plain ones, at N=1."""
    return [
        launches
        for (_, _, world_size), launches in grouped(run).items()
        if world_size == 1 and launches.cell.strategy.kind != "plain"
    ]


class Start(NamedTuple):
    """Where a case's projection starts.

    Attributes:
        cell: The case at N=1, where batches are scaled from.
        base: The launches that show what a rank computes and sends; None: there are none.
    """

    cell: Cell
    base: Launches | None

    @property
    def smallest(self) -> int:
        """The number of ranks of the base."""
        return 1 if self.base is None else self.base.cell.world_size

    @property
    def assumption(self) -> str:
        """What that takes for granted, in words; empty: nothing."""
        return f"started from N={self.smallest}, not from N=1" if self.smallest > 1 else ""

    def cell_at(self, world_size: int) -> Cell | str:
        """Return the case at another number of ranks; or why it is not projected."""
        if world_size <= self.smallest > 1:
            return f"the projection starts from N={self.smallest}: N=1 does not show what is sent"
        return cell_at(self.cell, world_size)


def start_of(one: Launches, table: Table) -> Start:
    """Return where a case's projection starts: N=1, whose own launch may have failed, or later."""
    base = prediction_base(one, table)
    if base is None or base.cell.world_size == 1:
        return Start(one.cell, base)
    batch = base.cell.rank_batch if base.cell.scaling == "weak" else base.cell.global_batch
    changes = {"world_size": 1, "global_batch": batch, "rank_batch": batch}
    return Start(base.cell.model_copy(update=changes), base)


def cell_at(cell: Cell, world_size: int) -> Cell | str:
    """Return a case's cell at another number of ranks; or why there is no such job.

    Where the batch cannot be divided, the cell is that of the rank with the most samples.
    """
    batch, shards = cell.rank_batch, cell.strategy.num_shards(world_size)
    whole = batch * world_size if cell.scaling == "weak" else batch
    if shards > whole:
        return (
            f"strong scaling: a global batch of {batch} has no sample for each of "
            f"{shards} ranks; measure with --batch-size {shards} or more, or with --scaling weak"
        )
    cannot = cell.strategy.why_not(cell.device, world_size)
    cannot = cannot or cell.strategy.why_not_divided(divisible(cell.workload), world_size)
    if cannot is not None:
        return cannot
    changes = {"world_size": world_size, "global_batch": whole, "rank_batch": -(-whole // shards)}
    return cell.model_copy(update=changes)


def project_logs(
    run: StoredRun,
    summary: Summary,
    world_sizes: Sequence[int],
    links: LinkTimes | None = None,
    links_note: str = "",
) -> Projection:
    """Project a run that was read from logs.

    ``links``: whose all-reduce grows as what a step loses; None: the same with each doubling.

    Raises:
        NothingToProject: The logs do not support it; the text says why.
    """
    rows = [row for row in summary.rows if row.status == "ok"]
    reasons = [
        next(filter(None, (row.unavailable.get(n) for n in ("step_s", "efficiency"))), None)
        for row in rows
    ]
    why = next(filter(None, reasons), None)
    if why is None and len(rows) < 2:
        why = "the logs are of one N, and growth needs a second one"
    if why is None and not all(row.global_batch for row in rows):
        why = "the batch of a step is not known: import with --batch-per-gpu"
    if why is None and len({(row.workload, row.num_parameters) for row in rows}) > 1:
        why = "the logs are of several models"
    if why is not None:
        raise NothingToProject(f"{run.paths.root} supports no projection: {why}.")

    def growth(world_size: int) -> float:
        if links is None:
            return math.log2(world_size)
        return links("all_reduce", world_size, MESSAGE_BYTES).time_s

    try:
        fitted = _fitted(rows, growth)
        errors = [
            math.log(_step_s(_fitted(rows[:i], growth), rows[i], growth) / _value(rows[i]))
            for i in range(2, len(rows))
        ]
    except NoFit as reason:
        raise NothingToProject(f"{run.paths.root} supports no projection: {reason}.") from reason
    compared = [Compared(error, Variance(0.0, math.inf)) for error in errors]
    made = [_projected(rows, n, fitted, growth, compared) for n in world_sizes]
    grows = (
        f"what a step loses grows as an all-reduce of {units.bytes_(MESSAGE_BYTES)} on {links_note}"
        if links is not None
        else "a step loses the same time with every doubling of N"
    )
    sizes = ", ".join(str(row.world_size) for row in rows)
    base = rows[0].world_size
    return Projection(
        run_id=summary.run_id,
        assumptions=(
            f"fitted to the logs at N = {sizes}: {grows}",
            *([f"efficiency relative to N = {base}"] if base > 1 else []),
            *dict.fromkeys(_batch_note(rows) for row in made if row.step_s),
        ),
        typical_error=typical_error(compared),
        num_scored=len(compared),
        rows=tuple(made),
    )


def _value(row: Row) -> float:
    assert row.step_s is not None, "rows without a step are refused"
    return row.step_s.value


def _fitted(rows: Sequence[Row], growth: Growth) -> tuple[float, float]:
    """Return seconds of a sample on a rank, and of a unit of growth."""
    steps = np.array([_value(row) for row in rows])
    work = np.array([row.global_batch / row.world_size for row in rows])
    grown = np.array([growth(row.world_size) for row in rows])
    scale = max(float(grown.max()), 1e-12)
    (each, more), _ = nnls(np.column_stack((work, grown / scale)) / steps[:, None], 1 + 0 * steps)
    return float(each), float(more) / scale


def _step_s(fitted: tuple[float, float], at: Row, growth: Growth) -> float:
    return fitted[0] * at.global_batch / at.world_size + fitted[1] * growth(at.world_size)


def _batch_at(rows: Sequence[Row], world_size: int) -> int:
    last = rows[-1]
    return last.rank_batch * world_size if last.scaling == "weak" else last.global_batch


def _batch_note(rows: Sequence[Row]) -> str:
    if rows[0].scaling in ("weak", "strong"):
        return f"{rows[0].scaling} scaling"
    return f"a batch of {rows[-1].global_batch} samples, as at N = {rows[-1].world_size}"


def _projected(
    rows: Sequence[Row],
    world_size: int,
    fitted: tuple[float, float],
    growth: Growth,
    compared: Sequence[Compared],
) -> ProjectedRow:
    first, last = rows[0], rows[-1]
    batch = _batch_at(rows, world_size)
    place = {"suite": last.suite, "case": last.case, "world_size": world_size}
    place |= {"global_batch": batch, "rank_batch": batch // world_size}
    if batch < world_size and last.rank_batch:
        return ProjectedRow(**place, reason=f"a batch of {batch} has no sample for each rank")
    there = last.model_copy(update=place)
    try:
        step_s = _step_s(fitted, there, growth)
    except NoFit as reason:
        return ProjectedRow(**place, reason=str(reason))
    ideal_s = _value(first) * batch / world_size * first.world_size / first.global_batch
    ends = [abs(math.log2(world_size / row.world_size)) for row in (first, last)]
    beyond = 0.0 if first.world_size <= world_size <= last.world_size else min(ends)
    reach = half_width(_noise(last.step_s), compared, max(1.0, beyond))
    ends_s: dict[str, float | str] = {
        "interval_reason": "a third N is needed to see how far off the growth is"
    }
    if reach is not None:
        ends_s = {"low_s": step_s * math.exp(-reach), "high_s": step_s * math.exp(reach)}
    return ProjectedRow(
        **place,
        step_s=step_s,
        throughput=batch / step_s,
        efficiency=ideal_s / step_s,
        ideal_s=ideal_s,
        **ends_s,
    )


def _noise(step: Estimate | None) -> Variance:
    """Return the variance of a measured step's logarithm; 0 where it has no interval."""
    if step is None or not step.low or not step.high:
        return Variance(0.0, math.inf)
    dof = step.n - 1 or math.inf
    return Variance((math.log(step.high / step.low) / 2 / float(quantile(dof))) ** 2, dof)
