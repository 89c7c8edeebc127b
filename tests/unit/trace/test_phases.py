"""When the phase changes, to the nanosecond."""

import numpy as np
import pytest

from scalebench.trace.phases import Phases, phases_of
from tests.builders.traces import US, annotation, events, kernel, op

BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"
NS = 1 / US


def changes(*rows):
    """Return (moment in µs, phase) for every mark."""
    found = phases_of(events(*rows))
    phases = found.at(found.starts_ns)
    return [(start / US, phase) for start, phase in zip(found.starts_ns, phases, strict=True)]


def test_a_moment_has_the_phase_of_the_last_mark_at_or_before_it():
    marks = Phases(np.array([10, 20, 30]), np.array([1, 2, 3], dtype=np.int8))
    assert marks.at(np.array([9, 10, 19, 20, 29, 30, 99])) == [
        *("unknown", "forward", "forward", "backward"),
        *("backward", "optimizer", "optimizer"),
    ]
    nothing = Phases(np.array([], dtype=np.int64), np.array([], dtype=np.int8))
    assert nothing.at(np.array([5])) == ["unknown"]


def test_a_step_by_its_marks():
    assert changes(
        op("aten::mm", 10, 20),
        op(BACKWARD, 30, 40, thread=2),
        op("aten::mm", 32, 35, thread=2),  # a part of backward
        annotation("Optimizer.step#SGD.step", 50, 60),
        op("aten::add_", 50, 51),
        annotation("Optimizer.zero_grad#SGD.zero_grad", 70, 80),
        op("aten::zero_", 75, 76),
        op("aten::mm", 90, 95),
        kernel("aten::not_on_the_host", 1, 2),
    ) == [(10, "forward"), (30, "backward"), (50, "optimizer"), (90, "forward")]


@pytest.mark.parametrize(
    ("begin", "counts"),
    [
        (30 - NS, True),
        (30, False),
        (40, False),
        (40 + NS, True),
        (50, False),
        (60, False),
        (60 + NS, True),
    ],
)
def test_an_operator_that_begins_inside_backward_or_optimizer_is_not_forward(begin, counts):
    """Both ends count as inside."""
    found = changes(
        op(BACKWARD, 30, 40),
        annotation("Optimizer.step#SGD.step", 50, 60),
        op("aten::mm", begin, 99),
    )
    expected = [(30, "backward"), (50, "optimizer"), *([(begin, "forward")] if counts else [])]
    assert found == [(pytest.approx(at), phase) for at, phase in sorted(expected)]


@pytest.mark.parametrize(
    ("thread", "begin", "counts"), [(1, 15, False), (1, 21, True), (1, 9, True), (2, 15, True)]
)
@pytest.mark.parametrize("around", ["gloo:all_reduce", "nccl:all_gather", "c10d::allreduce_"])
def test_an_operator_inside_a_collective_of_its_thread_is_not_forward(
    around, thread, begin, counts
):
    found = changes(op(around, 10, 20), op("aten::copy_", begin, begin + 1, thread=thread))
    assert found == ([(begin, "forward")] if counts else [])


def test_every_thread_has_its_own_collectives():
    found = changes(
        op("gloo:all_reduce", 10, 20, thread=3),
        op("gloo:all_reduce", 30, 40, thread=5),
        op("aten::copy_", 32, 33, thread=3),
        op("aten::copy_", 12, 13, thread=3),
        op("aten::copy_", 34, 35, thread=5),
        op("aten::copy_", 14, 15, thread=5),
    )
    assert found == [(14, "forward"), (32, "forward")]


def test_of_marks_at_one_moment_the_later_phase_counts():
    optimizer, backward = annotation("Optimizer.step#A", 10, 11), op(BACKWARD, 10, 11)
    speaks = annotation("forward", 10, 11)
    assert changes(optimizer, backward)[-1] == (10, "optimizer")
    assert phases_of(events(optimizer, backward)).codes.tolist() == [2, 3]
    assert phases_of(events(backward, speaks)).codes.tolist() == [2]


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("forward", "forward"),
        ("## Forward ##", "forward"),
        ("DistributedDataParallel.forward", "forward"),
        ("FSDP::pre_forward", "forward"),
        ("FSDP::pre_backward_hook", "backward"),
        ("backward", "backward"),
        ("forward_backward", None),
        ("forwarding", None),
        ("forward2", None),
        ("torch::forward", None),
        ("<forward op>", None),
        ("step", None),
    ],
)
def test_annotations_that_speak_of_one_phase(name, phase):
    assert changes(annotation(name, 10, 20)) == ([] if phase is None else [(10, phase)])


def test_what_a_kernel_is_called_is_no_mark():
    assert changes(kernel("forward", 10, 20), kernel("Optimizer.step#A", 30, 40)) == []
