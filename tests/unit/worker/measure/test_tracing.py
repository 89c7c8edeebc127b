import gzip
import json
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from scalebench.trace.breakdown import break_down
from scalebench.trace.events import length
from scalebench.trace.files.kineto import read_kineto
from scalebench.trace.operations.classify import timeline_of
from scalebench.trace.operations.communication_kernels import STEP
from scalebench.worker.measure import tracing
from scalebench.worker.measure.tracing import Capture, read_events, step_spans, trace_record, traced
from tests.examples import cases

GOLDEN = Path(__file__).parents[3] / "golden" / "traces"
MS = 1_000_000


TOLD = {
    "name": lambda event, _: event["name"],
    "activity_type": lambda event, _: event["cat"],
    "start_ns": lambda event, _: round(event["ts"] * 1000),
    "duration_ns": lambda event, _: round(event["dur"] * 1000),
    "start_thread_id": lambda event, _: event["tid"],
    "device_resource_id": lambda _, args: args["stream"],
    "correlation_id": lambda _, args: args.get("correlation") or args.get("External id") or 0,
    "linked_correlation_id": lambda _, args: args.get("External id") or 0,
    "shapes": lambda _, args: args.get("Input Dims", []),
    "dtypes": lambda _, args: args.get("Input type", []),
    "extra_meta": lambda _, args: {name: json.dumps(value) for name, value in args.items()},
}


class KinetoTwin:
    """Stands in for torch's ``_KinetoEvent``; made of an event of a recorded file."""

    def __init__(self, recorded):
        self.recorded, self.args = recorded, recorded.get("args", {})

    def __getattr__(self, name):
        return partial(TOLD[name], self.recorded, self.args)


def twins_of(path):
    recorded = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    kinds = {"cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime"}
    return [KinetoTwin(e) for e in recorded if e.get("ph") == "X" and e.get("cat") in kinds]


@cases("name", "nccl-2.17_2ranks_rank0", "nccl-sendrecv_128ranks_rank1")
def test_a_gpus_events_from_memory_say_what_their_file_says(name):
    path = GOLDEN / f"{name}.json.gz"
    events, _ = read_events(twins_of(path), [], [])
    memory, file = timeline_of(events), timeline_of(read_kineto(path))
    assert memory.on_gpu
    types = filter(None, events.types.values())
    assert sorted(map(str, types)) == sorted(map(str, read_kineto(path).types.values()))
    told = [[(op.kind, op.num_bytes) for op in one.operations] for one in (memory, file)]
    assert told[0] == told[1]
    for name in ("communication", "compute"):
        mine, theirs = getattr(memory, name), getattr(file, name)
        assert length(mine) == pytest.approx(length(theirs), rel=1e-4)


@cases("from_memory", True, False)
def test_a_real_profile_is_put_on_the_clock_of_the_steps(from_memory, monkeypatch):
    """torch before 2.13 says only in its file what an event is; both ways tell the same."""
    monkeypatch.setattr(tracing, "FROM_MEMORY", from_memory)
    with traced(torch.device("cpu")):
        torch.ones(8).sum()
    with traced(torch.device("cpu")) as capture:
        for _ in range(40):  # a busy machine may take the processor away between two clocks
            with capture.step():
                torch.ones(1000).sum()
    events = capture.events
    marks = events.start_ns[[events.names[i] == STEP for i in events.name]]
    assert np.median(np.abs(np.sort(marks) - np.array(capture.step_ns))) < 5 * MS
    assert capture.clock_error_s < 1e-3
    assert "aten::sum" in events.names


def test_on_the_cpu_threads_that_training_did_not_start_are_seen():
    """PowerSGD's second all-reduce begins on a thread of gloo's."""

    def elsewhere():
        torch.ones(1000).cumsum(0)

    with traced(torch.device("cpu")) as capture, capture.step():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        torch.ones(1000).sum()
    assert {"aten::cumsum", "aten::sum"} <= set(capture.events.names)


def events_of(raw, *marks_ms):
    marks = [ms * MS for ms in marks_ms]
    return read_events(raw, marks, marks)[0]


def twin(category, name, start, end, **args):
    recorded = {"cat": category, "name": name, "ts": start * 1e3, "dur": (end - start) * 1e3}
    return KinetoTwin({**recorded, "tid": 1, "args": {"stream": 7, **args}})


def asynchronous_steps():
    """Two steps issued at 0 and 10 ms; the device works on them from 5 to 18 and from 20 to 40."""
    return [
        twin("user_annotation", STEP, 0, 9),
        twin("user_annotation", STEP, 10, 19),
        twin("cuda_runtime", "cudaLaunchKernel", 1, 2, correlation=1),
        twin("cuda_runtime", "cudaLaunchKernel", 11, 12, correlation=2),
        twin("cuda_runtime", "cudaLaunchKernel", 13, 14, correlation=3),
        twin("kernel", "gemm", 5, 18, correlation=1),
        twin("kernel", "gemm", 20, 26, correlation=2),
        twin("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 24, 40, correlation=3),
    ]


def test_waiting_for_a_steps_first_kernel_belongs_to_that_step():
    """The host takes 6 ms to launch anything; the device has long done the step before."""
    raw = [
        twin("user_annotation", STEP, 0, 20),
        twin("user_annotation", STEP, 20, 40),
        twin("user_annotation", STEP, 40, 60),
        *(twin("cuda_runtime", "cudaLaunchKernel", t, t + 1, correlation=t) for t in (1, 26, 46)),
        *(twin("kernel", "gemm", t + 1, t + 9, correlation=t) for t in (1, 26, 46)),
    ]
    events = events_of(raw, 0, 20, 40)
    assert (step_spans(events) / MS).tolist() == [[0, 20], [20, 40], [40, 60]]
    trace = trace_record([Capture(step_ns=[0, 20 * MS, 40 * MS], events=events)])
    assert break_down(0, trace).other_idle_s == pytest.approx(0.012)  # 20 - 8 of each step


def test_the_record_holds_every_step_but_the_first_of_its_block():
    """On a GPU a step ends when the device has done what was asked in it."""
    events = events_of(asynchronous_steps(), 0, 10)
    assert (step_spans(events) / MS).tolist() == [[0, 18], [18, 40]]
    capture = Capture(step_ns=[0, 10 * MS], events=events)
    trace = trace_record([capture, capture])
    assert [(a / MS, b / MS) for a, b in trace.steps] == [(18, 40), (18, 40)]
    assert trace.compute == [20 * MS, 26 * MS]
    first, second = trace.operations
    assert (first.kind, first.step, second.step) == ("all_reduce", 0, 1)
    assert (first.start_ns, first.end_ns, first.group_size) == (24 * MS, 40 * MS, None)
    assert first.enqueued_ns == 13 * MS
    assert trace_record([]) is None


@cases("dtype, number", ("c10::BFloat16", 1), ("float", 0))
def test_a_gpus_matrix_products_in_16_bits_are_stored_with_their_shapes(dtype, number):
    """The host asks for that of the second step while the device still does the first."""
    told = {"Input Dims": [[64, 32], [32, 16]], "Input type": [dtype, dtype]}
    asked = [twin("cpu_op", "aten::mm", t, t + 2, **told) for t in (0.5, 10.5)]
    events = events_of([*asynchronous_steps(), *asked], 0, 10)
    trace = trace_record([Capture(step_ns=[0, 10 * MS], events=events)] * 2)
    assert len(trace.products) == number
    for one in trace.products:
        assert (one.m, one.n, one.k, one.count) == (64, 16, 32, 2)
        assert one.total_s == pytest.approx(2 * 0.006)


LOST = [event for event in asynchronous_steps() if event.correlation_id() != 3]
LAUNCH = twin("cuda_runtime", "cudaLaunchKernel", 13, 14, correlation=3)
MARKS = asynchronous_steps()[:2]
CALLED = twin("user_annotation", "nccl:all_reduce", 3, 4)


@cases(
    "raw, on_gpu, told",
    ([*LOST, LAUNCH], True, "1 of 2 launches"),
    ([*MARKS, LAUNCH], False, "CUPTI gave no GPU kernel"),
    ([*MARKS, CALLED], False, "CUPTI gave no GPU kernel"),
    (MARKS, True, "CUPTI gave no GPU kernel"),
)
def test_a_trace_that_cannot_be_true_is_refused_with_what_to_do(raw, on_gpu, told):
    capture = Capture(step_ns=[0, 10 * MS], events=events_of(raw, 0, 10))
    with pytest.raises(ValueError, match=told) as refused:
        trace_record([capture], on_gpu=on_gpu)
    said = str(refused.value)
    assert "--no-trace" in said and "record it again" not in said.lower()


def test_copies_of_a_gpu_are_stored_step_by_step():
    """Copies at 6 ms, before the step that counts, and at 18.5 ms; a fill during the all-reduce."""
    copies = [
        twin("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 6, 8),
        twin("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 18.5, 19.5),
        twin("gpu_memset", "Memset (Device)", 30, 32),
    ]
    events = events_of([*asynchronous_steps(), *copies], 0, 10)
    trace = trace_record([Capture(step_ns=[0, 10 * MS], events=events)])
    assert [t / MS for t in trace.copies] == [18.5, 19.5, 30, 32]
    found = break_down(0, trace)
    assert found.copies_s == pytest.approx(0.003)
    assert found.copies_alone_s == pytest.approx(0.001)
    assert found.comm_beside_copies_s == pytest.approx(0.002)
    assert found.other_idle_s == pytest.approx(0.001)  # of the 2 ms before the first kernel
