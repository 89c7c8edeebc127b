"""What DistributedDataParallel's own logger says of exposed communication: a cross-check only.

The logger is private, samples the first ten and then every hundredth step, and starts its clock
of the backward pass at the first gradient that is ready.
"""

from typing import Any

from torch.nn.parallel import DistributedDataParallel


def logged_exposed_s(training: Any) -> float | None:
    """Return communication minus its overlap with backward per step, seconds.

    None: the training is not DDP's, or this torch has no such logger.
    """
    module = getattr(training, "module", None)
    if not isinstance(module, DistributedDataParallel):
        return None
    try:
        logged = module._get_ddp_logging_data()
    except (AttributeError, RuntimeError):
        return None
    communication_ns = logged.get("avg_backward_comm_time", 0)
    overlap_ns = logged.get("avg_backward_compute_comm_overlap_time", 0)
    if not communication_ns:
        return None
    return float(max(communication_ns - overlap_ns, 0)) / 1e9
