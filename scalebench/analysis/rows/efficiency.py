"""Speedup and efficiency of every row of a run, each against a row that it is measured against."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scalebench.analysis.round_noise import launch_variances, ratio_over_rounds
from scalebench.analysis.rows.launches import Launches, Table
from scalebench.records.summary import RowKey
from scalebench.stats import Estimate, Variance


@dataclass(frozen=True)
class Ratios:
    """Ratios between rows of a run, with what all rows of a suite know of their noise.

    Attributes:
        table: The launches of every row.
        noise: How much the launches of a row differ beyond what their rounds share; rows that are
            known.
    """

    table: Table
    noise: Mapping[RowKey, Variance]

    @classmethod
    def of(cls, table: Table) -> "Ratios":
        """Work out the noise of launches, the rows of a suite together."""
        noise: dict[RowKey, Variance] = {}
        for suite in dict.fromkeys(key[0] for key in table):
            rows = {key: row for key, row in table.items() if key[0] == suite}
            logs = {key: row.log_steps for key, row in rows.items()}
            noise |= launch_variances(logs, {key: row.within for key, row in rows.items()})
        return cls(table, noise)

    def speedup(self, row: Launches, base: Launches | None) -> Estimate | None:
        """Estimate ``X_N / X_1``, X the samples per second of the job; None: not known."""
        return self._ratio(row, base, 1)

    def efficiency(self, row: Launches, base: Launches | None) -> Estimate | None:
        """Estimate ``X_N / (N · X_1)``; None: there is no round in which both succeeded."""
        return self._ratio(row, base, row.cell.world_size)

    def efficiencies(self) -> Iterator[tuple[Launches, Launches, Estimate]]:
        """Yield every row whose efficiency has an estimate, its baseline, and the estimate."""
        for row in self.table.values():
            base = plain_baseline(row, self.table)
            found = self.efficiency(row, base)
            if base is not None and found is not None and row is not base:
                yield row, base, found

    def _ratio(self, row: Launches, base: Launches | None, ranks: int) -> Estimate | None:
        if base is None:
            return None
        factor = row.cell.global_batch / base.cell.global_batch / ranks
        keys = (row.cell.row_key, base.cell.row_key)
        known = keys[0] != keys[1] and all(key in self.noise for key in keys)
        variances = (self.noise[keys[0]], self.noise[keys[1]]) if known else None
        return ratio_over_rounds(row.log_steps, base.log_steps, variances, factor)


def plain_baseline(row: Launches, table: Table) -> Launches | None:
    """Return the plain model's launches, with the same loader if there are such."""
    wanted = row.cell.strategy.baseline()
    for loader in (row.cell.loader, None):
        for other in table.values():
            cell = other.cell
            if (
                cell.strategy == wanted
                and cell.loader == loader
                and cell.suite == row.cell.suite
                and cell.workload == row.cell.workload
                and cell.reference_batch == row.cell.reference_batch
            ):
                return other
    return None
