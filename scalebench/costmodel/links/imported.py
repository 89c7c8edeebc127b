"""Points of logs: what of a log can be fitted, and which tables are kept apart."""

from collections.abc import Iterator, Mapping, Sequence

from scalebench import units
from scalebench.costmodel.links.fitting import SweepKey, fit_links, key_of
from scalebench.costmodel.links.nccl_tests import Log
from scalebench.costmodel.links.profile import CalibratedPoint
from scalebench.grouping import by_key

NOISE = 1.1
"""Factor by which the same operation differs from one launch to the next without a cause."""


def points_of_log(log: Log) -> tuple[list[CalibratedPoint], list[str]]:
    """Return the points of a log of nccl-tests that can be fitted, and why others cannot."""
    points, notices = [], list(log.notices)
    for table in log.tables:
        if table.world_size is None:
            continue
        usable = [p for p in table.points if p.time_s and p.size_bytes]
        if len(usable) < len(table.points):
            left_out = len(table.points) - len(usable)
            notices.append(f"{log.path}: {table.op}: {left_out} points without size or time")
        place = f"{log.path}, {table.points[0].place}"
        points += [
            CalibratedPoint(
                op=table.op,
                dtype=point.dtype,
                world_size=table.world_size,
                size_bytes=point.size_bytes,
                time_s=point.time_s or 0.0,
                in_place=point.in_place,
                num_wrong=point.num_wrong,
                failed_check=point.failed_check,
                link=place,
                redop=point.redop,
                source=f"{log.path}, {point.place}",
            )
            for point in usable
        ]
    return points, notices


def by_table(points: Sequence[CalibratedPoint]) -> tuple[list[CalibratedPoint], list[str]]:
    """Keep tables of the same kind apart: each is fitted by itself, and differences are said.

    Args:
        points: Of logs, each with its table for its link.

    Returns:
        The points, without link where only one table is of their kind; and what differs between
        tables at equal sizes by more than both scatter.
    """
    tables: dict[SweepKey, dict[str, list[CalibratedPoint]]] = {}
    for point in points:
        of_kind = tables.setdefault(key_of(point)._replace(link=""), {})
        of_kind.setdefault(point.link, []).append(point)
    short = {point.link: _place(point.link) for point in points}
    are_clear = len(set(short.values())) == len(short)
    kept = []
    for point in points:
        is_alone = len(tables[key_of(point)._replace(link="")]) == 1
        link = "" if is_alone else short[point.link] if are_clear else point.link
        kept.append(point.model_copy(update={"link": link}))
    return kept, [said for key, of_kind in tables.items() for said in _differences(key, of_kind)]


def _differences(key: SweepKey, tables: Mapping[str, Sequence[CalibratedPoint]]) -> Iterator[str]:
    """Say where times of equal sizes differ most, within a table and between tables."""
    fits = {fit.link: fit for fit in fit_links(p for of in tables.values() for p in of)[0]}

    def is_expected(point: CalibratedPoint, other: CalibratedPoint) -> bool:
        """Whether a time is within the other table's noise."""
        within = NOISE
        if (fit := fits.get(other.link)) and (low := fit.predict(other.size_bytes).low_s):
            within = max(within, (fit.predict(other.size_bytes).time_s / low) ** 2**0.5)
        return 1 / within <= point.time_s / other.time_s <= within

    by_size = by_key((p.size_bytes, p) for of in tables.values() for p in of if not p.is_wrong)
    pairs = (sorted(of, key=lambda p: p.time_s)[:: max(len(of) - 1, 1)] for of in by_size.values())
    far = [
        pair
        for pair in pairs
        if len(pair) == 2 and not is_expected(*pair) and not is_expected(*pair[::-1])
    ]
    if far:
        fast, slow = max(far, key=lambda pair: pair[1].time_s / pair[0].time_s)
        times = "; ".join(f"{units.seconds(p.time_s)} at {_place(p.source)}" for p in (fast, slow))
        yield (
            f"{key}: times of equal sizes differ by up to a factor of "
            f"{units.significant(slow.time_s / fast.time_s, digits=2)} "
            f"({units.bytes_(fast.size_bytes)}: {times}), "
            "more than their noise: another link, setting or load"
            + ("; each table has its own fit, predictions use the first" * (len(tables) > 1))
        )


def _place(source: str) -> str:
    """Return a file's name and the place in it, without folders."""
    return source.rpartition("/")[2]
