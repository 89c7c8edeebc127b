"""Cells that take turns in one launch: why that did not work, if it did not."""

from collections.abc import Sequence

from scalebench.launch.first_failure import RankExit
from scalebench.records.rank import RankRecord
from scalebench.spec import SharedLaunch


class SharingFailed(Exception):
    """A launch in which cells take turns did not come to its end; the text says why.

    Which cell is to blame is found out by launching each of them alone.
    """


def why_not_shared(
    shared: SharedLaunch,
    exits: Sequence[RankExit],
    records: Sequence[Sequence[RankRecord]],
    in_time: bool,
) -> str | None:
    """Say why a shared launch cannot be used, or None: every rank of every cell is well.

    Args:
        shared: What was launched.
        exits: How its processes ended, by their numbers.
        records: What the ranks of each cell left.
        in_time: Whether all had ended before their time was over.
    """
    errors = [
        (record.error.kind == "peer", record.error.time_ns, cell, record.error.message)
        for cell, of_cell in zip(shared.cells, records, strict=True)
        for record in of_cell
        if record.error is not None
    ]
    if errors:
        _, _, cell, message = min(errors, key=lambda found: found[:2])
        return f"{cell.case} at N={cell.world_size}: {message}"
    if not in_time:
        return f"still running after {shared.limit_s:g} s"
    killed = [end for end in exits if end.code and not end.killed_by_us]
    if killed:
        place, rank = shared.places()[min(killed, key=lambda end: end.time_ns).rank]
        cell = shared.cells[place]
        return f"{cell.case} at N={cell.world_size}: rank {rank} ended without a result"
    missing = [
        cell
        for cell, of_cell in zip(shared.cells, records, strict=True)
        if len(of_cell) != cell.num_processes
    ]
    if missing:
        return f"{missing[0].case} at N={missing[0].world_size}: a rank left no record"
    return None
