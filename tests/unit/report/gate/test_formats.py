"""The gate's verdicts as Markdown, JUnit and for GitHub Actions."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import junitparser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.cli.gate import FORMATS
from scalebench.gate.result import GateResult, Mismatch
from scalebench.report.gate.github import (
    MAX_SUMMARY_BYTES,
    append_to_summary,
    command,
    render_verdict_github,
)
from scalebench.report.gate.junit import render_verdict_junit
from scalebench.report.gate.markdown import render_verdict_markdown
from scalebench.report.words.plain_text import plain
from tests.builders.gated import REGRESSED
from tests.builders.junit_schema import assert_of_the_schema

UNCHANGED = replace(
    REGRESSED, metric="peak_memory_bytes", unit="bytes", verdict="unchanged", change=0.0,
    low=None, high=None, base=1e9, new=1e9, basis="single", explanation=(),
)  # fmt: skip
INCONCLUSIVE = replace(
    REGRESSED, world_size=2, verdict="inconclusive", change=0.01, low=-0.02, high=0.04,
    further_launches=12, reason="the interval holds the floor", explanation=(),
)  # fmt: skip
NO_WORSE = replace(INCONCLUSIVE, world_size=8, verdict="not worse", further_launches=None)
PROBABLY = replace(REGRESSED, world_size=6, verdict="probably regressed", reason="a few launches")
SHOWN = replace(REGRESSED, metric="loss_last", unit="loss", decides=False, explanation=())
MISSING = replace(
    REGRESSED, case="gone", verdict="missing", new=None, change=None, low=None, high=None,
    failed=True, reason="failed: rank 1: it broke", explanation=(),
)  # fmt: skip
ODD = replace(REGRESSED, verdict="not comparable", case="odd", reason="another link")


def result_of(*rows, **changes):
    sides = {"base": "main", "new": "reports/now", "base_run_id": "one", "new_run_id": "two"}
    return GateResult(**sides, rows=tuple(rows), **changes)


MIXED = result_of(REGRESSED, UNCHANGED, INCONCLUSIVE, NO_WORSE, SHOWN, MISSING, ODD, PROBABLY)
PASSED = result_of(UNCHANGED, NO_WORSE, SHOWN)


# Markdown


def test_markdown_has_the_verdict_the_numbers_and_the_story():
    text = render_verdict_markdown(MIXED)
    lines = text.splitlines()
    assert lines[0].startswith(
        "### scalebench gate: regressed: ddp, N=4, step time: slower, +6.0 % (+5.2 to +6.8) "
        "(7 comparisons count for the verdict: 1 slower, 1 probably slower, "
    )
    (row,) = (line for line in lines if line.startswith("| ddp | 4 | step time |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[3:] == [
        "100 ms",
        "106 ms",
        "+6.0 %",
        "+5.2 to +6.8",
        "2.1 %",
        "slower",
        REGRESSED.reason,
    ]
    assert any("| probably slower | a few launches |" in line for line in lines)
    assert "  - exposed communication explains 5 of 6 points" in lines
    assert "  - all\\_reduce: 5 → 21 per step" in lines
    assert "1 without a change, not shown: all of them count." in lines
    assert any("(worse)" in line for line in lines)
    assert any("repeat 12 more times to know" in line for line in lines)


def test_markdown_is_short_enough_for_a_comment():
    rows = [
        replace(REGRESSED, case=f"case-{i}", explanation=("word " * 80,) * 3) for i in range(500)
    ]
    text = render_verdict_markdown(result_of(*rows))
    assert 59_000 < len(text.encode()) <= 60_000  # a story has 1.3 kB: not one more has room
    assert text.rstrip().endswith("--format json`.*")


# JUnit


def cases_of(result):
    text = render_verdict_junit(result)
    assert_of_the_schema(ElementTree.fromstring(text))
    suites = junitparser.JUnitXml.fromstring(text.encode())
    return {(case.classname, case.name): case for suite in suites for case in suite}


def test_junit_is_red_where_the_gate_is():
    cases = cases_of(MIXED)
    kinds = {
        name: [type(found).__name__ for found in case.result] for (_, name), case in cases.items()
    }
    assert kinds == {
        "ddp N=4 step_s": ["Failure"],
        "ddp N=4 peak_memory_bytes": [],
        "ddp N=2 step_s": ["Error"],
        "ddp N=8 step_s": [],
        "ddp N=6 step_s": ["Failure"],
        "ddp N=4 loss_last": ["Skipped"],
        "gone N=4 step_s": ["Failure"],
        "odd N=4 step_s": ["Error"],
        "verdict": ["Failure"],
    }
    regressed = cases["ddp", "ddp N=4 step_s"]
    assert regressed.result[0].message.startswith("slower: beyond the floor")
    assert "change: +6.0 % +5.2 to +6.8" in regressed.system_out
    assert "all_reduce: 5 → 21 per step" in regressed.system_out


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (PASSED, None),
        (result_of(), junitparser.Error),
        (result_of(INCONCLUSIVE), junitparser.Error),
        (result_of(MISSING), junitparser.Failure),
        (result_of(REGRESSED), junitparser.Failure),
    ],
    ids=["passed", "empty", "inconclusive", "failed", "regressed"],
)
def test_the_case_for_all_of_it_follows_the_exit_code(result, kind):
    overall = cases_of(result)["gate", "verdict"]
    assert [type(found) for found in overall.result] == ([kind] if kind else [])
    assert bool(kind) == (int(result.exit_code) != 0)


# GitHub


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


def test_github_gets_an_annotation_for_what_decides():
    found = annotations(render_verdict_github(MIXED))
    assert [(level, title) for level, title, _ in found] == [
        ("error", "scalebench gate"),
        ("error", "slower: ddp, N=4, step time"),
        ("error", "probably slower: ddp, N=6, step time"),
        ("error", "missing: gone, N=4, step time"),
        ("warning", "not comparable: odd, N=4, step time"),
        ("warning", "inconclusive: ddp, N=2, step time"),
    ]
    message = found[1][2].splitlines()
    assert message[0] == "slower: +6.0 % +5.2 to +6.8"
    assert message[-1] == "all_reduce: 5 → 21 per step"


def test_what_the_caller_lets_pass_is_no_error_to_github_and_junit():
    passing = replace(MIXED, let_pass=("regressed",))
    found = annotations(render_verdict_github(passing))
    assert {level for level, _, _ in found} == {"warning"}
    assert not cases_of(passing)["gate", "verdict"].result


def test_what_differs_in_many_rows_is_told_once():
    rows = [Mismatch("workload", "mini", "large", f"ddp, N={n}") for n in (1, 2, 4)]
    suites = Mismatch("suites", "ddp", "fsdp")
    text = render_verdict_markdown(result_of(mismatches=(suites, *rows)))
    assert "not comparable: these are different suites" in text.splitlines()[0]
    told = [line for line in text.splitlines() if line.startswith("> different")]
    assert told[0].startswith("> different: suites: ddp in the baseline, fsdp in the new run (")
    assert told[1].startswith("> different: ddp, N=1 and 2 more: workload: mini in the baseline, ")
    assert len(told) == 2


def test_github_keeps_the_limit_of_annotations():
    rows = [replace(REGRESSED, case=f"case-{i}") for i in range(30)]
    rows += [replace(INCONCLUSIVE, case=f"case-{i}") for i in range(10)]
    found = annotations(render_verdict_github(result_of(*rows)))
    levels = [level for level, _, _ in found]
    assert levels.count("error") == levels.count("warning") == 10
    assert found[9][2] == "22 more of these are not shown here; the table of the gate has all."


@given(st.text(), st.text())
def test_no_text_can_end_a_workflow_command(title, message):
    line = command("error", title, message)
    assert ANNOTATION.fullmatch(line)
    assert annotations(line)[0][2] == "\n".join(plain(text) for text in message.split("\n"))


# The command line


def test_every_format_of_the_command(monkeypatch, tmp_path):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert set(FORMATS) == {"json", "markdown", "junit", "github"}
    for render in FORMATS.values():
        assert "regressed" in render(MIXED)
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    summary.write_text("before\n")
    assert FORMATS["github"](MIXED) == render_verdict_github(MIXED)
    assert summary.read_text() == "before\n\n" + render_verdict_markdown(MIXED)


def test_a_summary_never_grows_beyond_what_github_shows(tmp_path, monkeypatch, capsys):
    summary = tmp_path / "summary.md"
    room = len(("\n" + "word").encode())
    summary.write_bytes(b"x" * (MAX_SUMMARY_BYTES - room))
    assert append_to_summary(summary, "word")
    assert summary.stat().st_size == MAX_SUMMARY_BYTES
    assert not append_to_summary(summary, "w")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    FORMATS["github"](MIXED)
    assert summary.stat().st_size == MAX_SUMMARY_BYTES
    assert "the GitHub summary of this step is full" in capsys.readouterr().err
