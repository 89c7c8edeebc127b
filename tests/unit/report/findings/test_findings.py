"""What is said of a case and of a suite, for each thing that there is to say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.rows.script import OutsideSteps, ScriptFacts
from scalebench.records.summary import Correctness, Estimate
from scalebench.report.findings import findings
from scalebench.report.words import warnings, wording
from tests.builders.summaries import estimate, make_missing, make_plain, make_row, make_summary

LOADED = "foreign load: 0.41 processors busy with other programs"
WRONG = Correctness(status="deviates", gradient_deviation=0.031, tolerance=1e-4)
UNVERIFIED = Correctness(status="unverified", reason="dropout is on")
WIDE = Estimate(value=0.8, low=0.41, high=1.18, n=3)
CROWDED = make_row(world_size=4, efficiency=0.41, oversubscribed=True)
UNSTEADY = make_row(stamps=["unsteady"]).model_copy(update={"efficiency": None})
NO_PLAIN = {"efficiency": None, "unavailable": {"efficiency": "plain failed"}}


def said(*rows):
    finding = findings.judge_case(rows)
    return " ".join([finding.verdict, *finding.notes])


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            [make_row(), CROWDED],
            "Oversubscribed, more ranks than cores, not scaling: 4 (41.0 %).",
        ),
        *(
            (
                [make_row(), make_missing(status=status, reason="because")],
                f"N = 8 {status}: because",
            )
            for status in ("oom", "failed", "skipped")
        ),
        ([make_row().model_copy(update={"efficiency": WIDE})], "Inconclusive:"),
        ([make_row().model_copy(update={"efficiency": WIDE})], "41–118 %"),
        (
            [make_row(world_size=1, efficiency=0.9, spread=0.01), make_row()],
            "costs 10.00 % of the speed",
        ),
        (
            [make_row(world_size=1, efficiency=0.9, spread=0.01), make_row()],
            "against its own speed on one rank the efficiency is 87.3 %",
        ),
        (
            [make_row(world_size=1, efficiency=0.99, spread=0.03), make_row()],
            "has a cost that the noise hides (between −2.0 and 4.0 %)",
        ),
        ([make_row(correctness=WRONG)], "Gradient check FAILED 3.1e-02 on 2"),
        ([make_row(correctness=UNVERIFIED)], "Gradients unverified on 2: dropout is on."),
        (
            [make_row(stamps=[LOADED])],
            "Read the efficiency at N = 2 with care: other programs were running (0.41"
            " processors busy with other programs).",
        ),
        (
            [make_plain(stamps=[LOADED])],
            "with care, it rests on this baseline: other programs were running (0.41",
        ),
        (
            [make_row(stamps=["budget open"])],
            "Read the causes at N = 2 with care: parts do not add up.",
        ),
        ([UNSTEADY], "Read the step time at N = 2 with care: step time kept drifting."),
        ([make_row().model_copy(update=NO_PLAIN)], "Its efficiency is unknown: plain failed."),
    ],
)
def test_what_there_is_to_say_of_a_case_is_said(rows, told):
    assert told in said(*rows)
    assert "with care" not in said(make_row())


def test_the_details_of_a_mark_stand_beside_the_rows_that_bear_it():
    rows = [
        make_row(world_size=1, stamps=[LOADED]),
        make_row(world_size=2, stamps=["foreign load: 3 % stolen; 1.1 processors busy"]),
        make_row(world_size=4, stamps=[LOADED]),
        make_row("ddp-1mb", world_size=4, stamps=["foreign load"]),
    ]
    assert warnings.bearers(rows, "foreign load") == (
        "ddp-25mb, N=1; ddp-25mb, N=4: 0.41 processors busy with other programs",
        "ddp-25mb, N=2: 3 % stolen; 1.1 processors busy",
        "ddp-1mb, N=4",
    )
    assert warnings.bearers(rows, "swap") == ()


def test_attribution_is_said_to_be_missing_when_it_is():
    (sentence,) = findings.general(make_summary())
    assert "No step was traced" in sentence and "without --no-trace" in sentence
    measured = make_row().model_copy(update={"exposed_comm_s": estimate(0.002)})
    assert findings.general(make_summary([measured])) == ()


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ([0.7], "a scales best on 2 CPU ranks: its interval lies above all others."),
        ([0.88], "show no significant difference"),
        ([0.88, 0.5], "not significantly higher than b:"),
    ],
)
def test_the_best_case_is_named_only_when_intervals_are_apart(others, told):
    rows = [make_row("a", efficiency=0.9)]
    rows += [make_row(name, efficiency=value) for name, value in zip("bc", others, strict=False)]
    (suite,) = findings.judge(make_summary(rows)).suites
    assert told in suite.ranking
    wrong = make_row("w", efficiency=0.99, correctness=WRONG)
    (suite,) = findings.judge(make_summary([*rows, wrong])).suites
    assert told in suite.ranking


def test_marks_put_a_wrong_result_first_and_name_each_once():
    row = make_row(
        spread=None, correctness=WRONG, oversubscribed=True, stamps=["unsteady", "unsteady: x"]
    )
    assert warnings.marks(row) == ("deviates", "oversubscribed", "unsteady", "one launch")


@given(st.text(), st.integers(1, 40))
def test_plain_text_is_one_printable_line_and_keeps_its_limit(text, limit):
    assert wording.plain(text).isprintable()
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
    whole = f"{told} {steps} measured steps; if the script does that less often"
    assert (whole in said(row)) == ("was seen in the" in said(row)) == bool(told)
