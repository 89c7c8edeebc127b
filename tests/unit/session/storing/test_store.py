import pytest

from scalebench.analysis.run import load_run
from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records.files import write_checked
from scalebench.session.storing.anonymise import Cleaner
from scalebench.session.storing.code import WrittenFiles, warning
from scalebench.session.storing.finish import RunStore, draw_overview
from tests.builders.runs import make_record, make_script_cell, make_stored_run
from tests.examples import cases


@pytest.fixture
def resumed(tmp_path):
    stored = load_run(make_stored_run(tmp_path / "run").root)
    first = sorted(stored.results)[0]
    again = stored.results.pop(first).model_copy(update={"started": "2031-01-01T00:00:00+00:00"})
    return RunStore(stored, Cleaner()), again


def test_a_complete_run_that_lost_results_says_which(resumed):
    store, again = resumed
    store.keep_result(again)
    info = store.run.info.model_copy(update={"status": "complete"})
    write_checked(store.run.paths.run_json, info)
    whole = load_run(store.run.paths.root)
    assert whole.damaged == {} and len(whole.results) == len(info.plan) > 1
    lost = store.run.paths.cell(again.cell.id)
    lost.unlink()
    told = f"it is missing from {store.run.paths.cells}."
    assert load_run(store.run.paths.root).damaged == {lost.name: told}
    for cell in store.run.paths.cells.iterdir():
        cell.unlink()
    with pytest.raises(UsageError, match=rf"has none of the {len(info.plan)} results of this"):
        load_run(store.run.paths.root)
    write_checked(store.run.paths.run_json, info.model_copy(update={"status": "interrupted"}))
    assert load_run(store.run.paths.root).damaged == {}


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("<p>a page</p>", encoding="utf-8")
    return path


def test_without_a_browser_one_line_says_what_is_needed(page, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EnvironmentUnfit, match=r"needs Chromium or Chrome.*Install one"):
        draw_overview(page, page.with_name("a.png"))


@cases("name, told", ("a.jpg", "ends in .png"), ("nowhere/a.png", "no folder"))
def test_a_picture_that_cannot_be_written_is_refused(page, name, told):
    with pytest.raises(UsageError, match=told):
        draw_overview(page, page.parent / name)


CELL = make_script_cell()


def launch(files, *names, loads=()):
    files.before_launch(CELL)
    for name in names:
        path = files.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write("x")
    return files.after_launch(CELL, [make_record(0, facts={"loaded": list(loads)})])


def test_what_two_launches_write_is_named_once(tmp_path):
    (tmp_path / "data.txt").write_text("as it was")
    files = WrittenFiles(tmp_path, tmp_path / "run")
    assert launch(files, "model.pt", "logs/a.txt", "once") == []
    (said,) = launch(files, "model.pt", "logs/a.txt")
    assert said == warning(CELL.workload, ["logs/a.txt", "model.pt"], False)
    assert launch(files, "model.pt", "logs/a.txt") == []
    said = warning(CELL.workload, ["a", "b", "c", "d"], False)
    assert "every launch writes a, b, c and 1 more" in said and "{run_dir}" in said


@cases("name", "run/cells/x.json.gz", ".cache/x", "__pycache__/x.pyc")
def test_what_is_not_the_scripts_output_is_left_out(tmp_path, name):
    files = WrittenFiles(tmp_path, tmp_path / "run")
    launch(files, name)
    assert launch(files, name) == []
