"""When a step among several ranks asks and needs, by how far its computation had come."""

import pytest

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.shape_among_ranks import shape_among_ranks
from scalebench.analysis.step_shape import NoShape
from scalebench.costmodel.replay import CommRequest
from tests.builders.traced import flat, make_trace, make_traced_record, make_traced_result
from tests.unit.analysis.test_shape_among_ranks import BYTES, launched, sent, shape


def twice(operations, compute, steps=((0, 100),), **changes):
    """The shape of two ranks that do the same."""
    trace = make_trace(operations, compute, steps=steps, **changes)
    return shape(trace, trace)


def moments(found):
    return [(r.op, pytest.approx(r.ready_s), pytest.approx(r.needed_s)) for r in found.requests]


def test_what_the_computation_hides_is_needed_at_its_end_and_gradients_after_backward():
    operations = [
        sent("all_gather", 20, 60, "forward"),
        sent("all_reduce", 30, 40, "backward", 1),
        sent("reduce_scatter", 70, 80, "backward", 2),
        sent("broadcast", 90, 95, "optimizer", 3),
    ]
    found = twice(operations, [(0, 100)])
    assert moments(found) == [
        ("all_gather", 0.02, 0.06),
        ("all_reduce", 0.03, 0.07),
        ("reduce_scatter", 0.07, 0.08),
        ("broadcast", 0.09, 0.095),
    ]
    assert found.requests[0] == CommRequest(
        "all_gather", BYTES, pytest.approx(0.02), pytest.approx(0.06)
    )
    assert (found.batch_s, found.fixed_s) == pytest.approx((0.07, 0.03))
    assert found.num_samples == 32


def test_encoding_is_computation():
    """From 40 to 50 the rank encodes while its operation is on its way."""
    operations = [sent("all_reduce", 40, 60, "backward")]
    found = twice(operations, [(0, 40), (60, 100)], codec=flat([(40, 50)]))
    assert found.computing_s == pytest.approx(0.09)
    assert moments(found) == [("all_reduce", 0.04, 0.05)]


def test_time_before_an_operation_that_another_one_takes_does_not_count():
    """20 of the first 60 ms only communicate; the second operation ends at 90, in the open."""
    operations = [
        sent("all_gather", 20, 40, "forward"),
        sent("reduce_scatter", 60, 90, "backward", 1),
    ]
    found = twice(operations, [(0, 20), (40, 70), (90, 100)])
    assert found.computing_s == pytest.approx(0.06)
    assert moments(found) == [("all_gather", 0.02, 0.02), ("reduce_scatter", 0.04, 0.05)]
    assert (found.batch_s, found.fixed_s) == pytest.approx((0.04, 0.02))


def test_an_operation_that_ends_where_another_one_begins_to_be_waited_for_was_hidden():
    """The first of backward ends at 50, as the computation does; the last asks at 80."""
    operations = [
        sent("all_reduce", 30, 50, "backward"),
        sent("all_gather", 40, 60, "forward", 1),
        sent("all_reduce", 80, 85, "backward", 2),
    ]
    found = twice(operations, [(0, 50), (60, 100)])
    assert moments(found) == [
        ("all_reduce", 0.03, 0.07),
        ("all_gather", 0.04, 0.05),
        ("all_reduce", 0.07, 0.075),
    ]


def test_steps_that_do_not_begin_at_zero_are_told_from_their_beginning():
    later = [sent("all_gather", 320, 330, "forward"), sent("all_reduce", 370, 380, "backward", 1)]
    found = twice(later, [(200, 320), (330, 400)], steps=((300, 400),))
    assert found.computing_s == pytest.approx(0.09)
    assert moments(found) == [("all_gather", 0.02, 0.02), ("all_reduce", 0.06, 0.07)]


def test_what_lies_outside_of_a_step_is_put_to_its_ends():
    operations = [
        sent("all_gather", 90, 101, "forward", enqueued_ns=99_000_000),
        sent("all_reduce", 195, 215, "backward", 1),
    ]
    found = twice(operations, [(0, 300)], steps=((100, 200),))
    assert moments(found) == [("all_gather", 0.0, 0.001), ("all_reduce", 0.095, 0.1)]


def of_steps(*open_steps):
    """Three steps of 100, 100 and 100 ms in each of which an operation ends at 60 ms.

    In the open ones the rank waits for it from 50 on; backward asks once more, at 80.
    """
    operations, compute = [], []
    for step, is_open in enumerate(open_steps):
        at = 100 * step
        compute += [(at, at + 50), (at + 60, at + 100)] if is_open else [(at, at + 100)]
        for ordinal, (begin, end) in enumerate(((40, 60), (80, 90))):
            operation = sent("all_reduce", at + begin, at + end, "backward", ordinal)
            operations.append(operation.model_copy(update={"step": step}))
    steps = [(100 * i, 100 * i + 100) for i in range(len(open_steps))]
    return twice(operations, compute, steps=steps)


@pytest.mark.parametrize(
    ("open_steps", "needed_s"),
    [((True, True, False), (0.05 + 0.05 + 0.06) / 3), ((True, False), 0.075)],
)
def test_an_operation_was_waited_for_where_it_was_in_more_than_half_of_the_steps(
    open_steps, needed_s
):
    """Otherwise it is needed when backward ends: at 70 ms where it waits, at 80 where not."""
    found = of_steps(*open_steps)
    assert found.requests[0].needed_s == pytest.approx(needed_s)
    assert found.requests[0].ready_s == pytest.approx(0.04)
    num_open = sum(open_steps)
    computing_s = (0.09 * num_open + 0.1 * (len(open_steps) - num_open)) / len(open_steps)
    assert found.computing_s == pytest.approx(computing_s)


def test_operations_are_in_the_order_in_which_the_computation_asks_for_them():
    operations = [
        sent("broadcast", 30, 35, "optimizer", 2),
        sent("all_reduce", 30, 35, "optimizer", 1),
        sent("all_gather", 20, 25, "forward", 3),
    ]
    found = twice(operations, [(0, 100)])
    assert [r.op for r in found.requests] == ["all_gather", "all_reduce", "broadcast"]
    assert (found.batch_s, found.fixed_s) == pytest.approx((0.1, 0.0))


def test_on_a_gpu_an_operation_is_ready_when_it_begins():
    operations = [sent("all_reduce", 50, 60, "backward", enqueued_ns=10_000_000)]
    trace = make_trace(operations, [(0, 100)])
    assert shape(trace, trace).requests[0].ready_s == pytest.approx(0.01)
    on_gpu = shape(trace, trace, device="cuda", backend="nccl")
    assert on_gpu.requests[0].ready_s == pytest.approx(0.05)


def test_what_sends_nothing_is_no_request():
    operations = [
        sent("barrier", 10, 11, "forward", num_bytes=None),
        sent("all_gather", 20, 21, "forward", 1, num_bytes=0, group_size=1),
        sent("all_reduce", 30, 31, "forward", 2, group_size=None),
    ]
    assert moments(twice(operations, [(0, 100)])) == [("all_reduce", 0.03, 0.031)]


def test_steps_that_differ_in_what_they_send_have_no_shape():
    operations = [
        sent("all_reduce", 30, 40, "backward"),
        sent("all_reduce", 130, 140, "backward", num_bytes=7).model_copy(update={"step": 1}),
    ]
    with pytest.raises(NoShape, match="the traced steps at N=2 differ in what they send"):
        twice(operations, [(0, 200)], steps=((0, 100), (100, 200)))


def test_the_shape_of_several_launches_is_their_mean():
    def launch(at):
        trace = make_trace([sent("all_reduce", at, at + 10, "backward")], [(0, 100)])
        records = [make_traced_record(rank, trace, clean=100) for rank in range(2)]
        return LaunchAttribution(make_traced_result(*records))

    found = shape_among_ranks([launch(20), launch(50)])
    assert moments(found) == [("all_reduce", 0.035, 0.045)]
    assert found.num_samples == 16


@pytest.mark.parametrize(
    ("facts", "divided"),
    [
        ({"groups": [{"name": "Megatron tensor", "ranks": 1}]}, False),
        ({"groups": [{"name": "Megatron tensor", "ranks": None}]}, False),
        ({"groups": [{"name": "Megatron tensor"}]}, False),
        ({"groups": [{"name": "Megatron tensor", "ranks": 2}]}, True),
        ({"groups": [{"name": "world", "ranks": 2}, "text"]}, False),
        ({"groups": [{"ranks": 2}]}, False),
        ({"wrappers": [{"kind": "DTensor"}, {"kind": "FullyShardedDataParallel"}]}, False),
        ({"wrappers": [{"kind": "DTensor"}, {"kind": "DistributedDataParallel"}]}, True),
        ({"wrappers": [{"kind": "FSDPModule"}]}, False),
        ({"wrappers": [{"kind": "_PipelineStageBase"}]}, True),
        ({"wrappers": ["DTensor"], "groups": None}, False),
    ],
)
def test_who_divides_the_model_by_hand_is_told_by_wrappers_and_groups(facts, divided):
    trace = make_trace([sent("all_reduce", 30, 40, "backward")], [(0, 100)])
    if divided:
        with pytest.raises(NoShape, match="does not follow from N=2"):
            shape(trace, trace, facts=facts)
    else:
        assert shape(trace, trace, facts=facts).requests


@pytest.mark.parametrize(("size", "known"), [(2, True), (1, False)])
def test_groups_of_all_ranks_have_a_size_that_is_known_elsewhere(size, known):
    trace = make_trace([sent("all_reduce", 30, 40, "backward", size=size)], [(0, 100)])
    if known:
        assert shape(trace, trace).requests
    else:
        with pytest.raises(NoShape, match="at N=2 the script sends in groups of 1"):
            shape(trace, trace)


def test_a_receive_is_no_collective_either():
    with pytest.raises(NoShape, match="does not follow from N=3"):
        trace = make_trace([sent("recv", 1, 2, "forward")])
        shape_among_ranks([LaunchAttribution(launched(3, [trace] * 3))])
