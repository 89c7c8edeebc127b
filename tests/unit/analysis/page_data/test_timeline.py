"""One traced step as three ranks went through it, moment by moment."""

import pytest

from scalebench.analysis.attribution import attribute
from scalebench.analysis.page_data.timeline import (
    HIDDEN,
    RankStep,
    ShownOperation,
    closed,
    evenly,
    median_step,
    step_timeline,
)
from scalebench.trace.intervals import intervals
from tests.builders.traced import (
    flat,
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
)

STEPS = {
    0: [(0, 20), (35, 135), (140, 340)],
    1: [(0, 20), (32, 131), (140, 340)],
    2: [(0, 20), (31, 129), (140, 340)],
}
"""The second step is the median one. It begins on rank 1 first and ends on rank 0 last."""
BEGUN = {0: 55, 1: 63, 2: 58}
"""When each rank begins its first all-reduce of that step, by rank 0's clock."""


def operations_of(rank, behind):
    """Operations of all steps, on a clock that is ``behind`` ms behind rank 0's."""
    begin = BEGUN[rank] - behind
    size = {"group_size": 3}
    first = make_operation(begin, 75 - behind, 1, num_bytes=700, sequence=1, **size)
    second = make_operation(82 - behind, 86 - behind, 1, ordinal=1, sequence=2, **size)
    before = make_operation(5, 10, 0, sequence=0, **size)
    after = make_operation(150, 160, 2, sequence=3, **size)
    return [before, second, first, after]


def launch():
    traces = [
        make_trace(
            operations_of(0, 0),
            compute=[(1, 3), (40, 60), (70, 90), (145, 147)],
            steps=STEPS[0],
            codec=flat([(90, 92), (150, 151)]),
            copies=flat([(65, 66), (88, 89), (100, 102), (200, 201)]),
            data=flat([(12, 13), (101, 103), (110, 115), (300, 310)]),
        ),
        make_trace(operations_of(1, 0), compute=[(40, 131)], steps=STEPS[1]),
        make_trace(operations_of(2, 3), compute=[(31, 129)], steps=STEPS[2], origin=3),
    ]
    records = [make_traced_record(rank, trace) for rank, trace in enumerate(traces)]
    return attribute(make_traced_result(*records, repeat=4, rank_batch=11))


def ms(*spans):
    """Spans in seconds after the step began on rank 1, 32 ms after the traces."""
    return tuple((pytest.approx((a - 32) / 1e3), pytest.approx((b - 32) / 1e3)) for a, b in spans)


def test_the_launch_and_its_median_step():
    found = step_timeline(launch())
    assert (found.suite, found.case, found.world_size, found.repeat) == ("ddp", "ddp", 3, 4)
    assert (found.step, found.step_s, found.num_ranks) == (1, 0.103, 3)
    assert found.not_apart is None
    assert [rank.rank for rank in found.ranks] == [0, 1, 2]


def test_every_moment_of_a_rank():
    """It waits from 55 ms for rank 1, which comes at 63, but computes until 60."""
    rank = step_timeline(launch()).ranks[0]
    assert rank.spans == {
        "compute": ms((40, 60), (70, 90)),
        "codec": ms((90, 92)),
        "wait": ms((60, 63)),
        "exposed_transfer": ms((63, 70)),
        "copies": ms((100, 102)),
        "data_stall": ms((102, 103), (110, 115)),
        "other_idle": ms((35, 40), (92, 100), (103, 110), (115, 135)),
        HIDDEN: ms((55, 60), (70, 75), (82, 86)),
    }


def test_operations_are_in_order_and_on_one_clock():
    ranks = step_timeline(launch()).ranks
    assert ranks[0].operations == (
        ShownOperation("all_reduce", 0, 700, 0.023, 0.043),
        ShownOperation("all_reduce", 1, 1000, 0.05, 0.054),
    )
    for rank in ranks:
        assert rank.operations[0].start_s == (BEGUN[rank.rank] - 32) / 1e3
        assert rank.operations[1].end_s == 0.054
    assert ranks[1].spans["compute"] == ms((40, 131))
    assert ranks[2].spans["compute"] == ms((34, 132))


def test_what_a_rank_did_in_all_is_the_sum_of_its_spans():
    rank = RankStep(0, {"compute": ((1.0, 3.0), (4.0, 4.5))}, ())
    assert (rank.total_s("compute"), rank.total_s("wait")) == (2.5, 0)


def test_of_more_than_sixteen_ranks_sixteen_are_shown():
    def shown(num_ranks):
        records = [
            make_traced_record(rank, make_trace([make_operation(40, 50, group_size=num_ranks)]))
            for rank in range(num_ranks)
        ]
        found = step_timeline(attribute(make_traced_result(*records, rank_batch=1)))
        assert found.num_ranks == num_ranks
        return [rank.rank for rank in found.ranks]

    assert shown(16) == list(range(16))
    assert shown(17) == [*range(8), *range(9, 17)]  # 7.47 is rank 7, 8.53 is rank 9


def test_where_transfer_and_wait_are_not_apart_nothing_is_waited_for():
    """Rank 1 has an operation more than rank 0."""
    traces = [
        make_trace([make_operation(40, 70, sequence=0)], [(0, 30)]),
        make_trace(
            [make_operation(60, 70, sequence=0), make_operation(80, 90, sequence=1)], [(0, 30)]
        ),
    ]
    records = [make_traced_record(rank, trace) for rank, trace in enumerate(traces)]
    found = step_timeline(attribute(make_traced_result(*records)))
    assert found.not_apart is not None
    assert found.ranks[0].spans["wait"] == ()
    assert found.ranks[0].spans["exposed_transfer"] == ((0.04, 0.07),)


@pytest.mark.parametrize(
    ("lengths", "step"),
    [
        ([50, 10, 40, 20, 30], 4),  # of 20, 30 and 40 the one in the middle
        ([40, 10, 30, 20], 2),  # of 20 and 30 the longer
        ([40, 30], 0),
        ([40], 0),
    ],
)
def test_the_median_step_is_one_of_the_typical_ones(lengths, step):
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    steps = [(end - own, end) for own, end in zip(lengths, ends, strict=True)]
    record = make_traced_record(0, make_trace(steps=steps))
    assert median_step(attribute(make_traced_result(record))) == step


@pytest.mark.parametrize(
    ("gap_ns", "num_spans"),
    [(49_999, 1), (50_000, 1), (50_001, 2)],  # a 2000th of 100 ms
)
def test_gaps_that_nobody_sees_are_closed(gap_ns, num_spans):
    gap = gap_ns / 1e6
    trace = make_trace(compute=[(10, 20), (20 + gap, 40)])
    (rank,) = step_timeline(attribute(make_traced_result(make_traced_record(0, trace)))).ranks
    assert len(rank.spans["compute"]) == num_spans
    assert rank.spans["compute"][0][0] == 0.01 and rank.spans["compute"][-1][1] == 0.04
    idle = rank.total_s("other_idle")
    assert idle == pytest.approx(0.07 if num_spans == 1 else 0.07 + gap / 1e3, abs=1e-12)


def test_closing_gaps_leaves_the_ends_where_they_are():
    spans = intervals([(3, 5), (7, 9), (12, 20)])
    assert closed(spans, 2).tolist() == [[3, 9], [12, 20]]
    assert closed(spans, 3).tolist() == [[3, 20]]
    assert closed(spans, 0).tolist() == spans.tolist()
    assert closed(intervals([]), 5).tolist() == []


def test_items_are_chosen_evenly():
    assert evenly(range(10), 4) == [0, 3, 6, 9]
    assert evenly([10, 20, 30, 40, 50, 60], 3) == [10, 30, 60]
    assert evenly([4, 5, 6], 3) == [4, 5, 6]
    assert evenly([4, 5, 6, 7], 3) == [4, 6, 7]
