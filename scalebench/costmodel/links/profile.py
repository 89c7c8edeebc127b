"""A link profile: a calibration's file that is read again, or made of logs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field, FiniteFloat

from scalebench import units
from scalebench.costmodel.links.fitted import LinkFit, LinkPoint
from scalebench.costmodel.links.fitting import SweepKey, fit_link, fit_links, group_points, key_of
from scalebench.costmodel.links.laws import usual_laws
from scalebench.costmodel.links.nccl_tests import Log
from scalebench.costmodel.links.topology import LINKS, Link
from scalebench.errors import UsageError, unknown_name
from scalebench.grouping import by_key
from scalebench.records.measured.probes import RehearsedPipeline, RehearsedStep, TimedTransfer
from scalebench.spec.base import BACKEND, Record
from scalebench.stats import median_with_noise

FORMAT = "scalebench.link-profile/1"
WELL_USED = 0.75
"""NCCL's large all-reduces reach about four fifths of NVLink and nine tenths of InfiniBand."""
NOISE = 1.1
"""Factor by which the same operation differs from one launch to the next without a cause."""


class CalibratedPoint(LinkPoint):
    """A point with what nccl-tests prints next to it.

    Attributes:
        redop: ``sum`` where the operation reduces.
        p99_s: 99th percentile of the single operations; null: they were not timed one by one.
        num_elements: Elements compared with the known result; null: not known.
        source: ``measured`` here, or the file that it was read from.
    """

    redop: str | None = None
    p99_s: FiniteFloat | None = Field(default=None, gt=0)
    num_elements: int | None = None
    source: str = "measured"


class LinkProfile(Record):
    """Points, their fits, and what the fits say together.

    Attributes:
        machine: What has to agree for the profile to hold; empty: it was read from logs.
        refused: Why sweeps were not fitted.
        notices: What a reader has to know.
        cut_short: What the time limit of the calibration left out.
        rehearsals: Pipelines that were played without their models.
        rehearsed_steps: Steps of other strategies that were.
    """

    format: str = FORMAT
    created: str
    version: str
    machine: dict[str, Any] = Field(default_factory=dict)
    device: str
    backend: str
    link: str = ""
    points: tuple[CalibratedPoint, ...]
    fits: tuple[LinkFit, ...]
    refused: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    cut_short: tuple[str, ...] = ()
    rehearsals: tuple[RehearsedPipeline, ...] = ()
    rehearsed_steps: tuple[RehearsedStep, ...] = ()

    @property
    def played(self) -> tuple[RehearsedPipeline | RehearsedStep, ...]:
        """Everything that was played without its model."""
        return (*self.rehearsals, *self.rehearsed_steps)

    @property
    def num_wrong(self) -> int:
        """Elements of results that were wrong, where they were counted."""
        return sum(point.num_wrong or 0 for point in self.points)


REDUCING = ("all_reduce", "reduce_scatter", "reduce")


def point_of(timed: TimedTransfer, world_size: int, link: str) -> CalibratedPoint:
    """Return the point of a measured transfer: the median operation, and the 99th percentile.

    Where operations were not timed one by one, the median timing, and no percentile.
    """
    transfer = timed.transfer
    center, noise = median_with_noise(timed.each_s or timed.time_s)
    return CalibratedPoint(
        op=transfer.operation,
        dtype=transfer.dtype,
        world_size=world_size,
        size_bytes=timed.size_bytes,
        time_s=center,
        in_place=transfer.place,
        algorithm=transfer.algorithm,
        num_wrong=timed.num_wrong,
        low_s=max(center - noise, center / 2),
        high_s=center + noise,
        link=link,
        redop="sum" if transfer.operation in REDUCING else None,
        p99_s=float(np.percentile(timed.each_s, 99)) if timed.each_s else None,
        num_elements=timed.num_elements,
    )


def profile_of(
    points: Sequence[CalibratedPoint], notices: Sequence[str], **origin: Any
) -> LinkProfile:
    """Fit points and return their profile.

    Args:
        points: Measured or read.
        notices: What a reader has to know.
        origin: ``created``, ``version``, ``machine``, ``device``, ``backend`` and ``link``.
    """
    usable = [p for p in points if p.algorithm == BACKEND and p.size_bytes]
    notices = [*notices, *_wrong(points)]
    fits, unfit = fit_links(usable, usual_laws(origin.get("backend")))
    own, refused = _own_fits(points)
    return LinkProfile(
        points=tuple(points),
        fits=(*fits, *own),
        refused=(*unfit, *refused),
        notices=tuple(notices),
        **origin,
    )


def _wrong(points: Sequence[CalibratedPoint]) -> Iterator[str]:
    """Say which sizes are not fitted because their results were wrong."""
    for key, members in group_points(points).items():
        wrong = sorted({point.size_bytes for point in members if point.is_wrong})
        if wrong:
            sizes = ", ".join(units.bytes_(size) for size in wrong)
            yield f"{key}: results were wrong at {sizes}, which the fit leaves out"


LAW_OF = {
    "ring": "ring",
    "halving-doubling": "halving-doubling",
    "tree": "binomial tree",
    "double-tree": "double binary tree",
    "gather-broadcast": "gather-broadcast",
}
"""All-reduce of `scalebench.worker.collectives` → its law; the others have two kinds of links, or
no law with a latency."""


def _own_fits(points: Sequence[CalibratedPoint]) -> tuple[list[LinkFit], list[str]]:
    """Fit each of scalebench's own all-reduces by its own law."""
    fits, refused = [], []
    for key, members in group_points(points).items():
        if key.algorithm == BACKEND:
            continue
        if key.algorithm not in LAW_OF:
            refused.append(f"{key}: there is no law of one latency and one bandwidth for it.")
            continue
        try:
            fits.append(fit_link(members, LAW_OF[key.algorithm]))
        except UsageError as error:
            refused.append(str(error))
    return fits, refused


class LinkVerdict(Record):
    """One operation at one number of ranks against a link.

    Attributes:
        busbw_byte_per_s: The highest of all sizes.
        size_bytes: At which size.
        share: Of the link's nominal bandwidth.
        sentence: What that means.
    """

    op: str
    world_size: int
    busbw_byte_per_s: float
    size_bytes: int
    share: float
    sentence: str


def named_link(name: str) -> Link:
    """Return the link of a name, or several in parallel: ``8xinfiniband-ndr``.

    Raises:
        UsageError: There is none; the text has the valid ones.
    """
    times = re.fullmatch(r"(\d{1,4}) ?[x×*] ?(.+)", name)
    number, of = (int(times[1]), times[2]) if times else (1, name)
    if of not in LINKS:
        raise unknown_name("link", of, LINKS)
    if not number:
        raise UsageError(f"{name} is no link: give a number of links from 1 on, as 8x{of}.")
    together = number * LINKS[of].bandwidth_byte_per_s
    return LINKS[of].model_copy(update={"bandwidth_byte_per_s": together})


def against_link(points: Sequence[LinkPoint], name: str) -> list[LinkVerdict]:
    """Hold the backend's operations against a link by name.

    Bus bandwidth is what the busiest link carries if the algorithm is the ring's (nccl-tests,
    PERFORMANCE.md): more than the link has means that it is another one.

    Raises:
        UsageError: There is no link of that name.
    """
    link = named_link(name)
    best: dict[tuple[str, int, str], LinkPoint] = {}
    for point in points:
        if point.algorithm != "backend" or not point.busbw_byte_per_s or point.is_wrong:
            continue
        key = (point.op, point.world_size, point.link)
        known = best.get(key)
        if known is None or point.busbw_byte_per_s > (known.busbw_byte_per_s or 0.0):
            best[key] = point
    return [_verdict(point, name, link) for point in best.values()]


def _verdict(point: LinkPoint, name: str, link: Link) -> LinkVerdict:
    busbw = point.busbw_byte_per_s or 0.0
    share = busbw / link.bandwidth_byte_per_s
    nominal = f"{units.bytes_(link.bandwidth_byte_per_s)}/s"
    if share > 1:
        meaning = (
            "above the link: a node has several of them (give their number, as in "
            "8xinfiniband-ndr), the algorithm is not the ring's (in-network reduction, for "
            "example), or it is another link"
        )
    elif share >= WELL_USED:
        meaning = "the link is well used"
    else:
        meaning = "something else limits it: try larger sizes, check the topology and NCCL"
    table = f", {point.link}" if ", " in point.link else ""
    sentence = (
        f"{point.op}, N={point.world_size}{table}: busbw up to {units.bytes_(busbw)}/s at "
        f"{units.bytes_(point.size_bytes)}, {100 * share:.3g} % of {name} ({nominal}): {meaning}"
    )
    return LinkVerdict(
        op=point.op,
        world_size=point.world_size,
        busbw_byte_per_s=busbw,
        size_bytes=point.size_bytes,
        share=share,
        sentence=sentence,
    )


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
