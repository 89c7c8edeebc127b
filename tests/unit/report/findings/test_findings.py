"""What holds of all that is said of rows, and what to try first; the words: test_words.py."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.report import render_markdown, render_page, render_table
from scalebench.report.findings.advice_rules import FIRST, LAST, RULES
from scalebench.report.findings.findings import judge, judge_case, next_steps
from scalebench.report.findings.notes import advise
from scalebench.report.findings.ranking import certain
from scalebench.report.words import wording
from tests.builders.rows.states import run_of
from tests.builders.summaries import attributed, estimate, make_plain, make_row, make_summary
from tests.examples import cases


def test_every_rule_is_documented():
    text = (Path(__file__).parents[4] / "benchmarks" / "evidence.md").read_text()
    named = [n.strip() for line in text.splitlines() if line.startswith("| ")
             for n in line.split("|")[1].split(",")]  # fmt: skip
    assert {rule.name for rule in (*FIRST, *RULES, *LAST)} <= set(named)


@cases("name", "slow loader", "late in two steps", "unused search")
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


def test_why_there_is_no_efficiency_is_told_to_its_end():
    reason = "give --scaling or --samples-per-step" + ", as nothing tells how its work grows" * 4
    row = make_row("ddp", 2, unavailable={"efficiency": reason})
    finding = judge_case([row.model_copy(update={"efficiency": None})])
    assert finding.sentence.endswith(f"Its efficiency is unknown: {reason}.")


@given(st.text(), st.integers(1, 40))
def test_plain_text_is_one_printable_line_and_keeps_its_limit(text, limit):
    assert wording.plain(text).isprintable()
    assert len(wording.plain(text, limit)) <= limit


@given(st.floats(1e-3, 50), st.floats(1e-4, 0.5), st.sampled_from([1.0, 100.0]))
def test_the_written_interval_is_the_interval(value, spread, scale):
    found = estimate(value, spread)
    text = wording.interval(found, scale)
    low, high = (float(end) for end in text.split("–"))
    place = 10.0 ** -wording.decimals(wording.point(found, scale))
    assert abs(low - found.low * scale) <= place
    assert abs(high - found.high * scale) <= place
    assert low <= float(wording.point(found, scale)) <= high


SURE = {"efficiency": 0.8, "spread": 0.02}


def lossy(suite, losses, case="ddp", doubtful=(), base_step_s=0.036, vague=(), **changes):
    """A row of 2 ranks that certainly loses these points of its step, and its baseline."""
    row = make_row(case, suite=suite, base_step_s=base_step_s, **{**SURE, **changes})
    return [
        make_plain(suite=suite, base_step_s=base_step_s),
        attributed(row, losses=losses, doubtful=doubtful, vague=vague, stragglers=[]),
    ]


def steps_of(*suites):
    summary = make_summary([row for rows in suites for row in rows])
    return next_steps(judge(summary).suites, wording.by_suite(summary.rows))


def test_the_order_is_that_of_seconds_not_of_shares():
    short = lossy("short", {"wait": 20.0}, base_step_s=0.01)
    long = lossy("long", {"data_stall": 12.0, "other_idle": 8.0}, base_step_s=0.1)
    found = steps_of(short, long)
    assert [(step.row.suite, step.cause) for step in found] == [
        ("long", "data"),
        ("long", "idle"),
        ("short", "waiting"),
    ]
    assert found[0].at_most_s.value == pytest.approx(0.12 * 0.1 / 0.8 / 2)
    assert found[0].gain == "up to 7.5 ms of the 62.5 ms step, 12.0 %"
    assert found[0].whence == "long: ddp, N=2, data"


def test_what_is_not_significant_is_no_step():
    assert steps_of(lossy("ddp", {"wait": 12.0, "other_idle": 8.0}, doubtful=["wait"]))
    (likely,) = steps_of(lossy("ddp", {"wait": 20.0}, doubtful=["wait"]))
    assert likely.action.startswith("Probably: ")
    assert not steps_of(lossy("ddp", {"wait": 12.0, "data_stall": 8.0}, vague=["wait"]))
    assert not steps_of([make_plain(), make_row(spread=None)])
    assert not steps_of(lossy("ddp", {"wait": 20.0}, oversubscribed=True))


def test_page_terminal_and_markdown_tell_them_in_the_same_order():
    rows = [
        *lossy("a", {"wait": 20.0}, base_step_s=0.01),
        *lossy("b", {"data_stall": 20.0}, base_step_s=0.1),
    ]
    summary = make_summary(rows)
    page, table, text = render_page([summary]), render_table(summary), render_markdown(summary)
    assert page.count('class="tryfirst"') == 1
    for told in (page.partition('class="tryfirst"')[2], table.partition("try first")[2], text):
        after = told.partition("Try first")[2] or told
        assert -1 < after.find("loader more workers") < after.find("Close other programs")
    quiet = make_summary([make_plain(), make_row(spread=None)])
    assert 'class="tryfirst"' not in render_page([quiet])
    assert "try first" not in render_table(quiet) + render_markdown(quiet).lower()
