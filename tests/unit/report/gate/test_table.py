"""How verdicts look in a terminal; their words: tests/unit/report/test_words.py."""

import re

import pytest
from click.testing import CliRunner
from rich.cells import cell_len

from scalebench.cli import cli
from scalebench.report.gate.table import is_quiet, render_verdict
from tests.builders.verdicts import BEFORE, DIFFERENT, after


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("everything", [False, True])
def test_the_table_fits_the_terminal(width, everything):
    text = render_verdict(DIFFERENT, width, everything=everything)
    table = text.partition("\n\n")[2].partition("not shown")[0]
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert all(verdict in table for verdict in ("verdict", "slower", "missing"))


def test_the_worst_comes_first_and_what_is_unchanged_is_counted():
    text = render_verdict(DIFFERENT, 100)
    verdicts = re.findall(r"(slower|worse|missing|not comparable|better)$", text, re.M)
    verdicts = [verdict.replace("worse", "slower") for verdict in verdicts]
    order = ["slower", "missing", "not comparable", "better"]
    assert verdicts and verdicts == sorted(verdicts, key=order.index)
    count = sum(is_quiet(row) for row in DIFFERENT.rows)
    assert f"{count} without a change, not shown" in text
    assert "a change, not shown" not in render_verdict(DIFFERENT, 100, everything=True)


def test_compare_begins_with_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "before.json").write_text(BEFORE.model_dump_json())
    (tmp_path / "after.json").write_text(after(0.5).model_dump_json())
    words = ["compare", "before.json", "after.json"]
    shown = CliRunner().invoke(cli, words, env={"COLUMNS": "200"}).output
    told = r"after\.json is [\d.]+ ± [\d.]+ times as fast as before\.json \(ddp, 4 ranks\); memory"
    assert re.match(told, shown)
    assert CliRunner().invoke(cli, [*words, "--json"]).output.startswith("{")
