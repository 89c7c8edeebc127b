"""What a call of a backend launched is communication; calls that left nothing are counted."""

import re

import pytest

from scalebench.errors import UsageError
from scalebench.trace.classify import timeline_of
from tests.builders.traces import annotation, events, kernel, launch, op

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = [launch(900, 99), kernel("gemm", 910, 990, 99)]
SIZE = {"Collective name": "allreduce", "In msg nelems": 4, "dtype": "Float"}


def call(start, number, backend="nccl", name=REDUCE, launched=True, done=True, **details):
    """A call, its launch, and the kernel that carries it out."""
    rows = [annotation(f"{backend}:all_reduce", start, start + 20, **details)]
    rows += [launch(start + 5, number)] * launched
    return rows + [kernel(name, start + 30, start + 70, number, stream=20)] * done


def told(*rows, **about):
    timeline = timeline_of(events(*rows, *GEMM, **{"world_size": 2, **about}))
    return [op.kind for op in timeline.operations], timeline.calls.num, timeline.calls.num_unseen


@pytest.mark.parametrize("backend", ["xccl", "hccl", "mtia", "cncl", "cnccl", "oneccl", "eccl"])
def test_what_a_call_of_any_backend_launched_is_communication(backend):
    assert told(*call(0, 1, backend, "no_telling_name")) == (["all_reduce"], 1, 0)
    assert told(*call(0, 1, backend, done=False)) == ([], 1, 1)
    timeline = timeline_of(events(*call(0, 1, backend, done=False), *GEMM))
    assert timeline.calls.backend == backend.upper()
    with pytest.raises(UsageError, match=f"shows {backend.upper()} calls but no GPU kernel"):
        timeline_of(events(*call(0, 1, backend, done=False)))


def test_torchs_own_copies_inside_a_call_are_none_of_it():
    copies = [launch(7, 2), kernel("void at::native::xpu::copy<float>(float)", 10, 20, 2)]
    assert told(*call(0, 1, "xccl", "odd"), *copies)[0] == ["all_reduce"]
    assert told(*call(0, 1), launch(7, 2), kernel("odd", 10, 20, 2))[0] == ["all_reduce"]


ALONE = {**SIZE, "Group size": 1}
TWICE = (*call(0, 1), *call(100, 2))
PAIR = annotation("nccl:send 0->1", 200, 210), annotation("nccl:recv 0<-1", 220, 230)
LOST = call(200, 3, done=False)
SILENT = call(200, 3, launched=False, done=False)


@pytest.mark.parametrize(
    ("rows", "about", "num", "num_unseen"),
    [
        (TWICE, {}, 2, 0),
        ([*TWICE, *LOST], {}, 3, 1),
        ([*TWICE, *SILENT], {}, 3, 1),
        (LOST, {}, 1, 1),
        (LOST, {"world_size": None}, 1, 1),
        (SILENT, {"world_size": 1}, 0, 0),  # one rank has nothing to do
        ([*TWICE, *SILENT, op("record_param_comms", 195, 230, **ALONE)], {}, 2, 0),
        ([*TWICE, *SILENT, op("record_param_comms", 205, 210, **ALONE)], {}, 2, 0),
        # NCCL carries out several together; one of them that launched has lost its kernel
        ([*TWICE, *SILENT, annotation("nccl:coalesced", 300, 310)], {}, 4, 0),
        ([*TWICE, *LOST, annotation("nccl:coalesced", 300, 310)], {}, 4, 1),
        ([*SILENT, annotation("nccl:coalesced", 300, 310)], {}, 2, 2),  # nothing of any is there
        # one kernel for a send and a receive, launched after both
        ([*TWICE, *PAIR, launch(242, 4), kernel(REDUCE, 250, 260, 4, stream=20)], {}, 4, 0),
        ([*TWICE, *PAIR, launch(205, 4)], {}, 4, 1),
        # nothing is sent: an uneven all-to-all
        ([*TWICE, annotation("nccl:all_to_all", 200, 220, **{"Input Dims": [[0]]})], {}, 3, 1),
        (
            [*TWICE, annotation("nccl:all_to_all", 200, 220, **{"Input Dims": [[0]],
                                                               "Input type": ["float"]})],
            {}, 2, 0,
        ),
        # kernels that no launch ties to a call may be of any
        ([*SILENT, kernel(REDUCE, 230, 270, stream=20)], {}, 1, 0),
        ([annotation("nccl:all_reduce", 0, 50), *call(10, 1)], {}, 1, 0),  # one inside the other
    ],
)  # fmt: skip
def test_calls_without_a_kernel_are_counted(rows, about, num, num_unseen):
    assert told(*rows, **about)[1:] == (num, num_unseen)


def test_while_a_graph_is_captured_launches_have_no_kernels():
    capture = launch(1, 50)
    capture.name = "cudaStreamBeginCapture"
    assert told(*TWICE, *LOST, capture)[1:] == (3, 0)


def test_kernels_on_their_own_stream_are_suspects():
    rows = [kernel("mine::exchange", 0, 50, stream=27), kernel("cutlass::gemm", 0, 9, stream=7)]
    both = kernel("helper", 60, 70, stream=27), kernel("helper", 80, 90, stream=7)
    assert timeline_of(events(*rows, *both)).apart == {"mine::exchange": pytest.approx(50e-6)}
    nothing_known = [kernel("a", 0, 9), kernel("b", 10, 19), kernel("c", 0, 50, stream=27)]
    assert set(timeline_of(events(*nothing_known)).apart) == {"c"}
    beside_nccl = timeline_of(events(*rows, *TWICE))
    assert beside_nccl.operations and beside_nccl.apart == {"mine::exchange": pytest.approx(50e-6)}


def test_kernels_are_communication_if_the_reader_says_so():
    rows = [kernel("mine::exchange", 0, 50, stream=27), kernel("triton_poi_fused_x", 0, 9)]
    timeline = timeline_of(events(*rows), re.compile("exchange|fused"))
    assert [op.name for op in timeline.operations] == ["mine::exchange", "triton_poi_fused_x"]
    assert (timeline.num_named, len(timeline.compute)) == (2, 0)
