"""A result whose storing was cut short is not lost."""

import errno
from pathlib import Path

import pytest

from scalebench.analysis.run import load_run
from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records.files import write_checked
from scalebench.session.storing import overview_picture
from scalebench.session.storing import store as module
from scalebench.session.storing.anonymise import Cleaner
from scalebench.session.storing.finish import results_not_saved
from scalebench.session.storing.overview_picture import draw_overview
from scalebench.session.storing.store import RunStore
from scalebench.session.storing.written_files import WrittenFiles, warning
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from tests.builders.runs import make_cell, make_record, make_stored_run


@pytest.fixture
def resumed(tmp_path):
    """A run whose first cell is measured again: its file is there, from the launch before."""
    stored = load_run(make_stored_run(tmp_path / "run").root)
    first = sorted(stored.results)[0]
    again = stored.results.pop(first).model_copy(update={"started": "2031-01-01T00:00:00+00:00"})
    return RunStore(stored, Cleaner()), again


def fails_once(monkeypatch, error):
    """The next file that the store writes is not written."""
    write = module.write_checked

    def failing(*arguments, **changes):
        monkeypatch.setattr(module, "write_checked", write)
        raise error

    monkeypatch.setattr(module, "write_checked", failing)


def test_what_a_signal_cut_short_is_stored_afterwards(resumed, monkeypatch):
    store, again = resumed
    fails_once(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.keep_result(again)
    store.keep_unsaved()
    assert load_run(store.run.paths.root).results[again.cell.id].started == again.started
    assert not store.run.unsaved


def test_what_a_full_disk_does_not_take_is_handed_out_also_where_an_older_file_is(
    resumed, monkeypatch
):
    store, again = resumed
    full = OSError(errno.ENOSPC, "No space left on device")
    fails_once(monkeypatch, full)
    with pytest.raises(OSError) as seen:
        store.keep_result(again)
    assert [r.started for r in results_not_saved(store.run, seen.value).rest.results] == [
        again.started
    ]


def test_of_a_shared_launch_no_result_is_lost_where_the_disk_is_full(resumed, monkeypatch):
    store, again = resumed
    other = again.model_copy(update={"cell": again.cell.model_copy(update={"repeat": 1})})
    fails_once(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OSError, match="No space") as full:
        store.keep_results([again, other])
    rest = results_not_saved(store.run, full.value).rest
    assert {result.cell.id for result in rest.results} == {again.cell.id, other.cell.id}


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


def test_a_browser_that_draws_nothing_is_named(page, monkeypatch):
    monkeypatch.setattr(overview_picture.shutil, "which", lambda name: "/bin/true")
    with pytest.raises(EnvironmentUnfit, match="/bin/true made no picture"):
        draw_overview(page, page.with_name("a.png"))


@pytest.mark.parametrize(
    ("name", "told"), [("a.jpg", "ends in .png"), ("nowhere/a.png", "no folder")]
)
def test_a_picture_that_cannot_be_written_is_refused(page, name, told):
    with pytest.raises(UsageError, match=told):
        draw_overview(page, page.parent / name)


TARGET = ScriptTarget(name="train", program="train.py")
CELL = make_cell("script", 1, strategy=Script(), workload=TARGET)


def launch(files: WrittenFiles, *names: str, loads: tuple[str, ...] = ()) -> list[str]:
    """Write files as a launch does that has loaded others; return what there is to say."""
    files.before_launch(CELL)
    for name in names:
        path = files.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write("x")
    return files.after_launch(CELL, [make_record(0, facts={"loaded": list(loads)})])


def test_what_two_launches_write_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("as it was")
    files = WrittenFiles(tmp_path, tmp_path / "run")
    assert launch(files, "model.pt", "logs/a.txt", "once") == []
    (said,) = launch(files, "model.pt", "logs/a.txt")
    assert said == warning(TARGET, ["logs/a.txt", "model.pt"], False)
    assert launch(files, "model.pt", "logs/a.txt") == []
    said = warning(TARGET, ["a", "b", "c", "d"], False)
    assert "every launch writes a, b, c and 1 more" in said and "{run_dir}" in said


def test_what_a_launch_loads_of_one_before_is_named(tmp_path: Path) -> None:
    (tmp_path / "pretrained.pt").write_text("as it was")
    files = WrittenFiles(tmp_path, tmp_path / "run")
    loads = ("snapshot.pt", "pretrained.pt")
    assert launch(files, "snapshot.pt", loads=loads) == []
    (said,) = launch(files, "snapshot.pt", loads=loads)
    assert "goes on from snapshot.pt, which the launch before it has left" in said
    assert "{run_dir}" in said


def test_what_another_program_writes_meanwhile_is_left_out(tmp_path: Path) -> None:
    files = WrittenFiles(tmp_path, tmp_path / "run")
    with (tmp_path / "shell.log").open("a"):  # as of `command > shell.log &`, still running
        launch(files, "shell.log")
        assert launch(files, "shell.log") == []
    (said,) = launch(files, "shell.log")
    assert "every launch writes shell.log" in said


@pytest.mark.parametrize("name", ["run/cells/x.json.gz", ".cache/x", "__pycache__/x.pyc"])
def test_what_is_not_the_scripts_output_is_left_out(tmp_path: Path, name: str) -> None:
    files = WrittenFiles(tmp_path, tmp_path / "run")
    launch(files, name)
    assert launch(files, name) == []
