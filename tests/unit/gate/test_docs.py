"""The examples of docs/gate.md are run as they stand."""

import glob
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from scalebench.cli import cli
from scalebench.errors import UsageError
from scalebench.gate.metrics import GateSettings, gate_settings
from scalebench.records.storage.files import write_model
from scalebench.report.gate.table import render_verdict
from scalebench.report.tables.layout import Screen
from scalebench.session.suites.files import load_suite
from tests.builders.gated import explained, gated_run

DOCUMENT = Path(__file__).parents[3] / "docs" / "gate.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language):
    return [body for kind, body in BLOCK.findall(DOCUMENT.read_text()) if kind == language]


def test_the_commands(project):
    settings = {"bucket_mb": 1.0, "accumulate": 1}
    before = gated_run(seed=1)
    after = gated_run({("ddp", 4): 1.05}, seed=2)
    rows = [row.model_copy(update={"strategy_settings": settings}) for row in after.rows]
    after = after.model_copy(update={"rows": [after.rows[0], *rows[1:]]})
    write_model(project / "before.json", before)
    write_model(project / "after.json", after)
    for night in range(6):
        write_model(project / f"night-{night}.json", gated_run(seed=night))
    lines = [line[2:] for line in "\n".join(blocks("console")).splitlines() if line[:2] == "$ "]
    codes = []
    for line in lines:
        words = shlex.split(line, comments=True)
        arguments = [name for word in words for name in sorted(glob.glob(word)) or [word]]
        assert arguments[0] == "scalebench"
        done = CliRunner().invoke(cli, arguments[1:], standalone_mode=False)
        assert done.exception is None, (line, done.exception)
        codes.append((arguments[1], done.return_value or 0))
    assert codes == [
        *(("compare", 0), ("gate", 3), ("baseline", 0), ("baseline", 0), ("baseline", 0)),
        *(("gate", 3), ("gate", 1), ("history", 0)),
    ]


def test_the_settings_are_valid():
    (text,) = blocks("toml")
    settings = gate_settings(tomllib.loads(text)["tool"]["scalebench"]["gate"], "docs")
    assert {m.name: m for m in settings.metrics}["loss_last"].decides


def test_the_suite_brings_its_floors(tmp_path):
    (text,) = blocks("python")
    path = tmp_path / "far.py"
    path.write_text(text)
    suite = load_suite(str(path))
    settings = GateSettings().of_suite(suite.gate, "docs")
    assert {m.name: m for m in settings.metrics}["step_s"].relative_floor == 0.03


def test_the_explanation_is_what_the_gate_prints():
    (shown,) = blocks("text")
    assert shown.strip() in render_verdict(explained(), Screen())


def test_a_suite_that_asks_for_what_there_is_not_is_refused_before_it_runs(tmp_path):
    (text,) = blocks("python")
    path = tmp_path / "far.py"
    path.write_text(text.replace("relative_floor", "relative_flor"))
    with pytest.raises(UsageError, match="relative_flor"):
        load_suite(str(path))
