"""The batch frontier: the largest batch of a rank that fits, where a run looked for it."""

from collections.abc import Sequence

from scalebench.frontier import told_by
from scalebench.report import wording
from scalebench.report.listing import PlainTable
from scalebench.summary import Row


def frontier_table(rows: Sequence[Row], notices: Sequence[str]) -> PlainTable | None:
    """Return the largest batches of a suite's cases; None: the run did not look for them."""
    found = {(told.case, told.world_size): told for n in notices if (told := told_by(n))}
    lines = []
    for row in rows:
        told = found.get((row.case, row.world_size))
        if told is None:
            continue
        held = wording.DASH if row.throughput is None else f"{row.throughput.value:.4g}"
        lines.append(
            (
                wording.plain(row.case, 64),
                str(row.world_size),
                str(told.fits),
                str(told.too_large),
                str(told.fits * row.world_size),
                held,
            )
        )
    if not lines:
        return None
    return PlainTable(
        "Batch frontier",
        "The largest batch that fits a rank, found by launches that only try.",
        ("case", "N", "fits per rank", "does not fit", "all ranks", "samples/s"),
        tuple(lines),
    )
