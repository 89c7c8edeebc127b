"""Addresses of the page's views: what stands behind ``#``, so that a link opens there."""

from collections.abc import Sequence
from urllib.parse import quote

from scalebench.records.summary import Row
from scalebench.report.words import wording

_KEPT = "-_.!~*'()="
"""What the page's scripts leave as it is, too (JavaScript's encodeURIComponent, and ``=``)."""


def fragment(*parts: str) -> str:
    """Return the address of what these names lead to: ``"ddp/ddp-bucket-1mb/N=2"``."""
    return "/".join(quote(part.encode("utf-8", "replace"), safe=_KEPT) for part in parts)


def row_address(row: Row, prefix: Sequence[str] = ()) -> str:
    """Return the address of a row; ``prefix`` names its run where the page has several."""
    return fragment(*prefix, row.suite, row.case, f"N={row.world_size}")


def row_links(rows: Sequence[Row], prefix: Sequence[str] = ()) -> dict[tuple[str, str], str]:
    """Return case and N, as every table writes them → address of the row."""
    links: dict[tuple[str, str], str] = {}
    for row in rows:
        place = (wording.plain(row.case, 64), str(row.world_size))
        links.setdefault(place, row_address(row, prefix))
    return links
