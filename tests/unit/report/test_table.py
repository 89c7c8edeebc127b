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
    make_plain,
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


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_is_broken_at_any_width(width):
    text = render_table(RUNS["usual"], width)
    for number in ("36.00 ms", "21.03 ms", "1.712×", "85.6 ± 3.4 %", "97.90 ± 0.98 %"):
        assert number in text


def test_losses_stand_after_equal_steps_and_say_after_how_many():
    """A faster row trains more steps in its window: its last loss says nothing."""
    slow = make_plain(loss_last=3.1, loss_equal=3.1, loss_equal_steps=30)
    fast = make_row(loss_last=2.1, loss_equal=3.0, loss_equal_steps=30)
    told = render_table(make_summary([slow, fast]), 160)
    assert "5.553→3.1 @ 30" in told and "5.553→3 @ 30" in told and "2.1 " not in told
    old = {"loss_equal": None, "loss_equal_steps": None}  # of version 0.1
    assert "loss: of the first step, and after @ steps" in told
    assert "→5" not in render_table(make_summary([make_plain(**old)]), 160)
    assert "5.553→3 @ 30" in render_markdown(make_summary([slow, fast]))


def test_arithmetic_and_energy_have_columns_only_where_they_are_known():
    text = render_table(make_summary(rated_rows()), 200)
    assert re.search(r"MFU +J/sample", text)
    assert re.search(r"38\.40 % +1\.600 ", text)
    plain = render_table(make_summary(gpu_rows()), 200)
    assert "MFU" not in plain and "J/sample" not in plain
    one_known = [*gpu_rows(), rated_rows()[-1]]
    assert len(re.findall(r"38\.40", render_table(make_summary(one_known), 200))) == 1
    markdown = render_markdown(make_summary(rated_rows()))
    assert "| 38.40 % | 1.600 |" in markdown


def test_hostile_strings_bring_no_escape_sequences():
    text = render_table(RUNS["hostile"], 100)
    assert "\x1b" not in text and "\u202e" not in text and "\x07" not in text


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_ascii_only_is_ascii_and_as_narrow(run):
    text = render_table(run, 80, ascii_only=True)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 80


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
