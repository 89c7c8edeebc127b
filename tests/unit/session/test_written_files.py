"""Files that several launches of a script write are noticed."""

from pathlib import Path

import pytest

from scalebench.session import written_files
from scalebench.session.written_files import WrittenFiles, warning
from scalebench.spec.script import ScriptTarget

TARGET = ScriptTarget(name="train", program="train.py")


def launch(files: WrittenFiles, *names: str) -> list[str]:
    """Write files as a launch does; return what it and one before have written."""
    files.before_launch()
    for name in names:
        path = files.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write("x")
    return files.after_launch()


def test_what_two_launches_write_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("as it was")
    files = WrittenFiles(tmp_path, tmp_path / "run")
    assert launch(files, "model.pt", "logs/a.txt", "once") == []
    assert launch(files, "model.pt", "logs/a.txt") == ["logs/a.txt", "model.pt"]
    said = warning(TARGET, ["a", "b", "c", "d"])
    assert "every launch writes a, b, c and 1 more" in said and "{run_dir}" in said


def test_what_another_program_writes_meanwhile_is_left_out(tmp_path: Path) -> None:
    files = WrittenFiles(tmp_path, tmp_path / "run")
    with (tmp_path / "shell.log").open("a"):  # as of `command > shell.log &`, still running
        launch(files, "model.pt", "shell.log")
        assert launch(files, "model.pt", "shell.log") == ["model.pt"]
    assert launch(files, "shell.log") == ["model.pt", "shell.log"]


@pytest.mark.parametrize("name", ["run/cells/x.json", ".cache/x", "__pycache__/x.pyc"])
def test_what_is_not_the_scripts_output_is_left_out(tmp_path: Path, name: str) -> None:
    files = WrittenFiles(tmp_path, tmp_path / "run")
    launch(files, name)
    assert launch(files, name) == []


def test_of_a_huge_folder_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_files, "MOST_FILES", 2)
    files = WrittenFiles(tmp_path, tmp_path / "run")
    launch(files, "a", "b", "c")
    assert launch(files, "a", "b", "c") == []
