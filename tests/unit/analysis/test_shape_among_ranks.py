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
from scalebench.analysis.shapes import NoShape, shape_among_ranks
from scalebench.analysis.summarise import summarise
from scalebench.costmodel.links.profile import CalibratedPoint, profile_of
from scalebench.records.paths import RunPaths
from scalebench.report.tables.predictions import footnotes, unit
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from tests.builders.link_sweeps import sizes, sweep
from tests.builders.runs import make_cell, make_info, make_result
from tests.builders.traced import make_operation, make_trace, make_traced_record

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
