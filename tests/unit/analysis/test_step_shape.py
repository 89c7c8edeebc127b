"""The shape of a step at N=1: every moment of it, by hand."""

import pytest

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.step_shape import NoShape, end_of_backward, mean_of, ready_ns, shape_of
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import StepShape
from scalebench.records.rank import Block
from tests.builders.traced import MS, make_operation, make_trace, make_traced_record
from tests.builders.traced import make_traced_result as result_of


def asked(at, phase="backward", ordinal=0, step=0, kind="all_reduce", num_bytes=1000, late=1):
    """An operation that the host asks for at ``at`` and that begins ``late`` ms later."""
    return make_operation(
        at + late, at + late + 2, step, kind=kind, ordinal=ordinal, phase=phase,
        num_bytes=num_bytes, enqueued_ns=round(at * MS), group_size=1,
    )  # fmt: skip


FIVE = [
    asked(20, "forward", 0, kind="all_gather", num_bytes=500),
    asked(160, "backward", 2, num_bytes=3000),
    asked(120, "backward", 1, num_bytes=2000),
    asked(190, "optimizer", 3, kind="broadcast", num_bytes=700),
    asked(195, "optimizer", 4, kind="barrier", num_bytes=None),
    asked(196, "optimizer", 5, num_bytes=0),
]
"""Of a step of 200 ms; the last two send nothing."""


def launch(operations=FIVE, steps=((0, 200),), clean=100, batch=32, **changes):
    trace = make_trace(operations, steps=steps)
    cell = {key: changes.pop(key) for key in ("device", "backend") if key in changes}
    record = make_traced_record(0, trace, clean=clean, **changes)
    return LaunchAttribution(result_of(record, rank_batch=batch, global_batch=batch, **cell))


def moments(shape):
    return [
        (r.op, r.size_bytes, pytest.approx(r.ready_s), pytest.approx(r.needed_s), r.num_ranks)
        for r in shape.requests
    ]


def test_every_request_of_a_traced_step_stands_in_a_clean_one():
    """Traced, the step takes 200 ms; clean 100. Gradients are needed when backward is over."""
    shape = shape_of([launch()])
    assert moments(shape) == [
        ("all_gather", 500, 0.010, 0.010, None),
        ("all_reduce", 2000, 0.060, 0.080, None),
        ("all_reduce", 3000, 0.080, 0.080, None),
        ("broadcast", 700, 0.095, 0.095, None),
    ]
    assert shape.batch_s == pytest.approx(0.080)
    assert shape.fixed_s == pytest.approx(0.020)
    assert (shape.num_samples, shape.part_step_s) == (32, {})


def test_on_a_gpu_what_counts_is_when_the_operation_began():
    shape = shape_of([launch(device="cuda", backend="nccl")])
    assert [r.ready_s for r in shape.requests] == pytest.approx([0.0105, 0.0605, 0.0805, 0.0955])
    assert ready_ns(asked(20), True) == 21 * MS
    assert ready_ns(asked(20), False) == 20 * MS
    unknown = asked(20).model_copy(update={"enqueued_ns": None})
    assert ready_ns(unknown, False) == 21 * MS


def test_the_moments_of_several_steps_are_the_mean_of_their_shares():
    """In a step of 200 ms after a tenth, in one of 100 that begins at 500 after three tenths."""
    operations = [asked(20, "forward"), asked(530, "forward", step=1)]
    shape = shape_of([launch(operations, steps=((0, 200), (500, 600)))])
    assert moments(shape) == [("all_reduce", 1000, 0.020, 0.020, None)]
    assert (shape.batch_s, shape.fixed_s) == (pytest.approx(0.1), 0.0)


def test_operations_that_were_asked_for_at_once_keep_their_order():
    operations = [
        asked(20, ordinal=2, num_bytes=22),
        asked(20, ordinal=0, num_bytes=20),
        asked(20, ordinal=1, num_bytes=21),
    ]
    assert [r.size_bytes for r in shape_of([launch(operations)]).requests] == [20, 21, 22]


def test_what_is_asked_for_after_the_step_is_asked_for_at_its_end():
    operations = [asked(120), asked(199, "optimizer", 1, kind="broadcast"),
                  asked(210, "optimizer", 2, kind="broadcast")]  # fmt: skip
    shape = shape_of([launch(operations)])
    assert [(r.ready_s, r.needed_s) for r in shape.requests] == [
        pytest.approx((0.060, 0.060)),
        pytest.approx((0.0995, 0.0995)),
        pytest.approx((0.1, 0.1)),
    ]


def test_steps_on_parts_of_the_batch_are_scaled_to_the_clean_window():
    """Next to them steps took 50 ms, in the clean window 100: all of it counts twice."""
    whole = launch(paired=50)
    record = whole.result.ranks[0]
    first = len(record.step_s)
    blocks = [*record.blocks, Block(phase="part", first=first, count=2, num_samples=8)]
    record = record.model_copy(
        update={"blocks": blocks, "step_s": [*record.step_s, 5.0, 0.03],
                "loss": [1.0] * (first + 2)}
    )  # fmt: skip
    result = whole.result.model_copy(update={"ranks": [record]})
    assert shape_of([LaunchAttribution(result)]).part_step_s == {8: pytest.approx(0.06)}


def test_a_step_that_asks_for_nothing_has_a_shape_only_where_that_may_be():
    silent = launch([asked(10, num_bytes=0)])
    with pytest.raises(NoShape, match="the trace shows no communication at N=1"):
        shape_of([silent])
    shape = shape_of([silent], may_be_silent=True)
    assert (shape.requests, shape.batch_s, shape.fixed_s) == ((), pytest.approx(0.1), 0.0)
    with pytest.raises(NoShape, match="no launch of the strategy at N=1 was traced"):
        shape_of([])


@pytest.mark.parametrize("other", [{"num_bytes": 1001}, {"kind": "all_gather"}])
def test_steps_that_send_something_else_have_no_common_shape(other):
    operations = [asked(20), asked(220, step=1, **other)]
    with pytest.raises(NoShape, match="the traced steps at N=1 differ in what they send"):
        shape_of([launch(operations, steps=((0, 200), (200, 400)))])


def request(ready, needed, op="all_reduce", size=1000):
    return CommRequest(op, size, ready, needed)


def test_the_mean_of_launches_is_the_mean_of_everything_in_them():
    first = StepShape((request(1.0, 2.0), request(3.0, 5.0)), 6.0, 1.0, 32, {8: 2.0, 16: 4.0})
    second = StepShape((request(2.0, 5.0), request(4.0, 9.0)), 9.0, 3.0, 32, {8: 3.0, 16: 7.0})
    third = StepShape((request(3.0, 5.0), request(8.0, 10.0)), 12.0, 2.0, 32, {8: 7.0, 16: 10.0})
    assert mean_of([first, second, third]) == StepShape(
        (request(2.0, 4.0), request(5.0, 8.0)), 9.0, 2.0, 32, {8: 4.0, 16: 7.0}
    )
    assert mean_of([second]) == second


def test_the_mean_of_launches_that_send_nothing_has_no_requests():
    shapes = [StepShape((), 6.0, 1.0, 32), StepShape((), 8.0, 2.0, 32)]
    assert mean_of(shapes) == StepShape((), 7.0, 1.5, 32)


@pytest.mark.parametrize("other", [request(1.0, 2.0, size=999), request(1.0, 2.0, "reduce")])
def test_launches_that_send_something_else_have_no_mean(other):
    shapes = [StepShape((one,), 6.0, 1.0, 32) for one in (request(1.0, 2.0), other)]
    with pytest.raises(NoShape, match="the launches at N=3 differ in what they send"):
        mean_of(shapes, 3)
    with pytest.raises(NoShape, match="the launches at N=1 differ in what they send"):
        mean_of(shapes)


def test_backward_ends_where_it_asks_for_the_last_time():
    operations = [asked(0, "forward"), asked(1), asked(2), asked(3, "optimizer")]
    assert end_of_backward(operations, [0.1, 0.4, 0.3, 0.9], 1.5) == 0.4
    assert end_of_backward(operations[:1], [0.1], 1.5) == 1.5
