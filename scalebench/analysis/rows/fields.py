"""What the analysis of a row says and rests on: its fields, and the run's context."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scalebench.analysis.rows.efficiency import Ratios, plain_baseline
from scalebench.analysis.rows.launches import Launches, Table
from scalebench.analysis.run import StoredRun
from scalebench.costmodel.links.times import LinkModel
from scalebench.records.summary import Row

T = TypeVar("T")

NO_LAUNCH = "no launch of this row succeeded"

Fields = dict[str, Any]
"""Name of a row's field → its value, or `Unavailable`.

``stamps`` is the list of what has to be known before the row is trusted; those of all subjects are
joined. Of two subjects that say a field the later one holds.
"""


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
