"""What a link of known nominal bandwidth is worth here: the best bus bandwidth compared with it."""

import re
from collections.abc import Sequence

from scalebench import units
from scalebench.costmodel.links.points import LinkPoint
from scalebench.costmodel.links.topology import LINKS, Link
from scalebench.errors import UsageError, unknown_name
from scalebench.records.base import Record

WELL_USED = 0.75
"""NCCL's large all-reduces reach about four fifths of NVLink and nine tenths of InfiniBand."""


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
