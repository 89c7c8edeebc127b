"""The pace of the job: what a step takes where ranks do not end it at the same time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.timing.steps import launch_step_s, steps_of_block
from scalebench.records.measured.rank import Block
from scalebench.spec import LocalSgd, ParameterServer
from tests.builders.runs import make_cell, make_record, make_result
from tests.builders.tracing.traced import (
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
)

TWO = make_cell("ddp", 2)


@pytest.mark.parametrize("strategy", [LocalSgd(period=4), ParameterServer()])
def test_without_lockstep_a_step_takes_the_mean_of_its_block(strategy):
    """With its first step, in which the exchange may be."""
    blocks = [Block(phase="clean", first=0, count=4), Block(phase="clean", first=4, count=4)]
    ranks = [
        make_record(0, step_s=[0.1, 0.1, 0.1, 0.9, 0.1, 0.1, 0.1, 0.5], blocks=blocks),
        make_record(1, step_s=[0.1, 0.1, 0.1, 0.8, 0.1, 0.1, 0.1, 0.6], blocks=blocks),
    ]
    local = make_cell("local", 2, strategy=strategy)
    assert launch_step_s(make_result(local, ranks=ranks)) == pytest.approx((0.3 + 0.225) / 2)
    assert launch_step_s(make_result(TWO, ranks=ranks)) == pytest.approx((1.1 + 0.8) / 6)


step_times = st.lists(st.floats(1e-4, 10), min_size=2, max_size=40)


@given(st.data(), step_times, st.integers(1, 8))
def test_the_steps_of_a_block_sum_to_its_time(data, first, num_ranks):
    others = st.lists(st.floats(1e-4, 10), min_size=len(first), max_size=len(first))
    each = [first, *(data.draw(others) for _ in range(num_ranks - 1))]
    block = Block(phase="clean", first=0, count=len(first))
    ranks = [make_record(r, step_s=steps, blocks=[block]) for r, steps in enumerate(each)]
    pace = steps_of_block(ranks, block)
    assert len(pace) == len(first) - 1
    assert (pace > 0).all()
    assert pace.sum() == pytest.approx(max(map(sum, each)) - max(s[0] for s in each))
    if num_ranks == 1:
        assert pace.tolist() == first[1:]


@pytest.mark.parametrize(
    ("kind", "wire", "payload"),
    [
        ("all_reduce", 1500, 1000),
        ("all_gather", 750, 250),
        ("reduce_scatter", 750, 1000),
        ("all_to_all", 750, 1000),
        ("broadcast", 750, 1000),
        ("reduce", 750, 1000),
        ("send", 1000, 1000),
        ("recv", 0, 0),
        ("barrier", 0, 0),
    ],
)
def test_what_a_rank_of_four_sends_and_hands_over_of_a_thousand_bytes(kind, wire, payload):
    """By the ring's law; of operations with a root the mean over the ranks."""
    trace = make_trace([make_operation(50, 75, kind=kind, num_bytes=1000, group_size=4)])
    found = LaunchAttribution(make_traced_result(*(make_traced_record(r, trace) for r in range(4))))
    assert (found.wire_bytes(0), found.payload_bytes(0)) == (wire, payload)
