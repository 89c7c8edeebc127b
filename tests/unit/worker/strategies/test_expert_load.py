"""The history of the experts' load is thinned out, and stays true."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.worker.strategies.expert import MOST_STEPS, LoadHistory, by_expert, by_rank


@given(num_steps=st.integers(0, 5 * MOST_STEPS))
def test_steps_are_evenly_spaced_from_the_first_and_bounded(num_steps):
    load = LoadHistory(num_layers=1, num_ranks=2)
    for step in range(num_steps):
        load.note(0, [step, 1], [step, 2], [3])
        load.end_step(samples=4)
    facts = load.facts()
    assert facts["steps"] == list(range(0, num_steps, load.stride))
    assert len(facts["steps"]) <= MOST_STEPS
    assert facts["kept"] == [[[step, 1]] for step in facts["steps"]]
    assert facts["chosen"] == [[[step, 2]] for step in facts["steps"]]
    assert facts["here"] == [[[3]]] * len(facts["steps"])
    assert (facts["ranks"], facts["samples"]) == (2, 4 if num_steps else 0)


def test_a_layer_that_is_computed_again_is_counted_once():
    load = LoadHistory(num_layers=2, num_ranks=1)
    for layer in (0, 1, 1, 0):
        load.note(layer, [layer], [layer], [layer])
    load.end_step(samples=1)
    assert load.facts()["kept"] == [[[0], [1]]]


@given(
    counts=st.integers(1, 4).flatmap(
        lambda experts: st.lists(
            st.lists(st.integers(0, 3), min_size=experts, max_size=experts), min_size=1, max_size=4
        )
    )
)
def test_rows_are_put_in_the_order_of_their_experts_and_back(counts):
    places = [
        (rank, expert, number)
        for rank, of_rank in enumerate(counts)
        for expert, several in enumerate(of_rank)
        for number in range(several)
    ]
    rows = torch.tensor(places).view(-1, 3)
    ordered = by_expert(rows, counts)
    expected = sorted(places, key=lambda place: (place[1], place[0], place[2]))
    assert [tuple(row) for row in ordered.tolist()] == expected
    assert torch.equal(by_rank(ordered, counts), rows)
