"""Steps predicted from several ranks, where one sends nothing: every number is known.

Each step takes 100 ms on two ranks. The slower one computes 0 to 20, gathers until 30, computes 30
to 70, scatters until 90, and computes for the last 10 ms: 70 ms of computation.
"""

import pytest

from scalebench.analysis.attribution import attribute
from scalebench.analysis.projection.project import project
from scalebench.analysis.rows.at_one_rank import prediction_base
from scalebench.analysis.rows.launches import grouped
from scalebench.analysis.run import StoredRun
from scalebench.analysis.shape_among_ranks import shape_among_ranks
from scalebench.analysis.step_shape import NoShape, shape_of
from scalebench.analysis.summarise import summarise
from scalebench.costmodel.links.profile import CalibratedPoint, profile_of
from scalebench.costmodel.step import predict_step
from scalebench.records.paths import RunPaths
from scalebench.report.tables.predictions import footnotes, unit
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from scalebench.trace.names import STEP
from scalebench.worker.measure.trace_record import trace_record
from scalebench.worker.measure.tracing import Capture
from tests.builders.link_sweeps import sizes, sweep
from tests.builders.predictions import the_link
from tests.builders.runs import make_cell, make_info, make_result
from tests.builders.silent import BACKWARD, asked
from tests.builders.traced import make_operation, make_trace, make_traced_record, make_traced_result
from tests.builders.traces import annotation, events, kernel, launch, op

BYTES = 1_000_000
SECONDS_PER_BYTE = 1e-8  # 10 ms for each operation, whatever N
TARGET = ScriptTarget(name="train", program="train.py")


def cell(n, repeat=0, **changes):
    fields = {"backend": "gloo", "workload": TARGET, "scaling": "weak", **changes}
    return make_cell("script", n, repeat, Script(), **fields)


def sent(kind, start, end, phase, ordinal=0, size=2, **changes):
    asked = {"enqueued_ns": round(start * 1e6), "num_bytes": BYTES, "group_size": size}
    fields = {"kind": kind, "name": f"gloo:{kind}", "phase": phase, **asked, **changes}
    return make_operation(start, end, ordinal=ordinal, **fields)


def gathers(end=30, scatter=70, size=2, **changes):
    return [
        sent("all_gather", 20, end, "forward", size=size, **changes),
        sent("reduce_scatter", scatter, 90, "backward", size=size),
    ]


SLOW = make_trace(gathers(), [(0, 20), (30, 70), (90, 100)])
FAST = make_trace(gathers(scatter=50), [(0, 20), (30, 50), (90, 100)])


def launched(n, traces, repeat=0, clean=100, facts=None, **changes):
    ranks = [
        make_traced_record(rank, trace, clean=clean, facts=facts or {}, samples_per_step=32)
        for rank, trace in enumerate(traces)
    ]
    return make_result(cell(n, repeat, **changes), ranks=ranks)


def alone(operations=()):
    return launched(1, [make_trace(operations, [(0, 70)])], clean=70)


def shape(*traces, **changes):
    return shape_among_ranks([attribute(launched(len(traces), traces, **changes))])


def test_time_that_only_communicates_is_taken_out():
    found = shape(FAST, SLOW)
    assert found.computing_s == pytest.approx(0.07)  # of the rank that computes longest
    assert [(r.op, r.size_bytes, r.num_ranks) for r in found.requests] == [
        ("all_gather", BYTES, None),
        ("reduce_scatter", BYTES, None),
    ]
    assert [r.ready_s for r in found.requests] == pytest.approx([0.02, 0.06])
    assert [r.needed_s for r in found.requests] == pytest.approx([0.02, 0.06])
    assert (found.batch_s, found.num_samples) == (pytest.approx(0.06), 32)


@pytest.mark.parametrize(
    ("trace", "facts", "why"),
    [
        (make_trace([], [(0, 100)]), {}, "no communication at N=2"),
        (make_trace([sent("send", 1, 2, "forward")]), {}, "divides the model itself"),
        (make_trace([sent("all_gather", 1, 2, "forward", size=1)]), {}, "in groups of 1"),
        (
            make_trace([sent("all_gather", 1, 2, "forward", num_bytes=None)]),
            {},
            "does not say how much gloo:all_gather sends",
        ),
        (SLOW, {"wrappers": [{"kind": "DTensor"}]}, "divides the model itself"),
        (SLOW, {"wrappers": [{"kind": "_PipelineSchedule"}]}, "divides the model itself"),
        (
            SLOW,
            {"groups": [{"name": "Megatron tensor parallel", "ranks": 2, "count": 1}]},
            "divides the model itself",
        ),
    ],
)
def test_a_step_that_does_not_tell_other_sizes_says_why(trace, facts, why):
    traces = [trace, trace]
    if not trace.operations:  # one rank that sends lets the launch be looked into
        traces = [make_trace([sent("barrier", 1, 2, "forward", num_bytes=None)])] * 2
    with pytest.raises(NoShape, match=why):
        shape(*traces, facts=facts)


def the_profile(*world_sizes):
    size = sizes(12, 1 << 10, 1 << 24)
    points = [
        CalibratedPoint(**point.model_dump(exclude={"algbw_byte_per_s", "busbw_byte_per_s"}))
        for op in ("all_gather", "reduce_scatter")
        for n in world_sizes
        for point in sweep(size, size * SECONDS_PER_BYTE, world_size=n, op=op)
    ]
    origin = {"created": "2024-05-01", "version": "0", "device": "cpu", "backend": "gloo"}
    return profile_of(points, (), **origin)


def make_run(tmp_path, *results, link=None):
    info = make_info([result.cell for result in results])
    stored = {result.cell.id: result for result in results}
    return StoredRun(RunPaths(tmp_path), info, stored, link=link)


FOUR = [make_trace(gathers(size=4), [(0, 20), (30, 70), (90, 100)])] * 4


def rows_of(run):
    return {row.world_size: row for row in summarise(run).rows}


def test_larger_sizes_are_predicted_from_the_smallest_that_sends(tmp_path):
    run = make_run(
        tmp_path, alone(), launched(2, [FAST, SLOW]), launched(4, FOUR), link=the_profile(2, 4)
    )
    rows = rows_of(run)
    # 70 ms of computation, and 10 ms for each of the two operations.
    assert rows[4].predicted_step_s == pytest.approx(0.09, rel=1e-3)
    assert rows[4].prediction_error == pytest.approx(-0.1, rel=1e-2)
    told = rows[4].prediction
    assert (told.base_world_size, told.computing_s) == (2, pytest.approx(0.07))
    assert told.left_out.link_world_sizes == [2]
    assert rows[2].predicted_step_s is None
    assert "would be no test" in rows[2].unavailable["predicted_step_s"]
    assert "predictions start from N=2" in rows[1].unavailable["prediction_error"]
    assert unit([rows[4]]) == "steps predicted from N=2 and calibrated links"
    assert any("N=2 itself is the base" in note for note in footnotes(list(rows.values())))


def test_a_projection_goes_on_from_there(tmp_path):
    run = make_run(tmp_path, alone(), launched(2, [FAST, SLOW]), link=the_profile(2))
    found = project(run, [2, 8])
    two, eight = found.rows
    assert two.step_s is None and "starts from N=2" in two.reason
    # By the laws eight ranks need 7/8 ÷ 1/2 = 1.75 times as long for the same bytes.
    assert eight.step_s == pytest.approx(0.07 + 2 * 0.0175, rel=1e-2)
    assert (eight.global_batch, eight.rank_batch) == (256, 32)
    assert "started from N=2, not from N=1" in found.assumptions


def test_a_script_that_fails_on_one_rank_is_projected_all_the_same(tmp_path):
    """A model too large for one rank is what FSDP is for; its batch is that of the base."""
    failed = make_result(cell(1, rank_batch=1, global_batch=1), status="oom", ranks=[])
    run = make_run(tmp_path, failed, launched(2, [FAST, SLOW]), link=the_profile(2))
    (eight,) = project(run, [8]).rows
    assert eight.step_s == pytest.approx(0.07 + 2 * 0.0175, rel=1e-2)
    assert (eight.global_batch, eight.rank_batch, eight.efficiency) == (256, 32, None)


def base_of(tmp_path, *results):
    table = grouped(make_run(tmp_path, *results))
    found = [prediction_base(row, table) for row in table.values()]
    (size,) = {None if one is None else one.cell.world_size for one in found}
    return size


def test_the_base_is_one_rank_where_it_sends_what_several_send(tmp_path):
    everything = [
        sent("all_gather", 20, 21, "forward", size=1),
        sent("reduce_scatter", 60, 61, "backward", size=1),
    ]
    two = launched(2, [FAST, SLOW])
    assert base_of(tmp_path, alone(everything), two) == 1
    assert base_of(tmp_path, alone(everything[:1]), two) == 2
    assert base_of(tmp_path, alone(), launched(4, FOUR), two) == 2
    assert base_of(tmp_path, alone()) == 1
    assert base_of(tmp_path, two) == 2


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
