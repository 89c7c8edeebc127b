"""Launches that went on without a rank: what a row says of them, and what it cannot say."""

from collections.abc import Sequence

from scalebench.records.run import CellResult

LOST_A_RANK = "lost a rank"
OF_ALL_RANKS = ("throughput", "tokens_per_s", "speedup", "efficiency", "efficiency_wrapped")
WITHOUT_A_RANK = "a rank was lost, so the steps are not those of all ranks"


def losses_of(results: Sequence[CellResult]) -> list[str]:
    """Return a stamp for each rank that launches lost and went on without."""
    return [
        f"{LOST_A_RANK}: rank {one.rank} ({one.message}){_when(result, one.rank)}"
        for result in results
        for one in result.lost
    ]


def _when(result: CellResult, rank: int | None) -> str:
    """Say how far all ranks had come by then, where the others noted it."""
    noted = [record.facts.get("lost_ranks", {}).get(str(rank)) for record in result.ranks]
    known = [samples for samples in noted if samples is not None]
    launch = f" of launch {result.cell.repeat}" if result.cell.repeat else ""
    return f" after {min(known)} samples{launch}" if known else launch
