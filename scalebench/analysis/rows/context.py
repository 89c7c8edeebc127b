"""What a row's fields follow from besides its own launches: the other rows and the link."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalebench.analysis.rows.efficiency import Ratios, plain_baseline
from scalebench.analysis.rows.fields import Fields
from scalebench.analysis.rows.launches import Launches, Table
from scalebench.analysis.run import StoredRun
from scalebench.costmodel.links.times import LinkModel
from scalebench.records.summary import Row


@dataclass(frozen=True)
class Context:
    """A run as its rows see it.

    Attributes:
        status: Of the run.
        ratios: Between its rows.
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
