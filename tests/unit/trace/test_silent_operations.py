"""Operations of one rank, for which NCCL launches nothing, from torch's records of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scalebench.trace.classify import timeline_of
from scalebench.trace.communication_kernels import is_communication_kernel
from scalebench.trace.events import CATEGORIES
from scalebench.trace.kineto import read_kineto
from scalebench.trace.matching import match_requests
from tests.builders.silent import BACKWARD, asked
from tests.builders.traces import US, annotation, events, kernel, launch, op

REAL = Path(__file__).parents[2] / "golden" / "traces" / "nccl-2.17_2ranks_rank0.json.gz"


def gemm(launched, start, end, correlation, thread=1, stream=7):
    return [launch(launched, correlation, thread), kernel("gemm", start, end, correlation, stream)]


def found(*rows):
    timeline = timeline_of(events(*rows))
    return [(o.kind, o.start_ns / US, o.end_ns / US, o.num_bytes) for o in timeline.operations]


def test_it_takes_no_time_and_begins_when_what_was_asked_for_before_is_done():
    rows = [
        op(BACKWARD, 0, 60),
        *gemm(2, 100, 300, 1),
        *asked(10),
        *gemm(50, 300, 450, 2),
        *asked(60, seq=18),
    ]
    timeline = timeline_of(events(*rows))
    first, second = timeline.operations
    assert (first.start_ns, first.end_ns) == (300 * US, 300 * US)
    assert (second.start_ns, second.end_ns) == (450 * US, 450 * US)
    assert (first.kind, first.num_bytes, first.dtype) == ("all_reduce", 4000, "float32")
    assert (first.sequence, first.group, first.group_size) == (17, "0", 1)
    assert first.enqueued_ns == 15 * US
    assert first.phase == "backward"
    assert timeline.compute.tolist() == [[100 * US, 450 * US]]


@pytest.mark.parametrize("changes", [{"Group size": 2}, {"Collective name": "wait"}])
def test_records_of_larger_groups_and_of_no_operation_are_left_out(changes):
    """With other ranks a kernel is launched; if none is seen, nothing is known."""
    assert found(*gemm(2, 100, 300, 1), *asked(10, **changes)) == []


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


def matched(requests, operations):
    """Return the place among the requests of each operation's; -1: none."""
    made = events(
        *(op(f"c10d::{name}", begin, begin + 1) for name, begin in requests),
        *(annotation(f"gloo:{name}", begin, begin + 5) for name, begin in operations),
    )
    asked = np.arange(len(requests))
    carried_out = np.arange(len(requests), len(requests) + len(operations))
    return match_requests(made, carried_out, asked).tolist()


AR, RS, AG = "allreduce_", "reduce_scatter_", "_allgather_base_"


@pytest.mark.parametrize(
    ("requests", "operations", "found"),
    [
        ([(AR, 10), (AG, 20), (AR, 30)],
         [("all_reduce", 12), ("all_reduce", 31), ("all_gather", 32)], [0, 2, 1]),
        ([(AR, 2000)], [("all_reduce", 12), ("all_reduce", 2001)], [-1, 0]),
        ([(AR, 1500)], [("all_reduce", 500)], [0]),
        ([(AR, 1501)], [("all_reduce", 500)], [-1]),
        ([(AR, 10)], [("broadcast", 12)], [-1]),
        ([], [("all_reduce", 12)], [-1]),
        ([(AR, 10)], [("all_reduce", 12), ("all_reduce", 14)], [0, -1]),
        # One all-reduce for each of three ranks, and one that was asked for as such.
        ([(RS, 10), (AR, 20)], [("all_reduce", 12 + i) for i in range(4)], [0, 0, 0, 1]),
        ([(RS, 10), (RS, 15), (AR, 20)], [("all_reduce", 21 + i) for i in range(5)],
         [0, 0, 1, 1, 2]),
        ([(RS, 10), (RS, 15)], [("all_reduce", 21 + i) for i in range(3)], [0, 1, -1]),
        ([(RS, 10), (AR, 20)], [("all_reduce", 21), ("reduce_scatter", 22)], [1, 0]),
    ],
)  # fmt: skip
def test_each_operation_has_its_request(requests, operations, found):
    assert matched(requests, operations) == found
