"""Which wires NCCL took in a row, from the log that its inspection launch has NCCL write."""

from scalebench.analysis.rows.fields import RowFields
from scalebench.costmodel.links.nccl_log import merged
from scalebench.costmodel.links.wire_rules import wire_findings
from scalebench.records.run import CellResult
from scalebench.spec import Cell

SLOW = "slow wires"
BY_HAND = (
    "run it with NCCL_DEBUG=INFO and NCCL_DEBUG_FILE=nccl.%h.%p, then scalebench doctor --nccl-log"
)


def wires_of_row(cell: Cell, inspection: CellResult | None) -> RowFields:
    """Return the wires of a row, and a mark for each that is slower than what the machine has."""
    row = RowFields()
    ranks = inspection.ranks if inspection is not None else []
    logs = [rank.wires for rank in ranks if rank.wires is not None]
    if logs:
        wires = merged(logs)
        found = wire_findings(wires)
        row.values["wires"] = wires.model_copy(update={"findings": found})
        row.stamps += [f"{SLOW}: {one.text}" for one in found]
    elif cell.world_size == 1:
        row.set("wires", None, "one rank sends to no other")
    elif cell.device == "cpu":
        row.set("wires", None, "NCCL joins GPUs; these ranks are on CPU")
    elif inspection is None:
        row.set("wires", None, f"no inspection launch had NCCL write its log: {BY_HAND}")
    else:
        why = next((rank.wires_unavailable for rank in ranks if rank.wires_unavailable), None)
        row.set("wires", None, why or "the inspection launch recorded no log of NCCL")
    return row
