import csv
import io
import json
import re

import pytest
from rich.console import Console
from rich.progress import Progress

from scalebench.analysis.run import StoredRun
from scalebench.cli import main
from scalebench.cli.progress import TerminalProgress
from scalebench.cli.view import emit, emit_json, say
from scalebench.records.paths import RunPaths
from scalebench.records.run import Failure
from scalebench.report import render_csv, render_markdown, render_page, render_table
from scalebench.report.export import FORMATS
from scalebench.report.gate_ci import (
    render_verdict_github,
    render_verdict_junit,
    render_verdict_markdown,
)
from scalebench.report.gate_table import render_verdict
from scalebench.report.tables.layout import Screen
from scalebench.report.words.terms import printable
from tests.builders.gated import hostile_verdict
from tests.builders.runs import make_cell, make_failed, make_info
from tests.builders.summaries import HOSTILE, hostile_summary, make_missing, make_summary
from tests.examples import cases

pytestmark = pytest.mark.slow

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ATTACKS = (
    *HOSTILE,
    "\x1b[31mred\x1b]0;title\x07\u202egnp.exe\u2028line\r\x9b2J\x00\n::error::x",
    "\x1b\t@SUM(1)",
)
WORST = ATTACKS[-2]
RUN = hostile_summary(ATTACKS)
STORED = StoredRun(RunPaths("unused"), make_info([]), {})  # type: ignore[arg-type]
RENDERED = {
    "table": lambda: render_table(RUN, verbose=True),
    "colour": lambda: COLOUR.sub("", render_table(RUN, color=True, verbose=True)),
    "ascii": lambda: render_table(RUN, ascii_only=True),
    "markdown": lambda: render_markdown(RUN),
    "csv": lambda: render_csv(RUN),
    "page": lambda: render_page([RUN]),
    "page of what is missing": lambda: render_page(
        [make_summary([make_missing(reason="\n".join(ATTACKS), status="failed")])]
    ),
    "verdict": lambda: render_verdict(hostile_verdict(), Screen()),
    "verdict.md": lambda: render_verdict_markdown(hostile_verdict()),
    "verdict.xml": lambda: render_verdict_junit(hostile_verdict()),
    "annotations": lambda: render_verdict_github(hostile_verdict()),
    **{
        name: lambda format_=format_: format_.export(STORED, RUN)
        for name, format_ in FORMATS.items()
        if name not in ("parquet", "chrome-trace")
    },
}


@cases("name", *RENDERED)
def test_nothing_that_is_written_holds_a_control_character(name):
    found = CONTROL.search(RENDERED[name]())
    assert found is None, repr(found)


def test_no_cell_of_a_spreadsheet_is_a_formula_or_several_lines():
    text = render_csv(RUN)
    header, *rows = csv.reader(io.StringIO(text))
    numbers = {"step_s", "efficiency", "world_size", "prediction_error"}
    for row in rows:
        for name, cell in zip(header, row, strict=True):
            assert "\n" not in cell and not re.match(r"\s*[=+@\t\r]", cell), (name, cell)
            assert not re.match(r"\s*-", cell) or name in numbers
    assert "'=HYPERLINK" in text and "'@SUM" in text and "<script>" in text


def test_what_the_command_line_prints_is_text_and_its_own_colour(capsys):
    everything = "".join(ATTACKS)
    emit(f"  a  b\n{everything}\udcff", color=None)
    say(f"Page  {everything}")
    out, err = capsys.readouterr()
    assert out.startswith("  a  b\n") and "\udcff" not in out
    assert not CONTROL.search(out) and not CONTROL.search(err) and err.count("\n") == 1
    coloured = f"\x1b[1;31mred\x1b[0m {everything}"
    assert not CONTROL.search(COLOUR.sub("", printable(coloured, colour=True)))
    assert printable(coloured, colour=True).startswith("\x1b[1;31mred\x1b[0m ")
    assert "\x1b" not in printable(coloured)


def test_json_that_is_printed_says_the_same_and_steers_nothing(capsys):
    emit_json(RUN)
    text = capsys.readouterr().out
    assert not CONTROL.search(text)
    assert json.loads(text) == json.loads(RUN.model_dump_json())


def test_an_error_in_a_file_of_others_is_one_line_of_text(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = json.loads(make_summary().model_dump_json())
    content["gate"] = {"ddp": {WORST: {WORST * 1000: "x"}}}
    (tmp_path / "summary.json").write_text(json.dumps(content))
    with pytest.raises(SystemExit) as ended:
        main(["gate", "summary.json", "--baseline", "summary.json"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("scalebench: ") and err.count("\n") == 1 and len(err) < 4000
    assert not CONTROL.search(err)
    with pytest.raises(SystemExit):
        main(["show", f"no{WORST}"])
    assert not CONTROL.search(capsys.readouterr().err)


def test_progress_and_the_end_of_a_ranks_log_are_text():
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100)
    bar = Progress(disable=True, console=console)
    everything = "\n".join(ATTACKS)
    shown = TerminalProgress(console, bar)
    shown.planned(make_info([], notices=list(ATTACKS)), 0)
    failure = Failure(rank=0, kind="exit", message=everything, log_tail=everything)
    failed = make_failed(make_cell("ddp", 2), everything)
    shown.ended(failed.model_copy(update={"failure": failure}))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert ATTACKS[0] in text and not CONTROL.search(text)
