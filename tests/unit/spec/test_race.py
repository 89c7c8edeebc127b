"""Recipes and races as data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scalebench import Case, Ddp, Plain, Race, Recipe, Suite


def test_the_rate_rises_over_the_warm_up_and_stays():
    recipe = Recipe(learning_rate=0.8, warmup_samples=400)
    assert [recipe.rate_after(n) for n in (100, 200, 400, 401, 10**6)] == [
        pytest.approx(0.2),
        pytest.approx(0.4),
        *[0.8] * 3,
    ]
    assert Recipe(learning_rate=0.8).rate_after(1) == 0.8


@pytest.mark.parametrize(("rule", "rate"), [("kept", 0.1), ("sqrt", 0.2), ("linear", 0.4)])
def test_the_rate_is_scaled_with_the_batch(rule, rate):
    assert Recipe(learning_rate=0.1).for_batch(4, rule).learning_rate == pytest.approx(rate)


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
