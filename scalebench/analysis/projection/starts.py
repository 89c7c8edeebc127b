"""Where a projection starts, and the job that a case would be at another number of ranks."""

from typing import NamedTuple

from scalebench.analysis.rows.at_one_rank import prediction_base
from scalebench.analysis.rows.launches import Launches, Table, grouped
from scalebench.analysis.run import StoredRun
from scalebench.spec import Cell
from scalebench.spec.presets import divisible


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
