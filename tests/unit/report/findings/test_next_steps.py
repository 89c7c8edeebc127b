"""What to try first in a run: by the seconds that it could win; nothing that may be noise."""

import pytest

from scalebench.report import render_markdown, render_page, render_table
from scalebench.report.findings.findings import judge
from scalebench.report.findings.next_steps import next_steps
from scalebench.report.words import wording
from tests.builders.summaries import attributed, make_plain, make_row, make_summary

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
