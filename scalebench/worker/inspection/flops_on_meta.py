"""FLOPs of a model that no process can hold: shapes alone say them, on torch's meta device."""

import torch

from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.workloads.batches import first_samples, to_device
from scalebench.worker.workloads.flops import CountedFlops, count_flops

META = torch.device("meta")


def count_flops_on_meta(context: RankContext) -> CountedFlops | None:
    """Return the FLOPs of forward and backward on one sample; no parameter is given a value.

    Returns:
        None where the model may ask its tensors for values: a workload of the user's own, and one
        with experts, whose tokens choose them.
    """
    if context.cell.workload.kind in ("custom", "gpt-moe"):
        return None
    with META:
        workload = fresh_workload(context)
    batch = to_device(first_samples(next(iter(workload.batches)), 1), META)
    with count_flops() as flops:
        workload.loss(workload.module, batch).backward()
    return flops.per_sample(1)
