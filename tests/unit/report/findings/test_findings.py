"""What holds of all that is said of rows; the words themselves: tests/unit/report/test_words.py."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.records.summary import Correctness
from scalebench.report import render_markdown, render_page, render_table
from scalebench.report.findings.advice import advise
from scalebench.report.findings.advice_rules import FIRST, LAST, RULES
from scalebench.report.findings.certain import certain
from scalebench.report.findings.disturbance import LEAST_DRIFT, disturbance, drift
from scalebench.report.findings.findings import general, judge
from scalebench.report.findings.next_steps import next_steps
from scalebench.report.words import warnings, wording
from tests.builders.states import LOADED, STATES, ddp, excess, noisy, run_of, script
from tests.builders.summaries import (
    attributed,
    estimate,
    make_plain,
    make_row,
    make_summary,
    traced_rows,
)

DOCUMENT = Path(__file__).parents[4] / "benchmarks" / "evidence.md"


@pytest.mark.parametrize("name", STATES)
def test_a_next_step_is_short(name):
    """One line; two where it says what a rank takes and what the others do."""
    rows = run_of(name).rows
    for row in rows:
        told = advise(row, rows)
        limit = 110 if certain(row, rows) or row.stragglers else 75
        assert not told or (len(told.next_step) <= limit and told.next_step[-1] != ".")


def test_every_rule_is_documented():
    text = DOCUMENT.read_text(encoding="utf-8")
    named = [n.strip() for line in text.splitlines() if line.startswith("| ")
             for n in line.split("|")[1].split(",")]  # fmt: skip
    assert {rule.name for rule in (*FIRST, *RULES, *LAST)} <= set(named)


@pytest.mark.parametrize("name", ["slow loader", "late in two steps", "unused search"])
def test_what_is_certain_is_told_first_everywhere(name):
    run = run_of(name)
    step = advise(run.rows[1]).next_step
    (first, *_) = next_steps(judge(run).suites, wording.by_suite(run.rows))
    assert first.action == step
    for text in (render_table(run, width=400), render_markdown(run), render_page([run])):
        flat = " ".join(text.replace("&#39;", "'").split())
        assert certain(run.rows[1])[0].sentence[1:] in flat
        assert "Quiet the machine and run" not in flat
    assert f"→ {step}" in " ".join(render_table(run, width=400).split())


def test_the_largest_is_first_and_explains_its_part_of_the_budget():
    row = attributed(
        make_row(efficiency=0.8, spread=0.02),
        losses={"wait": 12.0, "other_idle": 8.0},
        **excess("data_stall", 0.004, 0.0),
        **ddp(find_unused_parameters=True, unused_bytes=0),
        **script(unused_search_s=2e-4),
    )
    rows = [make_plain(suite=row.suite), row]
    found = next_steps(judge(make_summary(rows)).suites, wording.by_suite(rows))
    assert [one.cause for one in found] == ["rank 1", "idle", "search for unused parameters"]


def test_no_cause_is_named_is_not_said_beside_one_that_is():
    row = noisy(**excess("data_stall"))
    row = row.model_copy(update={"budget": row.budget.model_copy(update={"closes": False})})
    summary = make_summary([make_plain(), row])
    assert "rank 1, up to 20.0 % of the step" in render_table(summary)
    assert "o other cause is named" in str(judge(summary))
    for text in (render_table(summary), str(judge(summary))):
        assert "o cause is named" not in text


def test_drift_is_what_all_rows_share():
    def with_rounds(case, *factors):
        row = make_row(case)
        kept = [
            sample.model_copy(update={"repeat": i, "step_s": [0.02 * factor] * 20})
            for i, (sample, factor) in enumerate(zip(row.samples, factors, strict=True))
        ]
        return row.model_copy(update={"samples": kept})

    slower = [with_rounds(name, 1.0, 1.05, 1.1) for name in "abc"]
    assert drift(slower) == pytest.approx(0.1)
    told = disturbance(make_summary(slower)) or ""
    assert "all cases together were 10 % slower in one round" in told
    apart = [with_rounds("a", 1.0, 1.1, 1.0), with_rounds("b", 1.1, 1.0, 1.0)]
    assert (drift([*apart, with_rounds("c", 1.0, 1.0, 1.1)]) or 0.0) < LEAST_DRIFT / 5


def test_that_the_machine_was_busy_stands_above_the_tables_everywhere():
    summary = make_summary([make_plain(stamps=[LOADED]), make_row()])
    for verbose in (False, True):
        text = render_table(summary, 100, verbose=verbose)
        assert text.index("The machine was not quiet") < text.index("\nddp\n")
    assert "The machine was not quiet" in render_markdown(summary).partition("####")[0]
    assert "The machine was not quiet" in render_page([summary])


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
    (sentence,) = general(make_summary())
    assert "No step was traced" in sentence and "without --no-trace" in sentence
    measured = make_row().model_copy(update={"exposed_comm_s": estimate(0.002)})
    assert general(make_summary([measured])) == general(run_of("saved")) == ()


def test_marks_put_a_wrong_result_first_and_name_each_once():
    wrong = Correctness(status="deviates", gradient_deviation=1.0)
    row = make_row(
        spread=None, correctness=wrong, oversubscribed=True, stamps=["unsteady", "unsteady: x"]
    )
    assert warnings.marks(row) == ("deviates", "oversubscribed", "unsteady", "one launch")


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_number_of_the_verdict_is_broken(width, ascii_only):
    text = render_table(make_summary(traced_rows()), width, ascii_only=ascii_only)
    lines = text[text.index("verdict on suite") :].splitlines()
    flat = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= width
    assert ("85.0 +/- 3.4" if ascii_only else "85.0 ± 3.4") in flat
    assert "5.4" in flat and "…" not in flat


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
