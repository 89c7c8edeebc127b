from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.rows.script import OutsideSteps, ScriptFacts
from scalebench.records.summary import Correctness, Estimate
from scalebench.report.findings import findings
from scalebench.report.words import warnings, wording
from scalebench.spec import Mesh, Pipeline, ScheduleName
from tests.builders.summaries import (
    estimate,
    hostile_summary,
    make_missing,
    make_plain,
    make_row,
    make_summary,
)


def said(*rows):
    finding = findings.judge_case(rows)
    return " ".join([finding.verdict, *finding.notes])


def test_the_verdict_states_speedup_efficiency_interval_and_scaling():
    text = said(make_row(efficiency=0.856, spread=0.04))
    assert "DDP (25 MiB buckets) reaches 1.712× on 2 CPU ranks" in text
    assert "strong scaling" in text
    assert "85.6 % efficiency (82.2–89.0)" in text


def test_meshes_are_named_with_their_dimensions():
    told = Mesh(shard=None, tensor=2).model_dump(exclude={"kind"})
    row = make_row(strategy="mesh", strategy_settings=told)
    assert wording.strategy_label(row) == "Mesh (FSDP2 shards, 2 ranks divide a layer)"
    told = Mesh(data=2, tensor=2, loss=True).model_dump(exclude={"kind"})
    row = make_row(strategy="mesh", strategy_settings=told)
    assert wording.strategy_label(row) == (
        "Mesh (2 replicas, 2 ranks divide a layer, loss divided)"
    )
    outside = ("tensor", "pipeline", "data", "shard", "context")
    told = Mesh(pipeline=2, microbatches=4, context=2, order=outside).model_dump(exclude={"kind"})
    assert wording.strategy_label(make_row(strategy="mesh", strategy_settings=told)) == (
        "Mesh (Ulysses, pipeline of 2 ranks, 1F1B, 4 microbatches, 2 ranks divide a sequence, "
        "tensor outermost)"
    )
    told = Mesh(expert=2).model_dump(exclude={"kind"})
    row = make_row(strategy="mesh", strategy_settings=told)
    assert wording.strategy_label(row) == "Mesh (2 ranks divide the experts)"


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"schedule": "gpipe", "microbatches": 4}, "Pipeline (GPipe, 4 microbatches)"),
        (
            {"schedule": "zbv", "chunks": 2, "split": "unbalanced", "data_parallel": 2},
            "Pipeline (ZBV, 8 microbatches, 2 stages on a rank, layers cut badly on purpose, "
            "2 pipelines side by side)",
        ),
    ],
)
def test_a_pipeline_is_named_with_its_schedule(settings, label):
    told = Pipeline(**settings).model_dump(exclude={"kind"})
    assert wording.strategy_label(make_row(strategy="pipeline", strategy_settings=told)) == label


def test_every_schedule_has_a_name():
    assert set(wording.SCHEDULE_NAMES) == set(get_args(ScheduleName))


def test_the_headline_is_the_largest_size_that_is_not_oversubscribed():
    rows = [make_row(world_size=2), make_row(world_size=4, efficiency=0.41, oversubscribed=True)]
    finding = findings.judge_case(rows)
    assert finding.headline is rows[0]
    assert "Oversubscribed, more ranks than cores, not scaling: 4 (41.0 %)." in finding.notes


@pytest.mark.parametrize("status", ["oom", "failed", "skipped"])
def test_a_size_without_a_measurement_is_told_with_its_reason(status):
    text = said(make_row(), make_missing(world_size=8, status=status, reason="because of this"))
    assert f"N = 8 {status}: because of this." in text


def test_an_interval_from_below_half_to_perfect_is_inconclusive():
    wide = Estimate(value=0.8, low=0.41, high=1.18, n=3)
    finding = findings.judge_case([make_row().model_copy(update={"efficiency": wide})])
    assert finding.kind == "inconclusive"
    assert finding.sentence.startswith("Inconclusive:")
    assert "41–118 %" in finding.sentence
    assert "reaches" not in finding.sentence


def test_the_wrapper_cost_comes_from_the_row_of_one_rank():
    text = said(make_row(world_size=1, efficiency=0.9, spread=0.01), make_row(world_size=2))
    assert "costs 10.00 % of the speed" in text
    assert "against its own speed on one rank the efficiency is 87.3 %" in text


def test_a_wrapper_cost_within_noise_is_not_claimed():
    text = said(make_row(world_size=1, efficiency=0.99, spread=0.03), make_row(world_size=2))
    assert "has a cost that the noise hides (between −2.0 and 4.0 %)" in text


def test_a_wrong_result_is_told_before_its_speed_counts():
    wrong = Correctness(status="deviates", gradient_deviation=0.031, tolerance=1e-4)
    assert "Gradient check FAILED 3.1e-02 on 2" in said(make_row(correctness=wrong))


def test_an_unverified_result_is_told_with_its_reason():
    unknown = Correctness(status="unverified", reason="dropout is on")
    assert "Gradients unverified on 2: dropout is on." in said(make_row(correctness=unknown))


LOADED = "foreign load: 0.41 processors busy with other programs"


def test_a_stamped_efficiency_is_to_be_read_with_care():
    assert (
        "Read the efficiency at N = 2 with care: other programs were running (0.41"
        " processors busy with other programs)." in said(make_row(stamps=[LOADED]))
    )
    assert "with care" not in said(make_row())


def test_a_stamp_on_the_baseline_concerns_every_efficiency():
    text = said(make_plain(stamps=[LOADED]))
    assert "with care, it rests on this baseline: other programs were running (0.41" in text


def test_a_stamp_says_which_number_it_makes_doubtful():
    assert "Read the causes at N = 2 with care: parts do not add up." in said(
        make_row(stamps=["budget open"])
    )
    assert "every efficiency" not in said(make_plain(stamps=["budget open"]))
    alone = make_row(stamps=["unsteady"]).model_copy(update={"efficiency": None})
    assert "Read the step time at N = 2 with care: step time kept drifting." in said(alone)


def test_the_details_of_a_mark_stand_beside_the_rows_that_bear_it():
    rows = [
        make_row(world_size=1, stamps=[LOADED]),
        make_row(world_size=2, stamps=["foreign load: 3 % stolen; 1.1 processors busy"]),
        make_row(world_size=4, stamps=[LOADED]),
        make_row("ddp-1mb", world_size=4, stamps=["foreign load"]),
        make_row("ddp-1mb", world_size=2),
    ]
    assert warnings.bearers(rows, "foreign load") == (
        "ddp-25mb, N=1; ddp-25mb, N=4: 0.41 processors busy with other programs",
        "ddp-25mb, N=2: 3 % stolen; 1.1 processors busy",
        "ddp-1mb, N=4",
    )
    assert warnings.bearers(rows, "swap") == ()
    twice = [make_row(suite="fsdp", stamps=[LOADED]), make_row(stamps=[LOADED])]
    (told,) = warnings.bearers(twice, "foreign load")
    assert told.startswith("fsdp: ddp-25mb, N=2; ddp: ddp-25mb, N=2: 0.41 processors")


def test_a_row_without_efficiency_says_why():
    row = make_row().model_copy(
        update={"efficiency": None, "unavailable": {"efficiency": "plain failed"}}
    )
    assert "Its efficiency is unknown: plain failed." in said(row)


def test_attribution_is_said_to_be_missing_when_it_is():
    (sentence,) = findings.general(make_summary())
    assert "No step was traced" in sentence and "without --no-trace" in sentence
    measured = make_row().model_copy(update={"exposed_comm_s": estimate(0.002)})
    assert findings.general(make_summary([measured])) == ()


def test_an_all_failed_run_has_a_verdict():
    verdict = findings.judge(make_summary([make_missing(status="failed", reason="no")]))
    assert verdict.suites[0].findings[0].kind == "failed"
    assert "Nothing was measured" in verdict.general[0]


def ranking(*rows):
    (suite,) = findings.judge(make_summary(list(rows))).suites
    return suite.ranking


def test_the_best_case_is_named_only_when_intervals_are_apart():
    apart = ranking(make_row("a", efficiency=0.9), make_row("b", efficiency=0.7))
    assert apart == "a scales best on 2 CPU ranks: its interval lies above all others."
    close = ranking(make_row("a", efficiency=0.9), make_row("b", efficiency=0.88))
    assert close is not None and "show no significant difference" in close


def test_the_best_of_three_names_those_that_may_be_as_good():
    text = ranking(
        make_row("a", efficiency=0.9), make_row("b", efficiency=0.88), make_row("c", efficiency=0.5)
    )
    assert text is not None
    assert (
        text.startswith("a has the highest efficiency")
        and "not significantly higher than b:" in text
    )


def test_a_wrong_result_cannot_be_best():
    wrong = Correctness(status="deviates", gradient_deviation=0.03)
    rows = [make_row("a", efficiency=0.99, correctness=wrong), make_row("b", efficiency=0.7)]
    assert ranking(*rows) is None
    text = ranking(*rows, make_row("c", efficiency=0.5))
    assert text is not None and text.startswith("b scales best")


def test_hostile_strings_leave_no_control_characters():
    verdict = findings.judge(hostile_summary())
    texts = [t for s in verdict.suites for f in s.findings for t in (f.verdict, *f.notes)]
    assert all(text.isprintable() for text in texts)


def test_marks_put_a_wrong_result_first_and_name_each_once():
    wrong = Correctness(status="deviates", gradient_deviation=1.0)
    row = make_row(
        spread=None, correctness=wrong, oversubscribed=True, stamps=["unsteady", "unsteady: x"]
    )
    assert warnings.marks(row) == ("deviates", "oversubscribed", "unsteady", "one launch")


@given(st.text())
def test_plain_text_is_one_printable_line(text):
    assert wording.plain(text).isprintable()


@given(st.text(), st.integers(1, 40))
def test_plain_text_keeps_its_limit(text, limit):
    assert len(wording.plain(text, limit)) <= limit


@given(st.floats(1e-3, 50), st.floats(1e-4, 0.5), st.sampled_from([1.0, 100.0]))
def test_the_written_interval_is_the_interval(value, spread, scale):
    found = estimate(value, spread)
    text = wording.interval(found, scale)
    assert text is not None
    low, high = (float(end) for end in text.split("–"))
    place = 10.0 ** -wording.decimals(wording.point(found, scale))
    assert abs(low - found.low * scale) <= place
    assert abs(high - found.high * scale) <= place
    assert low <= float(wording.point(found, scale)) <= high


@pytest.mark.parametrize(
    ("evaluation_s", "checkpoint_s", "told"),
    [
        (0.0, 0.0, "No evaluation and no checkpoint was seen in the"),
        (2.0, 0.0, "No checkpoint was seen in the"),
        (2.0, 1.0, ""),
        (None, None, ""),
    ],
)
def test_what_a_script_did_not_do_in_the_window_is_said(evaluation_s, checkpoint_s, told):
    gaps = OutsideSteps(
        seconds=3.0, share=0.005, num_gaps=1, largest=[], evaluation_s=evaluation_s,
        checkpoint_s=checkpoint_s,
    )  # fmt: skip
    row = make_row(script=ScriptFacts(), outside_step=gaps)
    steps = max(len(sample.step_s) for sample in row.samples)
    text = said(row)
    assert (f"{told} {steps} measured steps; if the script does that less often" in text) == bool(
        told
    )
    assert ("was seen in the" in text) == bool(told)
