"""The busy expert and the slow one are named."""

import pytest

from scalebench.records.rows.experts import BusiestExpert, ExpertFigures, ExpertRank
from scalebench.report.tables import experts
from tests.builders.summaries import make_row


def figures(token_s=(1e-6, 1e-6), times_mean=1.2):
    ranks = [
        ExpertRank(
            rank=rank,
            first_expert=2 * rank,
            num_experts=2,
            tokens=100.0,
            experts_s=None if seconds is None else 100 * seconds,
            token_s=seconds,
        )
        for rank, seconds in enumerate(token_s)
    ]
    return ExpertFigures(
        num_experts=4,
        ranks_per_group=len(ranks),
        tokens=[[60.0, 40.0, 50.0, 50.0]],
        imbalance=1.3,
        rank_imbalance=1.1,
        dropped_share=0.125,
        busiest=BusiestExpert(layer=0, expert=3, times_mean=times_mean),
        all_to_all_share=0.25,
        ranks=ranks,
    )


def row(**changes):
    return make_row(case="expert", world_size=2, experts=figures(**changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "No expert has more than 1.5 times"),
        ({"times_mean": 2.5}, "expert 3 of layer 0 has 2.5 times the even share"),
        ({"token_s": (1e-6, 4e-6)}, "rank 1 (2 to 3) take 4 times as long for a token"),
        ({"token_s": (1e-6, 4e-6), "times_mean": 2.5}, "rank 1 (2 to 3)"),
        ({"token_s": (1e-6, None)}, "No expert has"),
        ({"token_s": (1e-6, 1.4e-6)}, "No expert has"),
    ],
)
def test_the_slow_experts_are_named_before_the_busy_one(changes, said):
    assert said in experts.sentence([row(**changes)])
