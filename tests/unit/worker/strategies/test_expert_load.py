"""The history of the experts' load is thinned out, and stays true."""

from hypothesis import given
from hypothesis import strategies as st

from scalebench.worker.strategies.expert import MOST_STEPS, LoadHistory


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
