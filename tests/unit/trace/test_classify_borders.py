"""Timelines where the first or the last event of a trace is the one that counts."""

import pytest

from scalebench.trace.classify import timeline_of
from scalebench.trace.intervals import length
from tests.builders.traces import US, Event, annotation, events, kernel, launch, op

GENERIC = "ncclDevKernel_Generic(ncclDevComm*, unsigned long, ncclWork*)"
STEP = "Optimizer.step#SGD.step"


def test_what_gloo_copies_inside_the_first_event_of_a_trace_is_no_computation():
    timeline = timeline_of(
        events(
            annotation("gloo:all_reduce", 10, 20, thread=3),
            op("aten::copy_", 12, 15, thread=3),
            op("aten::mm", 11, 14, thread=1),
        )
    )
    assert timeline.compute.tolist() == [[11 * US, 14 * US]]


def test_suspects_have_their_seconds():
    timeline = timeline_of(
        events(
            kernel("all_gather_gemm", 0, 2.5e6),
            kernel("own(nvshmem_team_t)", 10, 11),
            kernel("all_gather_gemm", 3e6, 3.5e6),
            kernel("gemm", 0, 5),
        )
    )
    assert timeline.unknown == {"all_gather_gemm": 3.0, "own(nvshmem_team_t)": 1e-6}


def test_an_operation_that_nothing_asked_for_was_asked_for_when_it_began():
    """Not when the last event of the trace began: it began earlier, in another phase."""
    timeline = timeline_of(
        events(
            annotation(STEP, 50, 90),
            annotation("gloo:all_reduce", 60, 80, thread=2),
            op("aten::mm", 10, 20),
        )
    )
    (operation,) = timeline.operations
    assert (operation.phase, operation.enqueued_ns) == ("optimizer", None)
    assert (operation.start_ns, operation.end_ns, operation.stream) == (60 * US, 80 * US, 2)


def test_an_operation_is_asked_for_no_later_than_it_begins():
    """A send may be annotated before its operator is: then its own beginning counts."""
    timeline = timeline_of(
        events(
            op("c10d::send", 61, 62),
            annotation(STEP, 60.5, 90),
            annotation("gloo:send", 60, 80),
            op("aten::mm", 10, 20),
        )
    )
    (operation,) = timeline.operations
    assert (operation.phase, operation.enqueued_ns) == ("forward", 60 * US)


def test_an_all_gather_has_the_size_of_its_own_group():
    """Its metadata tells the group's size but no elements; the annotation what a rank hands in."""
    told = {"Collective name": "_allgather_base", "Group size": 3, "Process Group Name": "7"}
    shapes = {"Input Dims": [[50]], "Input type": ["float"]}
    rows = (
        annotation("nccl:_all_gather_base", 10, 30, **shapes),
        launch(12, 5),
        kernel(GENERIC, 40, 50, 5, 20, **told),
    )
    for groups in ({}, {"7": 3, "8": 9}, {"8": 9}):
        (operation,) = timeline_of(events(*rows, groups=groups)).operations
        assert (operation.kind, operation.num_bytes) == ("all_gather", 3 * 50 * 4)
        assert (operation.group, operation.group_size) == ("7", 3)
        assert (operation.dtype, operation.enqueued_ns) == ("float32", 12 * US)


def test_where_one_group_is_listed_it_is_that_of_every_operation():
    rows = (
        annotation("nccl:_all_gather_base", 10, 30, **{"Input Dims": [[5]], "Input type": ["int"]}),
        launch(12, 5),
        kernel(GENERIC, 40, 50, 5, 20),
    )
    (operation,) = timeline_of(events(*rows, groups={"world": 4})).operations
    assert (operation.group, operation.group_size) == ("world", 4)
    assert (operation.num_bytes, operation.dtype) == (4 * 5 * 4, "int32")
    (operation,) = timeline_of(events(*rows, groups={"a": 4, "b": 2})).operations
    assert (operation.group, operation.group_size, operation.num_bytes) == (None, None, None)


def test_the_extent_is_that_of_all_but_the_profilers_own_spans():
    rows = (
        Event("other", "Trace", 0, 500),
        Event("cpu_op", "aten::mm", 20, 60),
        Event("user_annotation", "mine", 10, 30),
    )
    assert timeline_of(events(*rows)).extent == (10 * US, 60 * US)
    assert timeline_of(events(rows[0])).extent == (0, 0)


def test_own_marks_and_steps_by_name_and_start():
    timeline = timeline_of(
        events(
            annotation("ProfilerStep#2", 50, 90),
            annotation("ProfilerStep#1", 10, 50),
            annotation("scalebench.data", 12, 14),
            annotation("scalebench.data", 13, 20),
            annotation("scalebench.codec", 30, 31),
        )
    )
    assert timeline.steps.tolist() == [[10 * US, 50 * US], [50 * US, 90 * US]]
    assert {name: spans.tolist() for name, spans in timeline.annotations.items()} == {
        "data": [[12 * US, 20 * US]],
        "codec": [[30 * US, 31 * US]],
    }
    assert length(timeline.compute) == 0


@pytest.mark.parametrize("thread", [1, 2])
def test_a_wait_takes_time_off_the_operators_of_its_own_thread_alone(thread):
    timeline = timeline_of(
        events(
            op("aten::mm", 10, 40, thread=1),
            op("_c10d_functional::wait_tensor", 20, 30, thread=thread),
            op("aten::add", 15, 18, thread=2),
        )
    )
    whole = [[10 * US, 40 * US]]
    parts = [[10 * US, 20 * US], [30 * US, 40 * US]]
    assert timeline.compute.tolist() == (parts if thread == 1 else whole)


def test_a_codec_whose_mark_is_the_first_event_of_a_trace():
    """Kernels count by where they were asked for; one of them by nobody."""
    timeline = timeline_of(
        events(
            annotation("scalebench.encode", 10, 20),
            annotation("scalebench.decode", 30, 40),
            *(launch(at, number) for at, number in ((10, 1), (20, 2), (35, 3), (25, 4))),
            *(kernel("pack", 100 * number, 100 * number + 50, number) for number in (1, 2, 3, 4)),
            kernel("pack", 500, 550, 99),
        )
    )
    assert {name: spans.tolist() for name, spans in timeline.annotations.items()} == {
        "encode": [[100 * US, 150 * US], [200 * US, 250 * US]],
        "decode": [[300 * US, 350 * US]],
    }


def test_a_mark_without_kernels_is_an_empty_set_and_no_mark_is_none():
    timeline = timeline_of(events(annotation("scalebench.encode", 10, 20), kernel("gemm", 5, 9)))
    assert {name: spans.tolist() for name, spans in timeline.annotations.items()} == {"encode": []}
