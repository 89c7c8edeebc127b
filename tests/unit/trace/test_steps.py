"""Which part of a trace is whole profiler steps."""

from pathlib import Path

import pytest

from scalebench.errors import UsageError
from scalebench.trace.analysis import analyse
from scalebench.trace.job import analyse_job
from scalebench.trace.steps import whole_steps
from tests.builders.traces import Event, annotation, events, kernel, launch, op

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def us(value):
    return pytest.approx(value * 1e-6)


def steps(*bounds):
    return [annotation(f"ProfilerStep#{i}", *span) for i, span in enumerate(bounds)]


def test_a_kernel_belongs_to_the_step_that_launched_it():
    timeline, within, _ = whole_steps(
        events(
            *steps((100, 200), (200, 300), (300, 400)),
            launch(50, 1), kernel("gemm", 110, 120, 1),  # before the first step
            launch(150, 2), kernel("gemm", 180, 220, 2),
            launch(290, 3), kernel("gemm", 350, 380, 3),  # of the second, run during the third
            launch(290, 4), kernel(REDUCE, 370, 390, 4, 20, **{"Collective name": "broadcast"}),
            launch(300, 5), kernel("gemm", 395, 399, 5),  # of the last
            launch(280, 6), Event("gpu_memcpy", "Memcpy DtoH", 391, 392, 7, 6),
            launch(310, 7), Event("gpu_memset", "Memset (Device)", 398, 399, 7, 7),
            kernel("gemm", 210, 299, 99),  # launched nobody knows when
        )
    )  # fmt: skip
    found = analyse(timeline, within)
    assert within.tolist() == [[100_000, 392_000]]
    assert len(timeline.steps) == 2
    assert (found.compute_s, found.comm_s, found.overlap_s) == (us(70), us(20), us(10))
    assert found.copies_s == us(1)
    assert [share.name for share in found.kinds] == ["broadcast"]


def test_on_the_cpu_a_step_is_what_lies_between_its_marks():
    timeline, within, _ = whole_steps(
        events(
            *steps((100, 200), (250, 300)),
            op("aten::mm", 150, 260),
            annotation("gloo:all_reduce", 190, 400, thread=2),
        )
    )
    found = analyse(timeline, within)
    assert found.window_s == us(150)
    assert (found.compute_s, found.comm_s, found.overlap_s) == (us(60), us(60), us(20))


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
