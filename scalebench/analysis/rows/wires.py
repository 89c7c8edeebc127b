"""Which wires NCCL took in a row, from the log that its inspection launch has NCCL write."""

from scalebench.analysis.rows.context import Context
from scalebench.analysis.rows.fields import Fields, null
from scalebench.analysis.rows.launches import Launches
from scalebench.costmodel.links.nccl_log import merged
from scalebench.costmodel.links.wire_rules import wire_findings

SLOW = "slow wires"
BY_HAND = (
    "run it with NCCL_DEBUG=INFO and NCCL_DEBUG_FILE=nccl.%h.%p, then scalebench doctor --nccl-log"
)


def wires_of_row(row: Launches, _: Context) -> Fields:
    """Return the wires of a row, and a mark for each that is slower than what the machine has."""
    ranks = row.inspection.ranks if row.inspection is not None else []
    logs = [rank.wires for rank in ranks if rank.wires is not None]
    if logs:
        wires = merged(logs)
        found = wire_findings(wires)
        return {
            "wires": wires.model_copy(update={"findings": found}),
            "stamps": [f"{SLOW}: {one.text}" for one in found],
        }
    if row.cell.world_size == 1:
        why = "one rank sends to no other"
    elif row.cell.device == "cpu":
        why = "NCCL joins GPUs; these ranks are on CPU"
    elif row.inspection is None:
        why = f"no inspection launch had NCCL write its log: {BY_HAND}"
    else:
        told = (rank.wires_unavailable for rank in ranks if rank.wires_unavailable)
        why = next(told, "the inspection launch recorded no log of NCCL")
    return null(["wires"], why)
