"""Which cells of a run are launched together and take turns, and which by themselves.

Cells of one suite and one round share a launch, so that what the machine does in a minute it does
to all of them, and a block of steps has blocks of the baseline next to it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from scalebench.records.run import CellResult, RunSpec
from scalebench.spec import Cell, Script
from scalebench.units import bytes_

PROCESS_BYTES = 150 * 2**20
"""What a rank keeps for itself besides tensors: its own copies of what it was forked with."""
LARGEST_SHARE_OF_MEMORY = 0.7


def can_share(cell: Cell, spec: RunSpec, launcher_shares: bool) -> bool:
    """Tell whether a cell may take turns with others.

    Not with a DataLoader: its workers would go on making batches while the rank waits. Nor a
    user's script, which goes on by itself. Nor a race, which no one else should interrupt.
    """
    return (
        launcher_shares
        and spec.shared
        and cell.purpose in ("measure", "independent", "shard")
        and cell.loader is None
        and cell.race is None
        and not isinstance(cell.strategy, Script)
    )


def cells_to_share(first: Cell, missing: Sequence[Cell]) -> list[Cell]:
    """Return the cells of the same suite and round as ``first``, itself among them."""
    key = (first.suite, first.repeat)
    return [cell for cell in missing if (cell.suite, cell.repeat) == key]


def only_whole_launches(results: Mapping[str, CellResult]) -> dict[str, CellResult]:
    """Return the results without those of shared launches of which some were not stored.

    A run that was killed while it stored them has a part. The rest of that round, launched by
    itself later, would be compared with launches that it did not take turns with.

    Args:
        results: Every result that is stored, also of launches that failed.
    """
    return {
        cell_id: result
        for cell_id, result in results.items()
        if results.keys() >= set(result.shared_with)
    }


def too_much_memory(cells: Sequence[Cell], results: Mapping[str, CellResult]) -> str | None:
    """Say why cells do not fit into the machine's memory at once; None: they do, or no one knows.

    Args:
        cells: What would be launched together.
        results: With the launches that inspected them, which counted their memory.
    """
    available = _available_bytes()
    if available is None:
        return None
    wanted = sum(_bytes_of(cell, results) for cell in cells)
    if wanted <= LARGEST_SHARE_OF_MEMORY * available:
        return None
    return (
        f"together they need about {bytes_(wanted)}, and {bytes_(available)} of memory are "
        "available"
    )


def _bytes_of(cell: Cell, results: Mapping[str, CellResult]) -> int:
    of_rank = PROCESS_BYTES * cell.world_size
    if cell.purpose == "independent":  # each rank trains what the baseline's only rank does
        return of_rank + cell.world_size * _tensor_bytes(cell, 1, results)
    if cell.purpose == "shard":  # one of the row's ranks
        return PROCESS_BYTES + _tensor_bytes(cell, cell.world_size, results) // cell.world_size
    return of_rank + _tensor_bytes(cell, cell.world_size, results)


def _tensor_bytes(cell: Cell, world_size: int, results: Mapping[str, CellResult]) -> int:
    """Return the tensors of all ranks of the launch that inspected a case at a size."""
    inspection = cell.model_copy(update={"purpose": "inspect", "world_size": world_size})
    inspected = results.get(inspection.id)
    ranks = inspected.ranks if inspected is not None else []
    return sum(rank.memory.allocated_bytes or rank.memory.rss_bytes or 0 for rank in ranks)


def _available_bytes() -> int | None:
    """Return the memory that new processes can have without swapping (Linux; elsewhere None)."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None
