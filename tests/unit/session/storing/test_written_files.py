"""Files that several launches of a script write are noticed."""

from pathlib import Path

import pytest

from scalebench.session.storing.written_files import WrittenFiles, warning
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from tests.builders.runs import make_cell, make_record

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
