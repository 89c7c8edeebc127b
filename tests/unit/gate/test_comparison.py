"""One metric of one row in both runs: ratios, floors and verdicts by hand, on both sides."""

import math
from dataclasses import replace

import pytest

from scalebench.gate.change import Change
from scalebench.gate.comparison import Comparison, exact_verdict, single_verdict
from scalebench.gate.family import Judgement
from scalebench.gate.measured import Measured, measured
from scalebench.gate.metrics import Metric
from scalebench.gate.observation import Observation
from tests.builders.gated import budget_points
from tests.builders.summaries import make_pipeline, make_row

SINGLE = Metric("loss_last", "last loss", "loss", "single", relative_floor=0.25)
EXACT = Metric("predicted_memory_bytes", "predicted memory", "bytes", "exact")
COUNT = Metric("all_reduce_count", "all-reduces per step", "count", "exact")
POSITIVE = Metric(
    *("step_s", "step time", "s", "positive"), relative_floor=0.25, host_allowance=0.03
)
SIGNED = Metric(
    *("exposed_comm_s", "exposed", "s", "signed"), relative_floor=0.25, absolute_floor=0.1
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


def test_every_field_of_a_single_verdict():
    found = single_verdict(compared(SINGLE, -2.0, -1.0))
    assert (found.suite, found.case, found.world_size) == ("ddp", "ddp-25mb", 2)
    assert (found.metric, found.unit, found.basis) == ("loss_last", "loss", "single")
    assert (found.base, found.new, found.change, found.floor) == (-2.0, -1.0, 0.5, 0.25)
    assert found.reason == "beyond the tolerance of 25 %" and found.decides
    assert (found.base_launches, found.new_launches, found.base_runs) == (0, 0, 1)
    assert (found.low, found.high, found.p_value, found.host_allowance) == (None, None, None, 0.0)
    assert single_verdict(compared(SINGLE, 0.0, 0.0)).reason == "both are 0"
    assert "there is no ratio" in single_verdict(compared(SINGLE, 0.0, 1.0)).reason


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


@pytest.mark.parametrize(
    ("was", "is_", "verdict"),
    [
        (2.0, 2.0 + 9e-7, "regressed"),
        (2.0, 2.00001, "inconclusive"),
        (1.99999, 2.0, "inconclusive"),
        (2.0, 1.0, "improved"),
    ],
)
def test_counts_are_exact_where_they_are_whole(was, is_, verdict):
    found = exact_verdict(compared(COUNT, was, is_))
    assert (found.verdict, found.decides) == (verdict, verdict != "inconclusive")
    assert exact_verdict(compared(EXACT, was, is_)).decides, "bytes need not be whole"


def test_a_side_without_a_number_has_no_change():
    for sides in ((None, 1.0), (1.0, None)):
        one = compared(SINGLE, *sides)
        assert one.change is None and one.launches is None
        assert one.verdict("missing").new_launches == 0
    assert compared(SINGLE, None, 1.0).floor is None
    assert compared(SINGLE, 1.0, None).floor == 0.25


def test_floors_of_ratios_are_logarithms_and_of_signed_numbers_seconds():
    pair = launched(POSITIVE, 2.0, 3.0).pair()
    assert pair.floor == pytest.approx(math.log(1.25))
    assert pair.floor_down == pytest.approx(-math.log(0.75))
    assert (pair.worse, pair.hosts, pair.shared) == (1, 0.0, False)
    several = launched(POSITIVE, 2.0, 3.0, base_runs=(Measured(0.0, 3), Measured(0.1, 3)))
    assert several.pair().hosts == math.log1p(0.03) and several.verdict("missing").base_runs == 2
    assert launched(higher(POSITIVE), 2.0, 3.0).pair().worse == -1
    far = launched(replace(POSITIVE, relative_floor=2.0), 2.0, 3.0).pair()
    assert far.floor == pytest.approx(math.log(3)) and far.floor_down == pytest.approx(
        -math.log(1e-9)
    )
    for was, floor in ((-2.0, 0.5), (0.2, 0.1), (0.0, 0.1)):
        pair = launched(SIGNED, was, 1.0).pair()
        assert pair.floor == pair.floor_down == pytest.approx(floor)
    assert launched(SIGNED, 1.0, 2.0, rounds=True).pair().shared
    assert launched(replace(POSITIVE, name="efficiency"), 1.0, 2.0).pair().shared


def judgement(**changes):
    change = Change(math.log(1.1), error=0.01, dof=1e9)
    told = Judgement(
        finding="inconclusive", change=change, p_value=0.2, rank_p_value=0.3, min_detectable=0.5,
        further_launches=7, objection="", run_sd=0.02,
    )  # fmt: skip
    return replace(told, **changes)


def test_a_judgement_in_the_units_of_the_summary():
    one = launched(POSITIVE, 2.0, 2.2)
    found = one.judged(judgement())
    assert found.change == pytest.approx(0.1)
    assert found.low == pytest.approx(1.1 * math.exp(-0.01959964) - 1)
    assert found.high == pytest.approx(1.1 * math.exp(0.01959964) - 1)
    assert found.min_detectable == pytest.approx(math.expm1(0.5))
    assert found.run_sd == pytest.approx(math.expm1(0.02))
    assert (found.p_value, found.rank_p_value, found.further_launches) == (0.2, 0.3, 7)
    assert (found.base_launches, found.new_launches, found.basis) == (3, 3, "launches")
    fall = launched(higher(POSITIVE), 2.0, 2.2).judged(judgement())
    assert fall.min_detectable == pytest.approx(-math.expm1(-0.5))
    signed = launched(SIGNED, -2.0, 2.2).judged(judgement(change=Change(1.0, 0.1, 1e9)))
    assert (signed.change, signed.min_detectable) == (0.5, 0.25)
    assert (signed.low, signed.high) == (
        pytest.approx(0.5 - 0.0979982, rel=1e-5), pytest.approx(0.5 + 0.0979982, rel=1e-5)
    )  # fmt: skip
    nothing = launched(SIGNED, 0.0, 1.0).judged(judgement())
    assert (nothing.change, nothing.low, nothing.min_detectable) == (None, None, None)


@pytest.mark.parametrize(
    ("verdict", "change", "told"),
    [
        ("regressed", 0.1, True),
        ("improved", 0.1, True),
        ("unchanged", 0.5, False),
        ("probably regressed", 0.1, True),
        ("no change seen", 0.26, True),
        ("no change seen", -0.26, True),
        ("no change seen", 0.25, False),
        ("inconclusive", 0.26, True),
        ("not comparable", 0.26, False),
        ("missing", 0.5, False),
    ],
)
def test_what_is_explained(verdict, change, told):
    one = compared(SINGLE, 1.0, 2.0)
    found = one.explained(replace(one.verdict(verdict), change=change), ["because"])
    assert found.explanation == (("because",) if told else ())


def test_floors_of_metrics():
    metric = Metric("m", "m", "s", "single", relative_floor=0.1, absolute_floor=0.5)
    assert [metric.floor(base) for base in (1.0, -10.0, 5.0, -2.0)] == [0.5, 0.1, 0.1, 0.25]
    assert metric.floor(0) == math.inf
    assert replace(metric, absolute_floor=0.0).floor(0) == 0.0


def test_each_side_has_its_own_number_of_launches():
    sides = Observation(2.0, measured([2.0] * 3)), Observation(2.2, measured([2.2] * 5))
    one = replace(Comparison(POSITIVE, make_row(), make_row(), None, None), base=sides[0])
    both = replace(one, new=sides[1])
    told = both.verdict("inconclusive")
    assert (told.base_launches, told.new_launches, told.base_runs) == (3, 5, 1)
    for number in (Observation(2.0), None):
        for mixed in (replace(both, base=number), replace(both, new=number)):
            assert mixed.launches is None
            told = mixed.verdict("inconclusive")
            assert (told.base_launches, told.new_launches) == (0, 0)


def test_every_change_counts_where_there_is_no_floor():
    """Not even a ratio where the baseline is 0."""
    free = launched(replace(POSITIVE, relative_floor=0.0), 2.0, 3.0)
    assert (free.pair().floor, free.pair().floor_down) == (0.0, 0.0)
    nothing = launched(replace(SIGNED, relative_floor=0.0, absolute_floor=0.0), 0.0, 3.0)
    assert (nothing.pair().floor, nothing.pair().floor_down) == (0.0, 0.0)
    for one, floor in ((free, 0.0), (nothing, None)):
        told = replace(one.verdict("inconclusive"), change=0.5)
        assert told.floor == floor
        assert one.explained(told, ["because"]).explanation == ("because",)
        unmoved = replace(told, change=0.0)
        assert one.explained(unmoved, ["because"]).explanation == ()
        assert one.explained(replace(told, change=None), ["because"]).explanation == ()


@pytest.mark.parametrize(("value", "exponent"), [(699.5, 699.5), (700.0, 700.0), (800.0, 700.0)])
def test_a_ratio_ends_before_the_largest_number(value, exponent):
    found = launched(POSITIVE, 2.0, 2.2).judged(judgement(change=Change(value, 0.01, 1e9)))
    assert found.change == math.expm1(exponent)


def test_what_is_detectable_may_be_nothing_or_not_known():
    one = launched(POSITIVE, 2.0, 2.2)
    assert one.judged(judgement(min_detectable=0.0)).min_detectable == 0.0
    assert one.judged(judgement(min_detectable=None)).min_detectable is None
    signed = launched(SIGNED, -2.0, 2.2)
    assert signed.judged(judgement(min_detectable=None)).min_detectable is None


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


@pytest.mark.parametrize(
    ("launches", "told"),
    [((1, 5), "1 launch a side"), ((5, 1), "1 launch"), ((2, 3), "2 launches")],
)
def test_too_few_launches_are_counted_on_the_side_that_has_fewer(launches, told):
    sides = (Observation(2.0, Measured(math.log(2.0), number)) for number in launches)
    one = Comparison(POSITIVE, make_row(), make_row(), *sides)
    found = one.judged(judgement(change=Change(0.1), p_value=None, run_sd=None))
    assert found.reason.startswith(told) and "too few" in found.reason
    assert (found.low, found.high, found.run_sd, found.no_worse) == (None, None, None, False)
    assert found.change == pytest.approx(math.expm1(0.1))


@pytest.mark.parametrize(
    ("run_sd", "reason"),
    [
        (None, "a slowdown of 65 % or more would have been seen"),
        (0.0, "2 accepted runs differ by 0 % beyond their launches"),
        (math.log(1.03), "2 accepted runs differ by 3 % beyond their launches"),
    ],
)
def test_where_no_change_is_seen_it_is_told_what_would_have_been(run_sd, reason):
    one = launched(POSITIVE, 2.0, 2.2, base_runs=(Measured(0.0, 3), Measured(0.1, 3)))
    found = one.judged(judgement(finding="no change seen", run_sd=run_sd))
    assert found.reason.endswith(reason) and "65 %" in found.reason


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


def test_counts_near_whole_numbers_on_both_sides_of_a_millionth():
    for count, whole in ((2.0 + 0.9e-6, True), (2.0 - 0.9e-6, True), (2.0 + 1.1e-6, False)):
        assert exact_verdict(compared(COUNT, count, 3.0)).decides is whole
        assert exact_verdict(compared(COUNT, 3.0, count)).decides is whole
