import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.progress import Progress

from scalebench.cli import cli
from scalebench.cli.progress import EVERY_S, Log, TerminalProgress
from scalebench.errors import ExitCode, UsageError
from scalebench.records.files import write_model
from scalebench.records.rows.budget import PARTS
from tests.builders.gated import gated_run, with_row
from tests.builders.runs import make_cell, make_result, make_run
from tests.examples import cases


@pytest.fixture
def call(project):
    write_model(project / "base.json", gated_run(seed=1))
    write_model(project / "same.json", gated_run(seed=2))
    write_model(project / "slow.json", gated_run({("ddp", 4): 1.06}, seed=2))
    write_model(project / "noisy.json", gated_run(launch_sd=0.03, seed=2))

    def run(*arguments):
        flags = {"standalone_mode": False, "catch_exceptions": False}
        done = CliRunner().invoke(cli, list(arguments), **flags)
        return done.return_value or 0, done.output

    return run


def test_the_exit_code_is_the_verdict(call, project):
    assert call("gate", "--baseline", "base.json", "same.json")[0] == 0
    assert call("gate", "--baseline", "base.json", "slow.json")[0] == 1
    assert call("gate", "--baseline", "base.json", "noisy.json")[0] == 0
    needed = ("gate", "--baseline", "base.json", "noisy.json", "--need", "3%")
    code, text = call(*needed)
    assert code == 3 and "a slowdown of 3 % could not have been seen" in " ".join(text.split())
    assert call(*needed, "--on-inconclusive", "warn")[0] == 0
    assert call("gate", "--baseline", "base.json", "noisy.json", "--need", "60%")[0] == 0
    write_model(project / "failed.json", with_row(gated_run(), "ddp", 4, status="failed"))
    assert call("gate", "--baseline", "base.json", "failed.json")[0] == 4


def test_compare_never_fails_for_what_it_finds(call):
    code, text = call("compare", "base.json", "slow.json")
    assert code == 0 and "\nregressed" in text
    assert "step time" in text
    for form in ("github", "junit"):
        code, text = call("compare", "base.json", "slow.json", "--format", form)
        assert code == 0 and "::error" not in text and 'name="verdict"><failure' not in text


def test_an_error_is_annotated_only_where_the_exit_code_is_one(call):
    for new, *flags in (("same.json",), ("slow.json",), ("noisy.json", "--need", "3%"),
                        ("noisy.json", "--need", "3%", "--on-inconclusive", "warn")):  # fmt: skip
        code, text = call("gate", "--baseline", "base.json", new, "--format", "github", *flags)
        assert (code != 0) == ("::error" in text), (new, flags, text)


def test_mismatches_and_settings_reach_the_gate(call, project):
    changed = {**gated_run().environment, "torch": "9.9"}
    write_model(project / "other.json", gated_run(seed=2, environment=changed))
    flags = ("gate", "--baseline", "base.json", "other.json")
    assert call(*flags)[0] == 3
    assert call(*flags, "--allow-mismatch", "torch")[0] == 0
    (project / "pyproject.toml").write_text(
        "[tool.scalebench.gate.step_s]\nrelative_floor = 0.2\n"
        "[tool.scalebench.gate.efficiency]\ndecides = false\n"
    )
    assert call("gate", "--baseline", "base.json", "slow.json")[0] == 0
    (project / "pyproject.toml").write_text("[tool.scalebench.gate]\nfloor = 0.2\n")
    with pytest.raises(UsageError, match=r"pyproject\.toml.*'floor'"):
        call("gate", "--baseline", "base.json", "slow.json")
    (project / "pyproject.toml").write_text("[tool.scalebench]\ngate = 1\n")
    with pytest.raises(UsageError, match="gate"):
        call("gate", "--baseline", "base.json", "slow.json")


def test_a_further_accepted_run_is_added_and_counts(call, project):
    call("baseline", "accept", "base.json")
    write_model(project / "again.json", gated_run(seed=7))
    code, text = call("baseline", "accept", "again.json", "--add")
    assert code == 0 and text.strip().endswith("ddp/2.json")
    assert "and 1 more" in call("baseline", "list")[1]
    (listed,) = json.loads(call("baseline", "list", "--json")[1])
    assert listed["num_runs"] == 2
    told = json.loads(call("gate", "same.json", "--json")[1])
    assert told["covers"] == "runs"
    assert {r["base_runs"] for r in told["rows"] if r["basis"] == "launches"} == {2}
    assert told["rows"][0]["run_sd"] is not None


RUN = str(Path(__file__).parents[3] / "reports" / "gallery" / "ddp-2-cores")


@cases("gpus, code", ("16", ExitCode.OK), ("16,64", ExitCode.OK), ("64", ExitCode.INCONCLUSIVE))
@cases("form", [], ["--json"])
def test_a_table_without_a_single_step_is_no_projection(gpus, code, form):
    """The run's batch of 16 has no sample for each of 64 ranks."""
    done = CliRunner().invoke(cli, ["project", RUN, "--gpus", gpus, *form], standalone_mode=False)
    assert done.exception is None
    assert done.return_value == code
    assert ("no sample for each of 64 ranks" in " ".join(done.output.split())) == ("64" in gpus)


def printed(*words):
    done = CliRunner().invoke(cli, words, catch_exceptions=False, prog_name="scalebench")
    return done.output


def test_help_explains_commands_words_and_fields():
    assert printed("help", "gate").startswith("Usage: scalebench gate")
    assert "against plain" in printed("help", "efficiency")
    assert "rank waited for a later rank" in " ".join(printed("help", "wait_s").split())
    assert printed("help", "strong", "scaling") == printed("help", "strong scaling")
    for part in (*(part.name for part in PARTS), "open"):
        assert len(printed("help", part).split()) > 4, part
    assert "of it in which" not in printed("help", "waiting")
    assert "The rest of" not in printed("help", "transfer")
    listed = printed("help")
    assert "calibrate" in listed and "oversubscribed" in listed and "---" not in listed


def test_a_line_is_printed_when_a_launch_ends_and_the_last_line_is_ten_seconds_old():
    stream, now = io.StringIO(), [100.0]
    console = Console(file=stream, force_terminal=False, width=60)
    bar, log = Progress(console=console, disable=True), Log(console, lambda: now[0])
    progress = TerminalProgress(console, bar, log)
    progress.preparing()
    progress.planned(make_run([make_result(make_cell(repeat=i)) for i in range(3)]).info, 0)
    now[0] += EVERY_S - 0.1
    progress.ended(make_result(make_cell()))
    assert stream.getvalue() == ""
    now[0] += 0.1
    progress.ended(make_result(make_cell("ddp-bucket-1mb")))
    assert stream.getvalue() == "scalebench: 10 s: 2 of 3 launches, last ddp-bucket-1mb at N=2\n"
    progress.ended(make_result(make_cell()))
    assert stream.getvalue().count("\n") == 1
