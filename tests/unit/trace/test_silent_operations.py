"""Operations of one rank, for which NCCL launches nothing, from torch's records of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from scalebench.trace.events import CATEGORIES
from scalebench.trace.files.kineto import read_kineto
from scalebench.trace.operations.classify import timeline_of
from scalebench.trace.operations.communication_kernels import is_communication_kernel
from tests.builders.tracing.traces import US

REAL = Path(__file__).parents[2] / "golden" / "traces" / "nccl-2.17_2ranks_rank0.json.gz"


def test_in_a_real_trace_operations_are_placed_where_nccl_began_them():
    """Two ranks of a cluster, NCCL 2.17: its kernels hidden, its records those of one rank.

    NCCL's kernel begins at most the launch itself later, about 0.1 ms; the moment at which the
    host asked is up to 0.66 ms too early.
    """
    real = read_kineto(REAL)
    is_nccl = np.array([is_communication_kernel(name) for name in real.names])[real.name]
    is_nccl &= real.category == CATEGORIES.index("kernel")
    hidden = replace(
        real,
        category=np.where(is_nccl, 0, real.category).astype(np.int8),
        details={
            i: {**told, "Group size": 1} if "Group size" in told else told
            for i, told in real.details.items()
        },
    )
    truth, silent = timeline_of(real).operations, timeline_of(hidden).operations
    assert [(o.kind, o.num_bytes, o.phase) for o in silent] == [
        (o.kind, o.num_bytes, o.phase) for o in truth
    ]
    reductions = [
        (o, s) for o, s in zip(truth, silent, strict=True) if o.kind == "all_reduce" and s.num_bytes
    ]
    late_us = [(o.start_ns - s.start_ns) / US for o, s in reductions]
    asked_early_us = [(o.start_ns - s.enqueued_ns) / US for o, s in reductions]
    assert len(reductions) == 15
    assert min(late_us) >= 0 and max(late_us) < 100
    assert max(asked_early_us) > 600
