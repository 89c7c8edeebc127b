"""One metric of one row in both runs: ratios, floors and verdicts by hand, on both sides."""

import math
from dataclasses import replace

import pytest

from scalebench.errors import UsageError
from scalebench.gate.change import Change
from scalebench.gate.comparison import Comparison, exact_verdict, single_verdict
from scalebench.gate.family import Judgement
from scalebench.gate.metrics import (
    METRICS,
    Metric,
    gate_settings,
)
from scalebench.gate.observation import Observation, measured
from tests.builders.gated import budget_points
from tests.builders.summaries import make_pipeline, make_row

SINGLE = Metric("loss_last", "last loss", "loss", "single", relative_floor=0.25)
EXACT = Metric("predicted_memory_bytes", "predicted memory", "bytes", "exact")
COUNT = Metric("all_reduce_count", "all-reduces per step", "count", "exact")
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


@pytest.mark.parametrize(
    ("was", "is_", "verdict", "if_higher_is_better"),
    [
        (1.0, 1.25, "unchanged", "unchanged"),
        (1.0, 1.26, "regressed", "improved"),
        (1.0, 0.75, "unchanged", "unchanged"),
        (1.0, 0.74, "improved", "regressed"),
        (-1.0, -0.7, "regressed", "improved"),
        (-1.0, -1.25, "unchanged", "unchanged"),
        (0.0, 0.0, "unchanged", "unchanged"),
        (0.0, 1.0, "inconclusive", "inconclusive"),
    ],
)
def test_single_numbers_are_held_to_the_floor(was, is_, verdict, if_higher_is_better):
    assert single_verdict(compared(SINGLE, was, is_)).verdict == verdict
    assert single_verdict(compared(higher(SINGLE), was, is_)).verdict == if_higher_is_better


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
    found = launched(POSITIVE, 2.0, 2.2).judged(judgement(finding=finding, objection=objection))
    assert (found.verdict, found.reason) == (finding, reason)
    assert found.no_worse is (finding == "not worse")


def test_bytes_and_counts_of_stages_are_exact_on_the_same_rank_alone():
    def rows(*ranks, staged=True):
        return [
            make_row().model_copy(
                update={
                    "pipeline": make_pipeline() if staged else None,
                    "budget": None if rank is None else budget_points(0.8, rank=rank),
                }
            )
            for rank in ranks
        ]

    payload = replace(EXACT, name="payload_bytes")
    for metric in (COUNT, replace(EXACT, name="wire_bytes"), payload):
        for ranks, decides in (((1, 1), True), ((0, 1), False), ((None, None), False)):
            base, new = rows(*ranks)
            one = compared(metric, 2.0, 3.0, base_row=base, new_row=new)
            found = exact_verdict(one)
            assert (found.verdict == "regressed") is decides and found.decides is decides
        base, new = rows(0, 1, staged=False)
        assert exact_verdict(compared(metric, 2.0, 3.0, base_row=base, new_row=new)).decides
        (one_sided,) = rows(1)
        found = exact_verdict(compared(metric, 2.0, 3.0, base_row=base, new_row=one_sided))
        assert not found.decides
    base, new = rows(0, 1)
    assert exact_verdict(compared(EXACT, 2.0, 3.0, base_row=base, new_row=new)).decides


def named(settings):
    return {m.name: m for m in (*settings.metrics, settings.collectives, *settings.recovery)}


def test_only_what_has_no_noise_decides_where_the_user_says_so():
    settings = gate_settings(
        {"wire_bytes": {"decides": False}, "restart_s": {"decides": True}}, "here"
    )
    found = settings.only_exact()
    assert found.exact is True
    assert [m.name for m in found.metrics if m.decides] == [
        "payload_bytes", "predicted_memory_bytes", "predicted_bubble_ratio",
    ]  # fmt: skip
    assert not any(m.decides for m in found.recovery) and found.collectives.decides
    assert [replace(m, decides=True, decides_over_runs=False) for m in found.metrics] == [
        replace(m, decides=True, decides_over_runs=False) for m in settings.metrics
    ]


def test_a_suite_s_own_settings_are_overruled_number_by_number():
    users = gate_settings({"step_s": {"relative_floor": 0.2}, "loss_last": {"decides": True}}, "u")
    own = {
        "step_s": {"relative_floor": 0.1, "absolute_floor": 3.0},
        "efficiency": {"decides": False},
    }
    found = named(users.of_suite(own, "suite"))
    assert (found["step_s"].relative_floor, found["step_s"].absolute_floor) == (0.2, 3.0)
    assert found["loss_last"].decides and not found["efficiency"].decides
    assert users.of_suite({}, "suite") is users
    assert users.of_suite(own, "suite").exact is False
    shared = users.only_exact().of_suite(own, "suite")
    assert shared.exact and not named(shared)["step_s"].decides
    assert named(shared)["step_s"].absolute_floor == 3.0
    with pytest.raises(UsageError, match="suite"):
        users.of_suite({"step_s": {"relative_floor": 2.0}}, "suite")


def test_a_floor_is_the_larger_of_a_share_and_an_amount():
    floors = {metric.name: metric.floor for metric in METRICS}
    assert floors["step_s"](1.0) == pytest.approx(0.01)
    assert floors["step_s"](5e-4) == pytest.approx(0.02)  # 10 µs
    assert floors["efficiency"](0.8) == pytest.approx(0.01)
    assert floors["efficiency"](0.25) == pytest.approx(0.02)  # half a point
    assert floors["peak_memory_bytes"](1e9) == pytest.approx(0.005)
    assert floors["peak_memory_bytes"](2**20) == pytest.approx(2**16 / 2**20)
    assert floors["step_s"](0.0) == float("inf") and floors["wire_bytes"](0.0) == 0.0
