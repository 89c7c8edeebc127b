"""Every moment of a step belongs to one part."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.errors import UsageError
from scalebench.trace.breakdown import break_down
from scalebench.trace.intervals import intervals, union
from scalebench.trace.job import analyse_job
from scalebench.trace.split import whole_steps
from tests.builders.traced import flat, make_operation, make_trace
from tests.builders.traces import annotation, events, kernel

PARTS = (
    *("codec_s", "busy_s", "wait_s", "exposed_transfer_s"),
    *("copies_alone_s", "data_stall_s", "other_idle_s"),
)


edges = st.lists(st.floats(-20, 320), min_size=2, max_size=2).map(sorted)
spans_ = st.lists(edges, max_size=8)


def tidy(spans):
    return union(intervals(flat(spans))).ravel().tolist()


@given(spans_, spans_, spans_, spans_, spans_, spans_)
def test_the_parts_add_up_to_the_step_whatever_happened(compute, comm, data, codec, copies, waits):
    operations = [make_operation(a, b) for a, b in comm]
    trace = make_trace(operations, steps=[(0, 100), (100, 250), (250, 300)])
    sets = {"compute": tidy(compute), "data": tidy(data), "codec": tidy(codec)}
    sets["copies"] = tidy(copies)
    found = break_down(0, trace.model_copy(update=sets), union(intervals(flat(waits))))
    assert sum(getattr(found, part) for part in PARTS) == pytest.approx(0.1, abs=1e-9)
    assert all(getattr(found, part) >= 0 for part in PARTS)
    assert found.wait_s + found.exposed_transfer_s == pytest.approx(found.exposed_comm_s, abs=1e-12)
    assert found.exposed_comm_s <= found.comm_s + 1e-12
    assert found.comm_beside_copies_s <= found.exposed_comm_s + 1e-12
    shown = found.copies_alone_s + found.comm_beside_copies_s
    assert shown <= found.copies_s + 1e-12


GOLDEN = Path(__file__).parents[2] / "golden" / "traces"


def steps(*bounds):
    return [annotation(f"ProfilerStep#{i}", *span) for i, span in enumerate(bounds)]


def test_no_steps_to_look_at():
    with pytest.raises(UsageError, match="no profiler steps"):
        whole_steps(events(kernel("gemm", 0, 10)))


@pytest.mark.parametrize(
    ("name", "overlap"),
    [
        # HolisticTraceAnalysis 0.5.0, HTA_DISABLE_NS_ROUNDING=1
        ("nccl-2.17_2ranks_rank0", 0.1476),
        ("nccl-sendrecv_128ranks_rank0", 0.1181),
        ("nccl-sendrecv_128ranks_rank1", 0.2005),
    ],
)
def test_the_overlap_that_holistic_trace_analysis_finds(name, overlap):
    job = analyse_job([GOLDEN / f"{name}.json.gz"], "steps")
    assert job.total.overlap_ratio == pytest.approx(overlap, abs=5e-5)
