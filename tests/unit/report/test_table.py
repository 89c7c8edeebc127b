import json
import re

from click.testing import CliRunner

from scalebench.cli import cli
from scalebench.costmodel.pipeline_schedule import plan_schedule
from scalebench.costmodel.pipeline_step import dry_run, equal_times
from scalebench.report import render_markdown, render_table
from scalebench.report.markdown import MAX_BYTES
from scalebench.report.tables.axes import render_schedule
from scalebench.report.tables.layout import FOLDED, RANKS, SHRINKING_CASE, Column, Screen, without
from scalebench.report.words import wording
from scalebench.stats import Estimate
from tests.builders import summaries
from tests.examples import cases

WIDTHS = (80, 100, 140)
RUNS = {
    "usual": summaries.make_summary(),
    "gpu": summaries.make_summary(summaries.gpu_rows()),
    "rated": summaries.make_summary(summaries.rated_rows()),
    "many": summaries.make_summary(summaries.many_rows()),
    "hostile": summaries.hostile_summary(),
    "long names": summaries.make_summary(
        [summaries.make_row("c" * 64, n, spread=0.01) for n in (1, 2, 1024)]
    ),
    "empty": summaries.make_summary([]),
}


@cases("width", *WIDTHS)
@cases("run", *RUNS.values(), ids=RUNS)
def test_no_line_is_wider_than_the_terminal(run, width):
    assert max(map(len, render_table(run, width).splitlines())) <= width


def test_markdown_stays_below_its_limit_whatever_the_run():
    rows = [summaries.make_row(f"{'n' * 50}-{i}", n) for i in range(300) for n in (1, 2, 4)]
    rows += [summaries.make_missing(f"m{i}", 8, reason="x" * 10_000) for i in range(300)]
    run = summaries.make_summary(rows, notices=["é" * 100_000] * 10, reproduce="y" * 100_000)
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


NUMBERS = ("123456789", "987654321", "192837465")
COLUMNS = (
    SHRINKING_CASE,
    RANKS,
    *(Column(f"number {place}", lambda _, text=text: text) for place, text in enumerate(NUMBERS)),
)
NARROWING = (*without("number 2", "number 1"), *FOLDED)


@cases("case", "a", "a-name", "a-name-of-some-length")
@cases("width", *range(40, 80))
def test_a_number_is_whole_or_its_column_is_left_out(case, width):
    screen = Screen(width)
    columns = screen.table(COLUMNS, [summaries.make_row(case)], NARROWING)
    text = screen.text()
    for column, number in zip(COLUMNS[2:], NUMBERS, strict=True):
        assert (number in text) is (column in columns)
    assert max(map(len, text.splitlines())) <= width


def test_1f1b_looks_like_this():
    timeline = dry_run(plan_schedule("1f1b", 2, 3), equal_times(2))
    lines = render_schedule(timeline, Screen(100)).splitlines()
    assert lines[:2] == [
        "rank 0  F0 F1 ·  ·  B0─── F2 B1─── ·  B2───",
        "rank 1  ·  F0 B0─── F1 B1─── F2 B2─── ·  ·",
    ]
    told = "\n".join(lines[2:])
    assert "bubble 25.0 %" in told and "by the law (p−1)/(m+p−1) 25.0 %" in told
    assert "by rank: 2, 1" in told


def test_the_command_draws_without_a_run_and_prints_json():
    shown = CliRunner().invoke(cli, ["show", "--schedule", "gpipe", "-p", "2", "-m", "2"])
    assert shown.exit_code == 0 and "rank 1" in shown.stdout
    told = CliRunner().invoke(cli, ["show", "--schedule", "1f1b", "-p", "2", "-m", "2", "--json"])
    found = json.loads(told.stdout)
    assert found["actions"][0] == {
        **{"rank": 0, "stage": 0, "kind": "F", "microbatch": 0, "start": 0.0, "end": 1.0}
    }
