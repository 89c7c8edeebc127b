import glob
import json
import os
import time
import tomllib

import pytest
from click.testing import CliRunner

from scalebench.analysis.run import load_run
from scalebench.analysis.summarise import summarise
from scalebench.cli import cli
from scalebench.errors import UsageError
from scalebench.gate.baselines import accept
from scalebench.gate.metrics import GateSettings, gate_settings
from scalebench.gate.results import Results
from scalebench.records.files import write_model
from scalebench.report.gate_table import render_verdict
from scalebench.report.tables.layout import Screen
from scalebench.session.interleaved.ab_runs import read_results
from scalebench.session.suites import load_suite
from tests.builders.gated import explained, gated_run
from tests.builders.repository.documents import blocks, commands
from tests.builders.runs import make_stored_run
from tests.examples import cases

SAMPLES = {"repeat": 0, "step_s": [0.02], "mean_s": 0.02, "peak_memory_bytes": 10**9}


@pytest.fixture
def stored(tmp_path):
    """Write the JSON of a run after ``change`` has been at it; return the file."""

    def write(change=lambda told: None, name="summary.json"):
        told = gated_run().model_dump(mode="json")
        change(told)
        path = tmp_path / name
        path.write_text(json.dumps(told))
        return path

    return write


def row_change(field, value):
    def change(told):
        told["rows"][3][field] = value

    return change


def refused(path):
    with pytest.raises(UsageError) as caught:
        read_results(path)
    text = str(caught.value)
    assert str(path) in text and "\n" not in text and len(text) < 800
    return text


def test_a_summary_and_the_folder_of_its_run_are_read(tmp_path, stored):
    assert len(read_results(stored(row_change("samples", [SAMPLES]))).rows) == 5
    paths = make_stored_run(tmp_path / "run")
    from_cells = read_results(paths.root)
    write_model(paths.summary_json, summarise(load_run(paths.root)))
    assert read_results(paths.root).rows == from_cells.rows


@cases(
    "field, value, named",
    ("step_s", "fast", "rows.3.step_s"),
    ("step_s", {"value": "NaN", "n": 5}, "rows.3.step_s"),
    ("step_s", {"value": -1.0, "n": 5}, "rows.3.step_s"),
    ("step_s", {"value": 0.02, "low": 0.03, "high": 0.04, "n": 5}, "rows.3.step_s"),
    ("step_s", {"value": 0.02, "n": 0}, "rows.3.step_s"),
    ("efficiency", {"value": 1e999, "n": 5}, "rows.3.efficiency"),
    ("world_size", 0, "rows.3.world_size"),
    ("world_size", 10**300, "rows.3.world_size"),
    ("world_size", True, "rows.3.world_size"),
    ("world_size", None, "rows.3.world_size"),
    ("peak_memory_bytes", 10**300, "rows.3.peak_memory_bytes"),
    ("peak_memory_bytes", -5, "rows.3.peak_memory_bytes"),
    ("wire_bytes", 1.5, "rows.3.wire_bytes"),
    ("samples", [{"repeat": 0, "step_s": [0.02, 0.0]}], "rows.3.samples.0.step_s"),
    ("samples", [{"repeat": 0, "step_s": [1], "pace_s": [0]}], "rows.3.samples.0.pace_s"),
    ("samples", [{"repeat": 0, "step_s": [1, 1], "pace_s": [1]}], "rows.3.samples.0.pace_s"),
    ("samples", [{**SAMPLES, "peak_memory_bytes": -1}], "rows.3.samples.0.peak_memory_bytes"),
    ("samples", [{**SAMPLES, "mean_s": 0.0}], "rows.3.samples.0.mean_s"),
    ("samples", {"repeat": 0}, "rows.3.samples"),
    ("status", "splendid", "rows.3.status"),
    ("case", "ddp", "occurs twice"),
    ("case", ["ddp"], "rows.3.case"),
)
def test_a_field_that_cannot_be_is_named(stored, field, value, named):
    assert named in refused(stored(row_change(field, value)))


@cases("text", "", "{", "[]", "null", '"summary"', "[" * 100_000, '{"a":' * 100_000, "\x00", "NaN")
def test_what_is_no_summary_is_refused(tmp_path, text):
    path = tmp_path / "summary.json"
    path.write_text(text)
    refused(path)


def test_numbers_in_free_fields_are_only_believed_where_they_are_numbers(stored):
    """No refusal: these fields are for people; what is no number there is no number here."""

    def change(told):
        told["rows"][3]["communication"] = [{"kind": 5, "count": "x"}, {"count": None}, {}]
        told["rows"][3]["budget"] = {"points": [1], "ideal_s": "x", "rank": {}}
        told["rows"][3]["pipeline"] = {"bubble_equal_stages": [1]}
        told["environment"] = {"devices": {"a": 1}, "cores": [1], "variables": 3, "torch": {"x": 1}}

    from scalebench.gate.gate import compare

    hostile, good = read_results(stored(change)), read_results(stored(name="good.json"))
    for pair in ((hostile, good), (good, hostile), (hostile, hostile)):
        json.dumps(compare(*pair).as_json(), allow_nan=False)


def test_another_version_is_told_from_damage(stored):
    text = refused(stored(lambda told: told.update(format="scalebench.summary/2")))
    assert "scalebench.summary/2" in text and "scalebench.summary/1" in text
    assert "no format" in refused(stored(lambda told: told.pop("format")))


def test_a_huge_file_is_refused_before_it_is_opened(tmp_path):
    path = tmp_path / "summary.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # sparse: a gigabyte that costs nothing
    run = make_stored_run(tmp_path / "run")
    os.truncate(run.run_json, 1 << 30)
    began = time.process_time()
    assert "1.07 GB" in refused(path)
    with pytest.raises(UsageError, match="too large"):
        read_results(run.root)
    assert time.process_time() - began < 1


def test_what_is_no_regular_file_is_refused(tmp_path):
    fifo = tmp_path / "summary.json"
    os.mkfifo(fifo)
    assert "not a regular file" in refused(fifo)


def test_nothing_there_says_where_to_look(tmp_path):
    assert "baseline list" in refused(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "no run and no baseline" in refused(tmp_path / "empty")


@cases("name", "../x", "a/b", ".", "-x\n")
def test_a_baseline_stays_in_its_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="plain"):
        accept(Results("run", (gated_run(),)), name)


@cases(
    "table, says",
    ({"steps": {}}, "Did you mean 'step_s'"),
    ({"step_s": {"floor": 0.1}}, "relative_floor"),
    ({"step_s": {"relative_floor": "2%"}}, "a number"),
    ({"step_s": {"relative_floor": True}}, "a number"),
    ({"step_s": {"relative_floor": 1.0}}, "below 1"),
    ({"step_s": {"relative_floor": float("nan")}}, "below 1"),
    ({"step_s": {"absolute_floor": -1}}, "0 or more"),
    ({"step_s": {"host_allowance": 1}}, "below 1"),
    ({"loss_last": {"host_allowance": 0.1}}, "Valid: absolute_floor, decides, relative_floor"),
    ({"step_s": {"decides": 1}}, "true or false"),
    ({"step_s": 0.02}, "a table"),
    ({"wire_bytes": {"relative_floor": 0.1}}, "Valid: decides"),
)
def test_settings_that_are_none_are_refused_in_one_line(table, says):
    with pytest.raises(UsageError) as caught:
        gate_settings(table, "pyproject.toml")
    assert says in str(caught.value) and "pyproject.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


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
    codes = []
    for words in commands("docs/gate.md"):
        arguments = [name for word in words for name in sorted(glob.glob(word)) or [word]]
        done = CliRunner().invoke(cli, arguments, standalone_mode=False)
        assert done.exception is None, (words, done.exception)
        codes.append((arguments[0], done.return_value or 0))
    assert codes == [
        *(("compare", 0), ("gate", 3), ("baseline", 0), ("baseline", 0), ("baseline", 0)),
        *(("gate", 3), ("gate", 1), ("history", 0)),
    ]


def test_the_settings_are_valid():
    (text,) = blocks("docs/gate.md", "toml")
    settings = gate_settings(tomllib.loads(text)["tool"]["scalebench"]["gate"], "docs")
    assert {m.name: m for m in settings.metrics}["loss_last"].decides


def test_the_suite_brings_its_floors_and_what_there_is_not_is_refused_before_it_runs(tmp_path):
    (text,) = blocks("docs/gate.md", "python")
    path = tmp_path / "far.py"
    path.write_text(text)
    settings = GateSettings().of_suite(load_suite(str(path)).gate, "docs")
    assert {m.name: m for m in settings.metrics}["step_s"].relative_floor == 0.03
    path.write_text(text.replace("relative_floor", "relative_flor"))
    with pytest.raises(UsageError, match="relative_flor"):
        load_suite(str(path))


def test_the_explanation_is_what_the_gate_prints():
    (shown,) = blocks("docs/gate.md", "text")
    assert shown.strip() in render_verdict(explained(), Screen())
