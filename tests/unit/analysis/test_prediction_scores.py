"""Predictions side by side with what was measured: intervals, errors and laws, by hand."""

import math

import pytest

from scalebench.analysis.prediction_intervals import (
    Compared,
    _excess,
    half_width,
    known_of_row,
    known_of_step,
    typical_error,
    variance_at_one_rank,
)
from scalebench.analysis.prediction_scores import (
    compared_rows,
    predicted_rows,
    score,
    with_intervals,
)
from scalebench.costmodel.scaling_laws import fit_all
from scalebench.costmodel.step import PredictedStep
from scalebench.records.rows.prediction import ChangedStep, PredictionFromFewer
from scalebench.stats import Estimate, Variance
from tests.builders.summaries import make_prediction, make_row

T_90 = {1: math.tan(0.45 * math.pi), 2: 2.919986, 3: 2.353363}
"""Student's t that 90 % lie within, by degrees of freedom."""


def once(value):
    return Estimate(value=value, n=1)


def predicted(case="a", size=2, error=0.1, speedup=None, told=None, **changes):
    """A row of 50 ms, predicted with an error; launches and link tell nothing of it."""
    predicted_s = 0.05 * (1 + error)
    exact = {"launch_spread": 0.0, "launch_dof": 0, "link_high_s": predicted_s}
    row = make_row(case, size)
    return row.model_copy(
        update={
            "step_s": once(0.05),
            "efficiency": once(0.8),
            "speedup": None if speedup is None else once(speedup),
            "predicted_step_s": predicted_s,
            "prediction_error": error,
            "prediction": make_prediction(predicted_s, **{**exact, **(told or {})}),
            **changes,
        }
    )


def unpredicted(case="b", size=4):
    nothing = {"predicted_step_s": None, "prediction_error": None, "prediction": None}
    return make_row(case, size).model_copy(update=nothing)


def test_an_interval_rests_on_the_errors_of_the_other_rows():
    rows = with_intervals(
        [predicted(error=0.1), predicted("b", error=-0.2), predicted("c", 4, error=0.5)]
    )
    others = [math.log(0.8), math.log(1.5)]
    model = math.sqrt((others[0] ** 2 + others[1] ** 2) / 2)
    told = rows[0].prediction
    assert told.typical_error == pytest.approx(model)
    assert told.low_s == pytest.approx(0.055 * math.exp(-T_90[2] * model), rel=1e-6)
    assert told.high_s == pytest.approx(0.055 * math.exp(T_90[2] * model), rel=1e-6)
    assert told.confidence == 0.90


def test_a_row_that_was_not_measured_has_the_interval_of_all_others_and_no_efficiency():
    nothing = {"prediction_error": None, "step_s": None, "efficiency": None}
    change = ChangedStep(change="half the bytes", step_s=0.04, gain=0.2)
    rows = [predicted(error=0.1), predicted("c", 4, told={"what_if": [change]}, **nothing)]
    alone, far = (row.prediction for row in with_intervals(rows))
    assert (alone.low_s, alone.high_s, alone.typical_error) == (None, None, None)
    assert alone.efficiency == pytest.approx(0.8 / 1.1)
    assert far.high_s == pytest.approx(0.055 * math.exp(T_90[1] * math.log(1.1)))
    assert far.efficiency is None and far.what_if == [change]


@pytest.mark.parametrize("missing", ["efficiency", "step_s"])
def test_without_a_measured_step_or_efficiency_none_is_predicted(missing):
    (row,) = with_intervals([predicted(**{missing: None})])
    assert row.prediction.efficiency is None


def test_the_efficiency_of_a_prediction_is_the_ideal_step_over_the_predicted_one():
    """The ideal step is 0.8 of 50 ms: 40."""
    changes = [ChangedStep(change=str(s), step_s=s, gain=0.1) for s in (0.032, 0.064)]
    (row,) = with_intervals([predicted(error=0.6, told={"what_if": changes})])
    assert row.prediction.efficiency == pytest.approx(0.5)
    assert [one.efficiency for one in row.prediction.what_if] == pytest.approx([1.25, 0.625])
    assert [one.step_s for one in row.prediction.what_if] == [0.032, 0.064]


def test_a_row_without_a_prediction_stays_as_it_is():
    rows = [unpredicted(), unpredicted().model_copy(update={"predicted_step_s": 0.02})]
    assert with_intervals(rows) == rows
    assert predicted_rows([*rows, predicted()]) == [predicted()]


def test_a_prediction_without_any_error_is_one_with_an_error_of_zero():
    exact, off = with_intervals([predicted(error=0.0), predicted("b", error=0.1)])
    assert off.prediction.typical_error == 0.0
    assert (off.prediction.low_s, off.prediction.high_s) == (0.05 * 1.1, 0.05 * 1.1)
    assert exact.prediction.typical_error == pytest.approx(math.log(1.1))
    found = score([exact, off])
    assert (found["num_rows"], found["mean_error"]) == (2, pytest.approx(0.05))
    assert found["worst"]["case"] == "b"


def test_without_predictions_there_is_no_score():
    assert score([]) is None and score([unpredicted()]) is None


def fewer(error=0.3, **changes):
    return {"left_out": PredictionFromFewer(prediction_error=error, **changes)}


def test_the_score_of_a_run_by_hand():
    """Case a: 0.1 and -0.2 off; blind 0.3. Case b: 0.05 off; its other row was not predicted."""
    rows = [
        predicted(size=4, error=-0.2, speedup=2.5, told=fewer(textbook_step_s=0.075)),
        predicted(size=2, error=0.1, speedup=1.6),
        predicted("b", error=0.05, speedup=1.9),
        unpredicted(),
    ]
    found = score(rows, ["cores"])
    left_out = found.pop("left_out")
    means = found.pop("left_out_mean_error")
    assert found.pop("mean_error") == pytest.approx(0.35 / 3)
    assert found == {
        "num_rows": 3,
        "worst_error": -0.2,
        "worst": {"suite": "ddp", "case": "a", "world_size": 4},
        "num_within": 0,
        "confidence": 0.90,
        "profile_differs": ["cores"],
    }
    errors = {law.name: 2.5 / law.speedup(4) - 1 for law in fit_all([2], [1.6])}
    errors |= {"cost model": 0.3, "bandwidth term": pytest.approx(0.075 / 0.05 - 1)}
    (case,) = left_out
    assert case == {
        "suite": "ddp", "case": "a", "world_size": 4, "fitted_on": [1, 2], "errors": errors,
    }  # fmt: skip
    # Amdahl: a serial fraction of a quarter, so 16/7 at four ranks.
    assert case["errors"]["Amdahl"] == pytest.approx(2.5 * 7 / 16 - 1)
    assert case["errors"]["constant efficiency"] == pytest.approx(2.5 / 3.2 - 1)
    assert means == {law: pytest.approx(abs(error)) for law, error in case["errors"].items()}


def test_the_error_of_a_law_is_the_mean_over_the_cases_that_it_was_tried_on():
    def case(name, error, textbook_s):
        told = fewer(error, textbook_step_s=textbook_s)
        return [
            predicted(name, 2, speedup=1.6),
            predicted(name, 4, speedup=2.5, told=told),
        ]

    found = score([*case("a", 0.3, 0.075), *case("b", -0.1, 0.04)])["left_out_mean_error"]
    assert found["cost model"] == pytest.approx(0.2)
    assert found["bandwidth term"] == pytest.approx((0.5 + 0.2) / 2)
    assert found["Amdahl"] == pytest.approx(2.5 * 7 / 16 - 1)


@pytest.mark.parametrize(
    ("smaller", "largest"),
    [
        ({"speedup": None}, {}),
        ({"prediction_error": None}, {}),
        ({}, {"speedup": None}),
        ({}, {"prediction": make_prediction()}),
    ],
)
def test_a_law_is_tried_only_where_speedups_and_a_blind_prediction_are_known(smaller, largest):
    rows = [predicted(speedup=1.6), predicted(size=4, speedup=2.5, told=fewer())]
    changed = [
        row.model_copy(update=update) for row, update in zip(rows, (smaller, largest), strict=True)
    ]
    assert len(score(rows)["left_out"]) == 1
    found = score(changed)
    assert (found["left_out"], found["left_out_mean_error"]) == ([], {})


def test_without_a_textbook_step_its_law_is_not_among_them():
    rows = [predicted(speedup=1.6), predicted(size=4, speedup=2.5, told=fewer())]
    assert "bandwidth term" not in score(rows)["left_out"][0]["errors"]


@pytest.mark.parametrize(
    ("low_s", "high_s", "within"),
    [
        (0.04, 0.06, 1),
        (0.05, 0.06, 1),
        (0.04, 0.05, 1),
        (0.051, 0.06, 0),
        (0.04, 0.049, 0),
        (None, 0.06, 0),
        (0.04, None, 0),
    ],
)
def test_a_step_at_the_end_of_its_interval_is_within(low_s, high_s, within):
    row = predicted(told={"low_s": low_s, "high_s": high_s})
    assert score([row])["num_within"] == within


def test_the_model_is_judged_where_it_knew_least():
    seen = predicted(error=0.1, told={"launch_spread": 0.02, "launch_dof": 2})
    assert compared_rows([seen, unpredicted()]) == [
        Compared(pytest.approx(math.log(1.1)), Variance(pytest.approx(4e-4), 2))
    ]
    told = fewer(0.3, predicted_step_s=2.0, link_high_s=2.08)
    blind = predicted(size=4, told={"launch_spread": 0.02, "launch_dof": 2, "link_dof": 2, **told})
    link = (math.log(1.04) / 4.302653) ** 2
    (found,) = compared_rows([seen, blind])
    assert found.log_error == pytest.approx(math.log(1.3))
    assert found.known.value == pytest.approx(4e-4 + link)
    assert found.known.dof == pytest.approx((4e-4 + link) ** 2 / ((4e-4**2 + link**2) / 2))


@pytest.mark.parametrize("known", [{"predicted_step_s": 2.0}, {"link_high_s": 2.08}, {}])
def test_a_blind_prediction_without_an_interval_of_its_link_has_that_of_its_launches(known):
    blind = predicted(told={"launch_spread": 0.02, "launch_dof": 2, **fewer(0.3, **known)})
    (found,) = compared_rows([blind])
    assert found == Compared(pytest.approx(math.log(1.3)), Variance(pytest.approx(4e-4), 2))


def test_what_launches_and_link_know_of_a_row_and_of_a_step_that_was_not_measured():
    """A spread of 0.02 over three launches; the link reaches 4 % higher, by the normal law."""
    told = make_prediction(2.0, launch_spread=0.02, launch_dof=2, link_high_s=2.08, link_dof=None)
    link = (math.log(1.04) / 1.959964) ** 2
    step = PredictedStep(
        step_s=2.0, low_s=1.9, high_s=2.08, computing_s=1.5, stalled_s=0.5,
        requests=(), times=(), world_sizes=(2,),
    )  # fmt: skip
    for found in (known_of_row(2.0, told), known_of_step(step, 0.02, 3)):
        assert found.value == pytest.approx(4e-4 + link)
        assert found.dof == pytest.approx((4e-4 + link) ** 2 / (4e-4**2 / 2))
    alone = known_of_step(step, 0.02, 1)
    assert alone.value == pytest.approx(link), "one launch does not tell its spread"
    assert variance_at_one_rank(0.02, 0) == Variance(0.0, math.inf)


def test_the_errors_of_rows_are_put_together_by_their_squares():
    rows = [Compared(error, Variance(0.0, math.inf)) for error in (0.3, -0.4, 0.0)]
    assert typical_error(rows) == pytest.approx(math.sqrt(0.25 / 3))


def test_what_is_known_less_than_of_the_others_is_added_to_the_models_error():
    """Usual is the mean of the others' 1e-4 and 3e-4."""
    others = [Compared(0.1, Variance(1e-4, 4)), Compared(-0.1, Variance(3e-4, 9))]
    model, excess = 0.01, 0.04 - 2e-4
    dof = (model + excess) ** 2 / (model**2 / 2 + excess**2 / 8)
    found = half_width(Variance(0.04, 8), others)
    assert dof == pytest.approx(10, rel=1e-5), "of which t is 1.812461"
    assert found == pytest.approx(math.sqrt(model + excess) * 1.812461, rel=1e-6)


@pytest.mark.parametrize(
    ("dof", "usual", "limit"), [(math.inf, 4, 3.7607), (4, math.inf, 1.94486), (2, 9, 3.00645)]
)
def test_what_chance_reaches_follows_from_both_degrees_of_freedom(dof, usual, limit):
    """F exceeds the limit once in ten."""
    below = _excess(Variance(limit * 0.999, dof), Variance(1.0, usual))
    above = _excess(Variance(limit * 1.001, dof), Variance(1.0, usual))
    assert (below, above) == (
        Variance(0.0, dof),
        Variance(pytest.approx(limit * 1.001 - 1), dof),
    )
