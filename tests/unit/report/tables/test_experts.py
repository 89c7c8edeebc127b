"""Experts on the terminal and on the page: the busy one and the slow one are named."""

import numpy as np
import pytest

from scalebench.analysis.page_data.expert_load import ExpertLoad
from scalebench.records.rows.experts import BusiestExpert, ExpertFigures, ExpertRank
from scalebench.report import render_table
from scalebench.report.page import heat_figure
from scalebench.report.tables import experts
from tests.builders.summaries import make_row, make_summary
from tests.unit.report.page.test_figures import drawn


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


def test_the_terminal_has_a_line_of_every_row_with_experts():
    text = render_table(make_summary([row()]), 120, verbose=True)
    assert "Experts" in text
    (told,) = [line for line in text.splitlines() if "3 of layer 0, 1.20×" in line]
    assert all(one in told for one in ("1.30", "1.10", "12.5 %", "25.0 %"))
    assert "Experts" not in render_table(make_summary([make_row()]), 120, verbose=True)
    assert experts.tables([make_row()]) == ()


def test_every_rank_has_its_experts_tokens_and_time_for_one():
    _, of_ranks = experts.tables([row(token_s=(1e-6, None))])
    assert [line[2:] for line in of_ranks.lines] == [
        ("0", "0 to 1", "100", "100 µs", "1.00 µs"),
        ("1", "2 to 3", "100", "–", "–"),
    ]


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


def test_the_heat_map_shows_every_expert_and_names_the_busiest_of_the_clean_steps():
    times = np.array([[3.0, 0.5, 0.5], [0.0, 1.5, 1.5]], dtype=np.float32)
    load = ExpertLoad("expert", "expert", 2, times, ((0, 0), (0, 1)), (0, 2, 4), steady_from=2)
    chart, data = drawn(heat_figure.expert_kind([load]), [row()])
    assert "expert 1 of layer 0 has the most tokens: 1.50 times" in chart.conclusion
    assert data[0]["y"] == ["0, 0", "0, 1"]
    assert data[1]["x"] == [1.5, 1.5]
    assert chart.table[0] == ("expert", "2", "0", "0", "0.50", "0.50")
