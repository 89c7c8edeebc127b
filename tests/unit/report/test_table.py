import re

import pytest

from scalebench.report import render_markdown, render_table
from scalebench.report.markdown import MAX_BYTES
from scalebench.report.words import wording
from scalebench.stats import Estimate
from tests.builders.summaries import (
    gpu_rows,
    hostile_summary,
    make_missing,
    make_row,
    make_summary,
    many_rows,
    rated_rows,
)

WIDTHS = (80, 100, 140)
RUNS = {
    "usual": make_summary(),
    "gpu": make_summary(gpu_rows()),
    "rated": make_summary(rated_rows()),
    "many": make_summary(many_rows()),
    "hostile": hostile_summary(),
    "long names": make_summary([make_row("c" * 64, n, spread=0.01) for n in (1, 2, 1024)]),
    "empty": make_summary([]),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_no_line_is_wider_than_the_terminal(run, width):
    assert max(map(len, render_table(run, width).splitlines())) <= width


def test_hostile_strings_bring_no_escape_sequences():
    text = render_table(RUNS["hostile"], 100)
    assert "\x1b" not in text and "\u202e" not in text and "\x07" not in text


def test_markdown_stays_below_its_limit_whatever_the_run():
    rows = [make_row(f"{'n' * 50}-{i}", n) for i in range(300) for n in (1, 2, 4)]
    rows += [make_missing(f"m{i}", 8, reason="x" * 10_000) for i in range(300)]
    run = make_summary(rows, notices=["é" * 100_000] * 10, reproduce="y" * 100_000)
    text = render_markdown(run)
    assert len(text.encode()) < MAX_BYTES
    assert "Cut here" in text


def test_markdown_tables_keep_their_columns_under_attack():
    tables = []
    for block in render_markdown(RUNS["hostile"]).split("\n\n"):
        if block.startswith("|"):
            lines = block.splitlines()
            tables.append({len(re.findall(r"(?<!\\)\|", line)) for line in lines})
            assert all(line.startswith("|") for line in lines)
    assert tables == [{13}, {9}] * 2


def test_markdown_shows_no_html_and_mentions_nobody():
    text = render_markdown(RUNS["hostile"])
    outside_code = re.sub(r"(`+).*?\1", "", text)
    assert not re.search(r"<\w", outside_code)
    assert not re.search(r"@\w", outside_code)
    assert not re.search(r"(?<!\\)\[link\]", outside_code)
    assert "http://" not in outside_code


def test_a_wide_interval_is_written_with_both_its_ends():
    assert (
        wording.plus_minus(Estimate(value=0.856, low=0.821, high=0.891, n=3), 100) == "85.6 ± 3.5"
    )
    assert wording.plus_minus(Estimate(value=0.61, low=0.34, high=1.11, n=2), 100) == "61 (34–111)"
    assert wording.plus_minus(Estimate(value=1.0, low=1.0, high=1.0, n=3), 100) == "100"
