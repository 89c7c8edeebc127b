"""The card of timed collectives on the overview: one line for each operation."""

from dataclasses import dataclass

from scalebench import units
from scalebench.records.summary import TimedCollectives
from scalebench.report.tables.listing import PlainTable
from scalebench.report.words import linking, wording


@dataclass(frozen=True)
class LinkCard:
    """What timed collectives came to.

    Attributes:
        link: Address of the links' own view; empty: it has no figure.
    """

    name: str
    link: str
    headline: str
    operations: PlainTable | None


def link_card(found: TimedCollectives | None, link: str) -> LinkCard | None:
    """Return the card; None: no collectives were timed."""
    if found is None:
        return None
    lines = tuple(
        (
            wording.plain(one.op, 40),
            str(one.world_size),
            units.seconds(one.alpha_s),
            f"{units.bytes_(one.bandwidth_byte_per_s)}/s"
            if one.bandwidth_byte_per_s
            else wording.DASH,
            wording.plain(one.law, 40),
        )
        for one in linking.operations(found)
    )
    header = ("operation", "ranks", "a message costs (α)", "a link carries (B)", "law")
    words = frozenset({0, header.index("law")})
    table = PlainTable("Operations", "", header, lines, words) if lines else None
    names = wording.joined([wording.plain(name, 64) for name in found.suites])
    return LinkCard(names, link, linking.headline(found), table)
