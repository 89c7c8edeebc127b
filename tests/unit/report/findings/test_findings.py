"""What holds of all that is said of rows; the words themselves: tests/unit/report/test_words.py."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.report import render_markdown, render_page, render_table
from scalebench.report.findings.advice import advise
from scalebench.report.findings.advice_rules import FIRST, LAST, RULES
from scalebench.report.findings.certain import certain
from scalebench.report.findings.findings import judge, judge_case
from scalebench.report.findings.next_steps import next_steps
from scalebench.report.words import wording
from tests.builders.rows.states import run_of
from tests.builders.summaries import estimate, make_row

DOCUMENT = Path(__file__).parents[4] / "benchmarks" / "evidence.md"


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
