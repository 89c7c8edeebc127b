"""The largest batch of a rank that fits, where a run looked for it."""

from collections.abc import Sequence

from scalebench.records.largest_batch import LargestBatch
from scalebench.records.summary import Row
from scalebench.report.tables.layout import PLACE, Column, value
from scalebench.report.tables.listing import PlainTable


def max_batch_table(rows: Sequence[Row], found: Sequence[LargestBatch]) -> PlainTable | None:
    """Return the largest batches of a suite's cases; None: the run did not look for them."""
    by_row = {(batch.suite, batch.case, batch.world_size): batch for batch in found}
    places = [(row, by_row.get((row.suite, row.case, row.world_size))) for row in rows]
    lines = [(row, batch) for row, batch in places if batch is not None]
    if not lines:
        return None
    return PlainTable.of(
        "Largest batch",
        "The largest batch that fits a rank, found by launches that only try.",
        COLUMNS,
        lines,
    )


COLUMNS: tuple[Column[tuple[Row, LargestBatch]], ...] = (
    *PLACE,
    Column("fits per rank", lambda of: str(of[1].fits)),
    Column("does not fit", lambda of: str(of[1].too_large)),
    Column("all ranks", lambda of: str(of[1].fits * of[0].world_size)),
    value("samples/s", lambda of: of[0].throughput, lambda found: f"{found.value:.4g}"),
)
