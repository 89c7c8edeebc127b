"""How tokens spread over experts, figure by figure: two launches of four ranks in two groups."""

import pytest

from scalebench.analysis.rows.experts import counted_steps, experts_of_row, load_of, tokens_of
from scalebench.records.rank import Block
from scalebench.records.trace import Trace, TracedOperation
from scalebench.spec import Expert
from tests.builders.runs import make_cell, make_record, make_result

BLOCKS = [
    Block(phase="warmup", first=0, count=2),
    Block(phase="clean", first=2, count=3),
    Block(phase="paired", first=5, count=2),
]


def sent(start_ns, end_ns, kind="all_to_all"):
    return TracedOperation(
        kind=kind, name=kind, step=0, ordinal=0, start_ns=start_ns, end_ns=end_ns
    )


def trace(*operations, experts=(), steps=((0, 100), (100, 200))):
    return Trace(origin_ns=0, steps=list(steps), operations=list(operations), experts=list(experts))


def record(rank, kept, here, chosen=None, steps=(1, 2, 4), traced=None, blocks=BLOCKS):
    """A rank's load by step, layer and expert; it has two of four experts of each layer."""
    load = {"steps": list(steps), "ranks": 2, "kept": kept, "chosen": chosen or kept, "here": here}
    return make_record(rank, facts={"expert_load": load}, trace=traced, blocks=blocks)


def launch(*ranks):
    return make_result(
        make_cell("expert", len(ranks), strategy=Expert(), rank_batch=8), ranks=ranks
    )


WARM = [[90, 0, 0, 0], [0, 0, 0, 90]]
KEPT = {
    0: [WARM, [[3, 1, 0, 0], [1, 1, 1, 1]], [[2, 2, 2, 2], [0, 4, 0, 0]]],
    1: [WARM, [[1, 1, 1, 1], [0, 0, 0, 4]], [[0, 0, 0, 4], [2, 0, 2, 0]]],
}
CHOSEN = {
    0: [WARM, [[5, 1, 0, 0], [1, 1, 1, 1]], [[2, 2, 2, 2], [0, 6, 0, 0]]],
    1: KEPT[1],
}
HERE = {
    0: [[[90, 0], [0, 0]], [[4, 2], [1, 1]], [[2, 2], [2, 4]]],
    1: [[[0, 0], [0, 90]], [[1, 1], [1, 5]], [[2, 6], [2, 0]]],
}
"""Of both ranks together step 2 has 4 2 1 1 and 1 1 1 5; step 4 has 2 2 2 6 and 2 4 2 0."""


def two(traces=(None, None), order=(0, 1)):
    """Two ranks of a launch, in some order."""
    return launch(*(record(r, KEPT[r], HERE[r], CHOSEN[r], traced=traces[r]) for r in order))


def test_only_steps_of_clean_blocks_count_and_all_where_there_are_none():
    assert counted_steps(two(), clean=True) == [1, 2]
    assert counted_steps(two(), clean=False) == [0, 1, 2]
    at_edges = launch(record(0, KEPT[0], HERE[0], steps=[1, 2, 3, 4, 5]))
    assert counted_steps(at_edges, clean=True) == [1, 2, 3]
    behind = launch(record(0, KEPT[0], HERE[0], steps=[5, 6, 7]))
    assert counted_steps(behind, clean=True) == [0, 1, 2]
    warm = [Block(phase="warmup", first=0, count=9)]
    assert counted_steps(launch(record(0, KEPT[0], HERE[0], blocks=warm)), clean=True) == [0, 1, 2]


def test_tokens_are_those_of_all_ranks():
    assert tokens_of(two(), "kept").tolist() == [
        [[4, 2, 1, 1], [1, 1, 1, 5]],
        [[2, 2, 2, 6], [2, 4, 2, 0]],
    ]
    assert tokens_of(two(), "kept", clean=False)[0].tolist() == [[180, 0, 0, 0], [0, 0, 0, 180]]
    assert tokens_of(two(), "chosen")[1].tolist() == [[2, 2, 2, 6], [2, 6, 2, 0]]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_every_figure_of_a_row(order):
    found = experts_of_row([two(order=order)])
    assert (found.num_experts, found.ranks_per_group) == (4, 2)
    assert found.tokens == [[3, 2, 1.5, 3.5], [1.5, 2.5, 1.5, 2.5]]
    # Most over mean: 4/2 and 5/2 in step 2, 6/3 and 4/2 in step 4.
    assert found.imbalance == pytest.approx((2 + 2.5 + 2 + 2) / 4)
    # To rank 0 came 8 and 10, to rank 1 8 and 10.
    assert found.rank_imbalance == pytest.approx(1.0)
    # 36 were kept of 40.
    assert found.dropped_share == pytest.approx(0.1)
    assert found.busiest.model_dump() == {"layer": 0, "expert": 3, "times_mean": 1.4}
    assert found.all_to_all_share is None
    assert [one.model_dump() for one in found.ranks] == [
        {
            "rank": rank,
            "first_expert": 2 * rank,
            "num_experts": 2,
            "tokens": 9.0,
            "experts_s": None,
            "token_s": None,
        }
        for rank in (0, 1)
    ]


def test_launches_are_put_together_and_those_without_a_load_left_out():
    """Of the second launch one step: 8 tokens came to rank 0, 24 to rank 1."""
    kept = [[[0, 0, 12, 0], [4, 0, 0, 0]]]
    other = launch(
        record(0, kept, [[[4, 0], [4, 0]]], steps=[3]),
        record(1, kept, [[[8, 8], [8, 0]]], steps=[3]),
    )
    bare = make_result(make_cell("expert", 2, strategy=Expert()))
    empty = launch(record(0, [], [], steps=[]), record(1, [], [], steps=[]))
    found = experts_of_row([bare, empty, two(), other])
    # Steps: 4 2 1 1, 2 2 2 6 and 0 0 24 0; 1 1 1 5, 2 4 2 0 and 8 0 0 0.
    assert found.tokens == [[2, 4 / 3, 9, 7 / 3], [11 / 3, 5 / 3, 1, 5 / 3]]
    assert found.busiest.model_dump() == {
        "layer": 0,
        "expert": 2,
        "times_mean": pytest.approx(9 / (44 / 12)),
    }
    assert [one.tokens for one in found.ranks] == pytest.approx([26 / 3, 14])
    assert found.rank_imbalance == pytest.approx((1 + 1 + 24 / 16) / 3)
    assert experts_of_row([bare, empty]) is None
    assert load_of(empty.ranks[0]) == {} and load_of(bare.ranks[0]) == {}


def test_the_part_of_the_steps_in_which_all_to_alls_were_on_their_way():
    """Of 200 ns: 50 and 10 ns, of which 5 overlap; on rank 1 none."""
    first = trace(sent(10, 60), sent(55, 65), sent(70, 90, "all_reduce"))
    second = trace(sent(70, 90, "all_reduce"))
    share = 55 / 200
    assert experts_of_row([two((first, second))]).all_to_all_share == pytest.approx(share / 2)
    assert experts_of_row([two((first, first))]).all_to_all_share == pytest.approx(share)
    # A rank without a trace, or without a step in it: not known.
    assert experts_of_row([two((first, None))]).all_to_all_share is None
    assert experts_of_row([two((first, trace(steps=())))]).all_to_all_share is None


def test_the_time_of_a_ranks_experts_is_the_median_over_launches():
    """Of two steps: 40, 20 and 30 ns; 9 tokens came to the rank."""
    launches = [
        two((trace(experts=(10, 10 + 2 * ns)), trace(experts=(0, 5, 7, 9)))) for ns in (40, 20, 30)
    ]
    one, other = experts_of_row(launches).ranks
    assert (one.experts_s, one.token_s) == pytest.approx((30e-9, 30e-9 / 9))
    assert (other.experts_s, other.token_s) == pytest.approx((3.5e-9, 3.5e-9 / 9))
    # A launch whose trace does not tell: not known, of that rank.
    one, other = experts_of_row([*launches, two((trace(), trace(experts=(0, 5))))]).ranks
    assert (one.experts_s, one.token_s) == (None, None)
    assert other.experts_s == pytest.approx(3.5e-9)


def test_a_rank_to_which_nothing_came_has_no_time_for_a_token():
    nothing = [[[0, 0, 0, 0], [0, 0, 0, 0]]]
    half = [[[1, 0, 0, 0], [0, 0, 0, 0]]]
    found = experts_of_row(
        [
            launch(
                record(0, half, [[[0.5, 0], [0, 0]]], steps=[3], traced=trace(experts=(0, 20))),
                record(1, nothing, [[[0, 0], [0, 0]]], steps=[3], traced=trace(experts=(0, 20))),
            )
        ]
    )
    assert [one.token_s for one in found.ranks] == [pytest.approx(20e-9), None]
    # The first layer has all on one of four, the second has nothing: no ratio there.
    assert found.imbalance == pytest.approx((4 + 0) / 2)
    assert found.rank_imbalance == pytest.approx(2)
    assert found.dropped_share == 0


def test_nothing_kept_is_all_dropped_and_nothing_chosen_is_nothing_dropped():
    nothing, one = [[[0, 0], [0, 0]]], [[[0, 1], [0, 0]]]
    for chosen, share in ((one, 1.0), (nothing, 0.0)):
        found = experts_of_row([launch(record(0, nothing, nothing, chosen, steps=[3]))])
        assert found.dropped_share == share


def test_experts_of_a_second_group_are_numbered_from_its_beginning():
    ranks = [record(rank, KEPT[0], HERE[0]) for rank in (3, 2, 1, 0)]
    found = experts_of_row([launch(*ranks)])
    assert [(one.rank, one.first_expert) for one in found.ranks] == [(0, 0), (1, 2), (2, 0), (3, 2)]
