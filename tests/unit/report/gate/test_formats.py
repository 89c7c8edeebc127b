import json
import re
from dataclasses import replace

from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from scalebench.cli import cli
from scalebench.cli.gate import FORMATS
from scalebench.report import gate_ci
from scalebench.report.gate_ci import sentence
from scalebench.report.gate_table import render_verdict
from scalebench.report.tables.layout import Screen
from scalebench.report.words.terms import plain
from tests.builders import summaries
from tests.builders.gated import REGRESSED, gated, gated_run
from tests.builders.shown.verdicts import BEFORE, INCONCLUSIVE, MIXED, after, result_of
from tests.examples import cases


def test_an_interval_with_one_long_side_has_both_ends():
    slower = replace(REGRESSED, change=1.35, low=0.11, high=3.94)
    assert "takes 2.35 (1.11–4.94) times as long" in sentence(result_of(slower))
    assert "takes 1.060 ± 0.008 times as long" in sentence(result_of(REGRESSED))


def test_a_gate_that_sees_huge_changes_alone_says_so():
    unseen = replace(REGRESSED, verdict="no change seen", low=-0.5, high=1.5, min_detectable=3.57)
    assert "only one of 357 % would have been (see --need)" in render_verdict(
        result_of(unseen), Screen()
    )
    seen = replace(unseen, min_detectable=0.03)
    assert "a slowdown of 3 % or more would have been" in render_verdict(result_of(seen), Screen())


def test_markdown_is_short_enough_for_a_comment():
    rows = [
        replace(REGRESSED, case=f"case-{i}", explanation=("word " * 80,) * 3) for i in range(500)
    ]
    text = gate_ci.render_verdict_markdown(result_of(*rows))
    assert 59_000 < len(text.encode()) <= 60_000  # a story has 1.3 kB: not one more has room
    assert text.rstrip().endswith("--format json`.*")


ANNOTATION = re.compile(r"::(error|warning|notice) title=([^:,\n\r]*)::([^\n\r]*)")


def annotations(text):
    """What the runner makes of the lines: level, title, message; a line that is none is an error.

    Unescaped in the runner's order.
    """
    found = []
    for line in text.removesuffix("\n").split("\n"):
        match = ANNOTATION.fullmatch(line)
        assert match, line
        title, message = match[2], match[3]
        for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ",")):
            title = title.replace(code, character)
        for code, character in (("%0D", "\r"), ("%0A", "\n")):
            message = message.replace(code, character)
        found.append((match[1], title.replace("%25", "%"), message.replace("%25", "%")))
    return found


def test_github_keeps_the_limit_of_annotations():
    rows = [replace(REGRESSED, case=f"case-{i}") for i in range(30)]
    rows += [replace(INCONCLUSIVE, case=f"case-{i}") for i in range(10)]
    found = annotations(gate_ci.render_verdict_github(result_of(*rows)))
    levels = [level for level, _, _ in found]
    assert levels.count("error") == levels.count("warning") == 10
    assert found[9][2] == "22 more of these are not shown here; the table of the gate has all."


def test_what_one_change_does_to_a_row_is_one_annotation_a_unit():
    counts = [replace(REGRESSED, metric=f"{n}_count", unit="calls") for n in ("all_reduce", "send")]
    found = annotations(gate_ci.render_verdict_github(result_of(REGRESSED, *counts)))
    assert [level for level, _, _ in found] == ["error"] * 3
    assert "also " in found[2][2] and "also " not in found[1][2]


@given(st.text(), st.text())
def test_no_text_can_end_a_workflow_command(title, message):
    line = gate_ci.command("error", title, message)
    assert ANNOTATION.fullmatch(line)
    assert annotations(line)[0][2] == "\n".join(plain(text) for text in message.split("\n"))


def test_a_summary_never_grows_beyond_what_github_shows(tmp_path, monkeypatch, capsys):
    summary = tmp_path / "summary.md"
    room = len(("\n" + "word").encode())
    summary.write_bytes(b"x" * (gate_ci.MAX_SUMMARY_BYTES - room))
    assert gate_ci.append_to_summary(summary, "word")
    assert summary.stat().st_size == gate_ci.MAX_SUMMARY_BYTES
    assert not gate_ci.append_to_summary(summary, "w")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    FORMATS["github"](MIXED)
    assert summary.stat().st_size == gate_ci.MAX_SUMMARY_BYTES
    assert "the GitHub summary of this step is full" in capsys.readouterr().err


def test_compare_begins_with_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "before.json").write_text(BEFORE.model_dump_json())
    (tmp_path / "after.json").write_text(after(0.5).model_dump_json())
    words = ["compare", "before.json", "after.json"]
    shown = CliRunner().invoke(cli, words, env={"COLUMNS": "200"}).output
    told = r"after\.json is [\d.]+ ± [\d.]+ times as fast as before\.json \(ddp, 4 ranks\); memory"
    assert re.match(told, shown)
    assert CliRunner().invoke(cli, [*words, "--json"]).output.startswith("{")


RUNS = {
    "hostile": summaries.hostile_summary,
    "usual": summaries.make_summary,
    "gpu": lambda: summaries.make_summary(summaries.gpu_rows()),
    "rated": lambda: summaries.make_summary(summaries.rated_rows()),
    "traced": lambda: summaries.make_summary(summaries.traced_rows()),
    "remembered": lambda: summaries.make_summary(summaries.remembered_rows()),
    "gated": gated_run,
}


@cases("base", *RUNS)
@cases("new", *RUNS)
def test_any_two_runs_can_be_judged_and_shown(base, new):
    result = gated(RUNS[base](), RUNS[new]())
    json.dumps(result.as_json(), allow_nan=False)
    assert result.exit_code in (0, 1, 3, 4)
    text = render_verdict(result, Screen(80), everything=True)
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    for row in result.rows:
        assert row.reason, row
        assert (row.low is None) == (row.high is None)
        if row.low is not None:
            assert row.low <= row.change <= row.high
            assert row.min_detectable > 0 and 0 <= row.p_value <= 1
        if row.verdict == "regressed":
            worse = row.change if not row.higher_is_better else -row.change
            assert worse > row.floor
