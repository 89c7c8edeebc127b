"""An efficiency above 100 % is explained where it is shown."""

import pytest

from scalebench.report import render_markdown, render_table
from scalebench.report.words.notes import FASTER, NO_INTERVAL, WITHIN, above_ideal
from tests.builders.summaries import make_plain, make_row, make_summary


@pytest.mark.parametrize(
    ("efficiency", "spread", "reason"),
    [(1.2, 0.05, FASTER), (1.02, 0.05, WITHIN), (1.2, None, NO_INTERVAL)],
)
def test_the_reason_depends_on_the_interval(efficiency, spread, reason):
    row = make_row("a", 1, efficiency=efficiency, spread=spread)
    assert above_ideal([make_plain(), row]) == [f"above 100 %, a, N=1: {reason}"]


def test_nothing_is_said_of_the_baseline_of_less_and_of_what_is_written_as_100():
    rows = [make_plain(), make_row(efficiency=0.9), make_row(efficiency=1.0004, spread=0.03)]
    assert above_ideal(rows) == []


@pytest.mark.parametrize("verbose", [False, True])
def test_the_line_is_under_the_table(verbose):
    summary = make_summary([make_plain(), make_row("a", 1, efficiency=1.2)])
    text = " ".join(render_table(summary, 100, verbose=verbose).split())
    assert f"above 100 %, a, N=1: {FASTER}" in text
    assert "Above 100 %, a, N=1: faster than perfect" in render_markdown(summary)
