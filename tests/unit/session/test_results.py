import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import scalebench as sb
from scalebench.cli.options import SCRIPT
from scalebench.cli.run import request_from
from scalebench.cli.run import run as run_command
from scalebench.errors import UsageError
from scalebench.gate.result import GateResult
from scalebench.records.summary import Estimate
from scalebench.report.notebook import run_html
from scalebench.session.plan import Request
from scalebench.session.run import NOT_BEGUN, command_of
from scalebench.spec import Case, Ddp, Suite
from tests.builders.repository.documents import ROOT
from tests.builders.shown.pages import Page
from tests.builders.summaries import hostile_summary
from tests.examples import cases

GALLERY = ROOT / "reports" / "gallery" / "ddp-2-cores"


@pytest.fixture(scope="module")
def run():
    return sb.load(GALLERY)


def test_a_run_a_row_and_a_comparison_are_short_in_a_terminal_and_tables_in_a_notebook(run):
    verdicts = sb.compare(run, run)
    for shown in (run, run.summary, run.rows[2], verdicts, sb.watch()):
        assert len(repr(shown)) < 200 and "\n" not in repr(shown)
    for shown in (run, run.rows[2], verdicts):
        page = Page(shown._repr_html_())
        assert not page.scripts and not page.all("img") and not page.all("link")
        assert "ddp" in page.text
    assert "82.9 ± 2.4 %" in run._repr_html_() and "<svg" in run._repr_html_()
    assert "1.658×" in str(run) and NOT_BEGUN in sb.watch()._repr_html_()


def test_texts_of_a_run_are_escaped_in_a_notebook():
    summary = hostile_summary()
    page = Page(run_html(summary) + "".join(row._repr_html_() for row in summary.rows))
    assert not page.scripts and not page.all("img") and not page.all("iframe")
    assert all(not name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_the_frame_has_a_line_for_each_row_and_the_fields_of_the_summary(run):
    frame = run.frame()
    told = json.loads((GALLERY / "summary.json").read_text())["rows"]
    elsewhere = {"correctness", "samples"}  # flat columns, and raw steps
    assert set(told[0]) - elsewhere <= set(frame.columns)
    for number, row in enumerate(told):
        for name in ("case", "world_size", "wire_bytes"):
            assert frame[name].fillna(-1)[number] == (-1 if row[name] is None else row[name])
        for name in (name for name in row if isinstance(getattr(run.rows[0], name), Estimate)):
            low = row[name] and row[name]["low"]
            assert low is None or frame[f"{name}_low"][number] == pytest.approx(low, rel=0.02)


@pytest.mark.slow
def test_figures_are_those_of_the_page(run, tmp_path):
    shutil.copytree(GALLERY, tmp_path / "run")
    copied = sb.load(tmp_path / "run")
    page = Page(copied.report().read_text())
    specs = {
        a["id"]: json.loads("".join(text))
        for a, text in page.scripts
        if a.get("id", "")[-5:] == "-spec"
    }
    for name in ("efficiency", "speedup", "budget", "timeline"):
        drawn = json.loads(copied.figure(name).to_json())
        (shown,) = (spec for place, spec in specs.items() if f"-{name}-1-spec" in place)
        assert [t.get("name") for t in drawn["data"]] == [t.get("name") for t in shown["data"]]
        assert drawn["layout"]["xaxis"] == shown["layout"]["xaxis"]
    with pytest.raises(UsageError, match="Valid: budget"):
        run.figure("efficency")
    with pytest.raises(UsageError, match="ddp"):
        run.figure("efficiency", suite="fsdp")


def test_compare_and_gate_are_the_commands(run):
    command = [sys.executable, "-m", "scalebench", "gate", str(GALLERY), "--baseline", str(GALLERY)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, cwd=ROOT)
    told, verdicts = json.loads(done.stdout), sb.gate(str(GALLERY), baseline=GALLERY)
    assert json.loads(json.dumps(verdicts.as_json())) == told
    assert (verdicts.exit_code, verdicts.verdict) == (done.returncode, "passed")
    assert len(verdicts.frame()) == len(verdicts.rows) and isinstance(verdicts, GateResult)
    assert list(verdicts.frame().columns) == list(told["rows"][0])
    blind = sb.gate(run, baseline=run, need=0.0001)
    assert blind.verdict == "inconclusive" and sb.compare(run, run).exit_code == 0


def test_what_is_no_option_or_no_run_is_refused_with_what_is(tmp_path):
    with pytest.raises(UsageError, match="batch_size"):
        sb.run("ddp", [1], batchsize=4)
    with pytest.raises(UsageError, match="run folder"):
        sb.load(tmp_path)


VALUES = {
    "world_sizes": (1, 2),
    "device": "cpu",
    "workload": "mlp tiny",
    "scaling": "weak",
    "batch_size": 32,
    "steps": 20,
    "repeats": 2,
    "precision": 0.02,
    "target_loss": 1.5,
    "time_limit_s": 90.0,
    "budget_s": 600.5,
    "selection": "ddp and not 4",
    "only": ("ddp.ddp.n1", "ddp.ddp.n2"),
    "link_profile": Path("a link.json"),
    "memory_limit_bytes": 200_000_000,
    "checkpoint_dir": Path("there"),
}
SWITCHES = [
    *("oversubscribe", "quick", "max_batch", "keep_going", "anonymise", "allow_busy"),
    *("autocast", "compile", "shared", "pinned", "trace"),
]


@cases(
    "changes",
    VALUES,
    *({name: value} for name in SWITCHES for value in (True, False)),
    {"autocast": "float16"},
    {},
)
def test_the_command_asks_for_the_same(changes, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = Request(**changes)
    name, command, *words = command_of(["ddp"], asked)
    assert (name, command) == ("scalebench", "run")
    context = run_command.make_context("run", words)
    assert context.params["suites"] == ("ddp",)
    assert request_from({**context.params, "script": context.meta.get(SCRIPT)}) == asked


def test_a_suite_that_python_made_is_made_again_by_the_program(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["/opt/python", "look.py", "--fast"])
    suite = Suite(name="mine", question="?", cases=(Case(name="ddp", strategy=Ddp()),))
    assert command_of([suite], Request(steps=2)) == ["python", "look.py", "--fast"]
