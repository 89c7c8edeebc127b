"""Blocks, losses and middle halves by hand: which steps count, and for how much."""

import numpy as np
import pytest

from scalebench.analysis.steps import (
    clean_pace,
    clean_steps,
    launch_step_s,
    launch_throughput,
    mean_losses,
    middle_half,
    midmean,
    paired_over_bare,
    steps_of,
    steps_of_block,
)
from scalebench.records.rank import Block
from scalebench.spec import LocalSgd
from tests.builders.runs import make_cell, make_record, make_result


def blocks(*phases):
    """Consecutive blocks: phase, and steps with the first."""
    found, first = [], 0
    for phase, count in phases:
        found.append(Block(phase=phase, first=first, count=count))
        first += count
    return found


LAYOUT = blocks(("warmup", 1), ("clean", 3), ("paired", 3), ("clean", 4), ("bare", 3), ("local", 2))
STEP_S = [9.0, 8.0, 1.0, 2.0, 8.0, 3.0, 5.0, 8.0, 10.0, 20.0, 40.0, 8.0, 2.0, 2.0, 8.0, 6.0]


def rank(number, step_s, layout=LAYOUT, **changes):
    return make_record(number, step_s=step_s, blocks=layout, **changes)


def launch(*step_s, layout=LAYOUT, **changes):
    ranks = [rank(number, one, layout) for number, one in enumerate(step_s)]
    return make_result(make_cell("ddp", len(step_s), **changes), ranks=ranks)


def test_of_each_block_of_a_phase_all_steps_but_the_first_count():
    found = launch(STEP_S)
    assert clean_steps(found) == clean_pace(found) == [1, 2, 10, 20, 40]
    assert launch_step_s(found) == pytest.approx(73 / 5)
    assert steps_of(found.ranks, "paired").tolist() == [3, 5]
    assert steps_of(found.ranks, "local").tolist() == [6]
    assert steps_of(found.ranks, "traced").tolist() == []
    assert steps_of_block(found.ranks, found.ranks[0].blocks[4]).tolist() == [2, 2]


def test_the_slowest_rank_of_each_step_is_not_the_pace_of_the_job():
    """After the first step of a block, rank 0 has done three at 1, 5, 6; rank 1 at 4, 6, 7;
    rank 2, whose first took 1 s longer, at 3, 4 and 6."""
    layout = blocks(("clean", 4))
    found = launch([8, 1, 4, 1], [8, 4, 2, 1], [9, 2, 1, 2], layout=layout)
    assert clean_steps(found) == [4, 4, 2]
    assert clean_pace(found) == [12 - 9, 14 - 12, 15 - 14]
    assert launch_step_s(found) == 2
    assert launch_throughput(found) == 32 * 3 / 6
    assert steps_of_block(found.ranks[:1], layout[0]).tolist() == [1, 4, 1]


def test_independent_ranks_have_the_mean_of_their_means():
    layout = blocks(("clean", 4))
    steps = ([8, 1, 4, 2], [8, 9, 5, 6], [8, 1, 1, 4])
    apart = launch(*steps, layout=layout, purpose="independent")
    assert launch_step_s(apart) == pytest.approx((7 + 20 + 6) / 9)
    together = launch(*steps, layout=layout)
    assert launch_step_s(together) == pytest.approx(20 / 3), "all wait for the second rank"


def test_without_lockstep_the_first_step_of_a_block_counts_and_the_slowest_ranks_mean():
    """Means of blocks: 3 and 4; 6 and 5; 10 and 20. The paired block does not count."""
    layout = blocks(("clean", 3), ("paired", 2), ("clean", 2), ("clean", 2))
    found = launch(
        [1, 2, 6, 90, 90, 5, 7, 10, 10],
        [4, 4, 4, 90, 90, 6, 4, 20, 20],
        layout=layout,
        strategy=LocalSgd(period=4),
    )
    assert launch_step_s(found) == pytest.approx((4 + 6 + 20) / 3)


def test_losses_end_with_the_clean_window():
    layout = blocks(("warmup", 1), ("clean", 2), ("paired", 2))
    ranks = [
        rank(0, [1.0] * 5, layout, loss=[9.0, 6.0, 3.0, 1.0, 1.0]),
        rank(1, [1.0] * 5, layout, loss=[6.0, 3.0, 3.0, 1.0, 1.0]),
        rank(2, [1.0] * 5, layout, loss=[3.0, 0.0, 0.0, 1.0, 1.0]),
    ]
    assert mean_losses(make_result(make_cell("ddp", 3), ranks=ranks)) == [6.0, 3.0, 2.0]


def test_the_cost_of_marks_is_taken_round_by_round_and_rank_by_rank():
    """Rank 0: 4 over 2 and 6 over 4; rank 1: 3 over 3 and 5 over 2."""
    layout = blocks(("paired", 3), ("bare", 3), ("paired", 3), ("bare", 3))
    ranks = [
        rank(0, [9, 3, 5, 9, 2, 2, 9, 6, 6, 9, 4, 4], layout),
        rank(1, [9, 2, 4, 9, 3, 3, 9, 5, 5, 9, 2, 2], layout),
    ]
    assert paired_over_bare(ranks) == [(2 + 1) / 2, (1.5 + 2.5) / 2]
    assert paired_over_bare(ranks[:1]) == [2, 1.5]
    odd = [one.model_copy(update={"blocks": layout[:3]}) for one in ranks]
    with pytest.raises(ValueError, match="shorter"):
        paired_over_bare(odd)


@pytest.mark.parametrize(
    ("length", "kept"),
    [
        (1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (4, [1, 2]), (5, [1, 2, 3]), (7, [1, 2, 3, 4, 5]),
        (8, [2, 3, 4, 5]), (9, [2, 3, 4, 5, 6]), (12, [3, 4, 5, 6, 7, 8]),
    ],
)  # fmt: skip
def test_the_middle_half_leaves_out_a_quarter_on_either_side_as_far_as_it_is_whole(length, kept):
    assert middle_half(np.arange(length)).tolist() == kept


def test_the_midmean_orders_before_it_leaves_out():
    assert midmean(np.array([100.0, 3.0, -50.0, 8.0])) == 5.5
    assert midmean(np.array([7.0, 2.0, 3.0])) == 4
