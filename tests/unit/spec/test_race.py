"""Recipes and races as data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scalebench import Case, Ddp, Plain, Race, Suite


@given(
    evaluations=st.integers(2, 20),
    every=st.integers(1, 100),
    after=st.integers(1, 2000) | st.none(),
)
def test_the_target_is_set_at_an_evaluation_before_the_last(evaluations, every, after):
    try:
        race = Race(samples=evaluations * every, evaluate_every=every, target_after=after)
    except ValidationError as error:
        assert "before its last evaluation" in str(error)
        return
    assert race.baseline_samples % every == 0
    assert every <= race.baseline_samples <= race.samples - every


def test_a_race_ends_with_an_evaluation():
    with pytest.raises(ValidationError, match=r"samples \(250\) must be a multiple"):
        Race(samples=250, evaluate_every=100)


def test_a_race_needs_plain_training_to_compare_with():
    race = Race(samples=400, evaluate_every=100)
    with pytest.raises(ValidationError, match=r"give a case with Plain\(\)"):
        Suite(name="r", question="?", cases=(Case(name="ddp", strategy=Ddp()),), race=race)
    plain = Case(name="plain", strategy=Plain())
    assert Suite(name="r", question="?", cases=(plain,), race=race).baseline is plain
