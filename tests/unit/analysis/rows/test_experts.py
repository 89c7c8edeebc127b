"""How tokens spread over experts, from what two ranks recorded."""

import pytest

from scalebench.analysis.rows.experts import expert_figures
from scalebench.records.trace import Trace, TracedOperation
from scalebench.spec import Expert
from tests.builders.runs import make_cell, make_record, make_result

STEPS = [0, 1, 2]  # the first is warm-up
SENT = TracedOperation(
    kind="all_to_all", name="gloo:all_to_all", step=0, ordinal=0, start_ns=0, end_ns=25
)


def record(rank, kept, chosen, here, experts_ns=None, steps=STEPS):
    """One layer with four experts; every rank has two of them."""
    load = {
        "steps": steps,
        "ranks": 2,
        "row_bytes": 4,
        "samples": 1,
        **{
            name: [[of_step] for of_step in told]
            for name, told in (("kept", kept), ("chosen", chosen), ("here", here))
        },
    }
    trace = None
    if experts_ns is not None:
        trace = Trace(
            origin_ns=0, steps=[(0, 100)], operations=[SENT], experts=[10, 10 + experts_ns]
        )
    return make_record(rank, facts={"expert_load": load}, trace=trace)


def result(slow_ns=None):
    kept = [[9, 9, 9, 9], [4, 2, 0, 0], [2, 2, 2, 0]]
    chosen = [[9, 9, 9, 9], [6, 2, 0, 0], [2, 4, 2, 0]]
    ranks = [
        record(0, kept, chosen, [[18, 18], [8, 4], [4, 4]], slow_ns and 20),
        record(1, kept, chosen, [[18, 18], [0, 0], [4, 0]], slow_ns),
    ]
    cell = make_cell(case="expert", strategy=Expert(), world_size=2)
    return make_result(cell, ranks=ranks)


def test_the_clean_steps_count():
    figures = expert_figures([result()])
    assert figures.tokens == [[6.0, 4.0, 2.0, 0.0]]
    # Step 1: 8 of a mean of 3; step 2: 4 of a mean of 3.
    assert figures.imbalance == pytest.approx((8 / 3 + 4 / 3) / 2)
    # Step 1: 12 of a mean of 6; step 2: 8 of a mean of 6.
    assert figures.rank_imbalance == pytest.approx((12 / 6 + 8 / 6) / 2)
    assert figures.dropped_share == pytest.approx(1 - 24 / 32)
    assert figures.busiest.model_dump() == {"layer": 0, "expert": 0, "times_mean": 2.0}
    assert [(one.first_expert, one.num_experts, one.tokens) for one in figures.ranks] == [
        (0, 2, 10.0),
        (2, 2, 2.0),
    ]
    assert figures.all_to_all_share is None  # nothing was traced
    assert figures.slow_rank is None


def test_the_time_for_a_token_tells_a_slow_expert_from_a_busy_one():
    figures = expert_figures([result(slow_ns=40)])
    assert figures.all_to_all_share == pytest.approx(0.25)
    rank, times = figures.slow_rank
    assert rank.rank == 1
    assert times == pytest.approx((40 / 2) / (20 / 10))
