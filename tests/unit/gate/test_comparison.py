"""One metric of one row in both runs: ratios, floors and verdicts by hand, on both sides."""

import math
from dataclasses import replace

import pytest

from scalebench.gate.change import Change
from scalebench.gate.comparison import Comparison, exact_verdict, single_verdict
from scalebench.gate.family import Judgement
from scalebench.gate.metrics import Metric
from scalebench.gate.observation import Observation, measured
from tests.builders.summaries import make_row

SINGLE = Metric("loss_last", "last loss", "loss", "single", relative_floor=0.25)
EXACT = Metric("predicted_memory_bytes", "predicted memory", "bytes", "exact")
POSITIVE = Metric(
    *("step_s", "step time", "s", "positive"), relative_floor=0.25, host_allowance=0.03
)


def compared(metric, was, is_, **changes):
    sides = (None if value is None else Observation(value) for value in (was, is_))
    return replace(Comparison(metric, make_row(), make_row(), *sides), **changes)


def launched(metric, was, is_, **changes):
    sides = (Observation(value, measured([value] * 3)) for value in (was, is_))
    return replace(Comparison(metric, make_row(), make_row(), *sides), **changes)


def higher(metric):
    return replace(metric, higher_is_better=True)


def test_errors_of_predictions_are_compared_by_their_magnitudes():
    metric = replace(SINGLE, name="prediction_error", relative_floor=0.0, absolute_floor=0.25)
    for was, is_, change in ((-0.25, 0.5, 0.25), (0.25, -0.5, 0.25), (0.5, -0.25, -0.25)):
        one = compared(metric, was, is_)
        assert (one.change, one.floor) == (change, 0.25)
        assert single_verdict(one).verdict == "unchanged"
    assert single_verdict(compared(metric, 0.0, -0.26)).verdict == "regressed"
    assert single_verdict(compared(metric, 0.5, -0.2)).verdict == "improved"


@pytest.mark.parametrize(
    ("was", "is_", "verdict"),
    [
        (1e6, 1e6 * (1 + 9e-10), "unchanged"),
        (1e6, 1e6 * (1 + 2e-9), "regressed"),
        (1e6, 1e6 * (1 - 9e-10), "unchanged"),
        (1e6, 1e6 * (1 - 2e-9), "improved"),
        (-1e6, -1e6 * (1 - 2e-9), "regressed"),
        (0.0, 0.0, "unchanged"),
        (0.0, 1.0, "regressed"),
    ],
)
def test_exact_numbers_differ_by_more_than_rounding(was, is_, verdict):
    found = exact_verdict(compared(EXACT, was, is_))
    assert (found.verdict, found.basis) == (verdict, "exact")
    turned = {"regressed": "improved", "improved": "regressed"}.get(verdict, verdict)
    assert exact_verdict(compared(higher(EXACT), was, is_)).verdict == turned


def judgement(**changes):
    change = Change(math.log(1.1), error=0.01, dof=1e9)
    told = Judgement(
        finding="inconclusive", change=change, p_value=0.2, rank_p_value=0.3, min_detectable=0.5,
        further_launches=7, objection="", run_sd=0.02,
    )  # fmt: skip
    return replace(told, **changes)


@pytest.mark.parametrize(
    ("finding", "objection", "reason"),
    [
        ("regressed", "", "the whole interval is worse than the tolerance of 25 %"),
        ("probably regressed", "", "worse for sure, perhaps by less than the tolerance of 25 %"),
        ("improved", "", "the whole interval is better by more than the tolerance of 25 %"),
        ("unchanged", "", "the whole interval lies within the tolerance of 25 %"),
        ("not worse", "", "not worse by the tolerance of 25 %; it is not clear whether better"),
        ("no change seen", "a host explains it", "a host explains it"),
    ],
)
def test_the_sentence_for_a_verdict(finding, objection, reason):
    found = launched(POSITIVE, 2.0, 2.2).concluded(judgement(finding=finding, objection=objection))
    assert (found.verdict, found.reason) == (finding, reason)
    assert found.no_worse is (finding == "not worse")
