"""The prediction of a CUDA row, from a step at N=1 in whose trace NCCL has no kernel."""

import pytest

from scalebench.analysis.attribution import attribute
from scalebench.analysis.step_shape import shape_of
from scalebench.costmodel.step import predict_step
from scalebench.trace.marks import STEP
from scalebench.worker.measure.trace_record import trace_record
from scalebench.worker.measure.tracing import Capture
from tests.builders.traced import make_traced_record, make_traced_result
from tests.builders.traces import annotation, events, kernel, launch, op
from tests.unit.analysis.rows.test_prediction import the_link
from tests.unit.trace.test_silent_operations import BACKWARD, asked

STEP_MS = 100
BUCKET_BYTES = 4_000_000
NUM_STEPS = 3


def ddp_step(number, **told):
    """The host asks for a step within 10 ms; the device computes for 100 and then optimizes.

    The gradients of the two buckets are there 60 and 90 ms after the device began the step.
    """
    host, device, first = number * 20, number * STEP_MS, number * 10 + 1
    rows = [
        annotation(STEP, host, host + 10),
        op(BACKWARD, host + 2, host + 8, thread=2),
        annotation("Optimizer.step#AdamW.step", host + 9, host + 10),
    ]
    for order, (at, start, end, thread) in enumerate(
        [(1, 0, 30, 1), (3, 30, 60, 2), (5, 60, 90, 2), (9.5, 90, 100, 1)]
    ):
        rows.append(launch(host + at, first + order, thread))
        rows.append(kernel("gemm", device + start, device + end, first + order))
    for order, at in enumerate((4, 6)):
        sized = {"In msg nelems": BUCKET_BYTES // 4, **told}
        rows += asked(host + at, seq=2 * number + order, thread=2, **sized)
    return [scaled(row) for row in rows]


def scaled(row):
    """Milliseconds into the microseconds that rows are written in; requests stay short."""
    short = row.name.startswith(("c10d::", "record_", "nccl:", "cuda"))
    length = 0.1 if short else row.end - row.start
    offset = {"record_param_comms": 5, "nccl:all_reduce": 6}.get(row.name, 0)
    row.start = (row.start - offset) * 1000 + offset
    row.end = row.start + length * 1000
    return row


def at_one(**told):
    rows = [row for number in range(NUM_STEPS) for row in ddp_step(number, **told)]
    marks = [number * 20_000_000 for number in range(NUM_STEPS)]
    trace = trace_record([Capture(step_ns=marks, events=events(*rows))])
    record = make_traced_record(0, trace, clean=STEP_MS)
    cell = {"device": "cuda", "backend": "nccl"}
    return attribute(make_traced_result(record, rank_batch=32, global_batch=32, **cell))


def test_buckets_are_ready_when_the_device_has_computed_them():
    shape = shape_of([at_one()])
    assert [r.op for r in shape.requests] == ["all_reduce"] * 2
    assert [r.size_bytes for r in shape.requests] == [BUCKET_BYTES] * 2
    assert [r.ready_s for r in shape.requests] == pytest.approx([0.060, 0.090], abs=1e-4)
    assert (shape.batch_s, shape.fixed_s) == pytest.approx((0.090, 0.010), abs=1e-4)


def test_the_row_at_two_ranks_is_predicted():
    """4 MB take 40 ms: from 60 to 100, and from 100 to 140; then the optimizer's 10."""
    found = predict_step(shape_of([at_one()]), the_link(2).time, 2, 32)
    assert found.step_s == pytest.approx(0.150, rel=1e-2)


def test_two_ranks_without_a_kernel_of_nccl_are_a_trace_that_lost_it():
    with pytest.raises(ValueError, match="CUPTI"):
        at_one(**{"Group size": 2})


def test_the_budget_of_such_a_step_closes():
    found = at_one().breakdowns[0]
    assert found.comm_s == 0
    assert found.step_s == pytest.approx(0.1, rel=1e-3)
