import json
import os
import shutil
import signal
import socket
import stat
from itertools import product
from pathlib import Path

import pytest

from scalebench.analysis.run import load_run
from scalebench.errors import ScalebenchError, UsageError
from scalebench.session.interleaved.ab_runs import read_results
from scalebench.session.plan import Request
from scalebench.session.storing.code import go_where_started
from scalebench.session.suites import script_suite
from tests.builders.sessions import NO_FLAGS, ONE, resume, start
from tests.examples import cases

pytestmark = pytest.mark.slow


def say_that_checkpoints_are_in(root, folder):
    content = json.loads((root / "run.json").read_text())
    for cell in content["plan"]:
        if cell["recovery"]:
            cell["recovery"]["directory"] = str(folder)
    del content["sha256"]
    (root / "run.json").write_text(json.dumps(content | {"sealed": False}))


@pytest.fixture
def stopped(tmp_path):
    (tmp_path / "fast").mkdir()
    chosen = Request(world_sizes=(1,), quick=True, checkpoint_dir=tmp_path / "fast")
    start(tmp_path / "run", request=chosen, stop_at="restore")
    return tmp_path / "run"


def test_a_run_saves_below_its_folder_and_takes_that_along_when_it_is_moved_or_copied(tmp_path):
    run, copy, moved = (tmp_path / name for name in ("run", "copy", "moved"))
    start(run, stop_at="restore")
    shutil.copytree(run, copy)
    assert set(resume(copy)) == {copy / "checkpoints"} and not (copy / "checkpoints").exists()
    assert (run / "checkpoints" / "weights").exists(), "of the original"
    run.rename(moved)
    assert set(resume(moved)) == {moved / "checkpoints"}
    assert load_run(moved).damaged == {} and os.listdir(moved / "cells")


def test_a_chosen_directory_is_removed_by_its_run_alone(stopped, tmp_path):
    (folder,) = (tmp_path / "fast").iterdir()
    shutil.copytree(stopped, tmp_path / "copy")
    with pytest.raises(UsageError, match=r"is a copy.*Nothing was removed.*--checkpoint-dir"):
        resume(tmp_path / "copy")
    assert (folder / "weights").exists()
    (tmp_path / "slow").mkdir()
    (elsewhere,) = set(resume(tmp_path / "copy", False, False, tmp_path / "slow"))
    assert elsewhere.parent == tmp_path / "slow" and (folder / "weights").exists()
    stopped.rename(tmp_path / "moved")
    assert set(resume(tmp_path / "moved")) == {folder}
    assert list((tmp_path / "fast").iterdir()) == []


@cases("how", "named", "marked as another's", "unmarked", "link", "relative")
def test_no_other_folder_is_saved_to_or_removed(stopped, tmp_path, how):
    (ours,) = (tmp_path / "fast").iterdir()
    victim = tmp_path / "thesis"
    victim.mkdir()
    (victim / "weights").write_text("mine")
    named = victim
    if how == "link":
        shutil.rmtree(ours)
        ours.symlink_to(victim)
        named = ours
    elif how != "named":
        named = victim = victim.rename(tmp_path / ours.name)
        if how == "marked as another's":
            mark = json.loads((ours / ".scalebench-run").read_text())
            (victim / ".scalebench-run").write_text(json.dumps(mark | {"run_id": "other"}))
    say_that_checkpoints_are_in(stopped, Path(named.name) if how == "relative" else named)
    with pytest.raises(UsageError, match="which is not a folder of this run"):
        resume(stopped)
    assert (victim / "weights").read_text() == "mine"


@cases("name", "checkpoints", "logs", "cells", "checkpoints/saves")
def test_no_link_in_a_run_folder_is_followed(tmp_path, name):
    start(tmp_path / "run", stop_at="restore")
    outside, inside = tmp_path / "outside", tmp_path / "run" / name
    inside.mkdir(parents=True, exist_ok=True)
    inside.rename(outside)
    (outside / "weights").write_text("mine")
    inside.symlink_to(outside)
    with pytest.raises(UsageError, match=f"{name} is not a file or folder that scalebench made"):
        resume(tmp_path / "run")
    assert (outside / "weights").read_text() == "mine"


def test_of_two_runs_in_one_folder_the_second_changes_nothing(tmp_path):
    out, said = tmp_path / "run", []

    def second():
        with pytest.raises(UsageError) as error:
            start(out)
        said.append(str(error.value))

    start(out, before=second)
    start(tmp_path / "other", before=lambda: None)
    assert said == [f"Another scalebench is working on {out}. Wait until it has ended."]
    run = load_run(out)
    assert run.damaged == {} and len(run.results) == len(run.info.plan)


@pytest.fixture
def of_a_script(tmp_path, monkeypatch):
    project = tmp_path / "project"
    (project / "pack").mkdir(parents=True)
    monkeypatch.chdir(project)
    for name in ("train.py", "pack/train.py"):
        (project / name).write_text("first")
    return project


WAYS = {"train.py": ["train.py"], "pack/train.py": ["-m", "pack.train"]}


@cases("name", *WAYS)
def test_a_script_that_has_changed_is_said(of_a_script, name):
    start(of_a_script / "r", script_suite(WAYS[name], NO_FLAGS), ONE, stop_at="measure")
    info = load_run(of_a_script / "r").info
    assert [file.path for file in info.code] == [str(of_a_script / name)]
    (of_a_script / name).write_text("second")
    with pytest.raises(UsageError, match=rf"{name} has changed since .* add --changed-script"):
        resume(of_a_script / "r")
    resume(of_a_script / "r", False, True)
    after = load_run(of_a_script / "r").info
    assert after.code[0].sha256 != info.code[0].sha256
    assert f"{info.code[0].name} was changed: launches from" in after.notices[-1]
    resume(of_a_script / "r")  # it is known now
    (of_a_script / name).unlink()
    with pytest.raises(UsageError, match=f"{name} is gone"):
        resume(of_a_script / "r", False, True)


def test_a_script_of_another_folder_is_not_taken_for_it(of_a_script, tmp_path, monkeypatch):
    run = of_a_script / "r"
    start(run, script_suite(["train.py"], NO_FLAGS), ONE, stop_at="measure")
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.py").write_text("another")
    monkeypatch.chdir(other)
    with pytest.raises(UsageError, match=f"started in {of_a_script}"):
        resume(run)
    assert go_where_started(Path("../project/r")) == run and Path.cwd() == of_a_script
    resume(run)
    # Of a project that was moved, the same script is taken, and no other one.
    monkeypatch.chdir(tmp_path)
    of_a_script.rename(tmp_path / "moved")
    monkeypatch.chdir(other)
    with pytest.raises(UsageError, match=r"other/train\.py has changed"):
        go_where_started(tmp_path / "moved" / "r")
    monkeypatch.chdir(tmp_path / "moved")
    resume(go_where_started(Path("r")))


LIMIT_S = 30
CELL = "cells/saves.ddp.n1.r0.json.gz"
NAMES = (
    *("run.json", ".lock", "link-profile.json", "summary.json", "summary.csv", "report.html"),
    *("timeline.perfetto.json.gz", ".probe", "cells", CELL, "logs", "checkpoints"),
)


class Hangs(BaseException):
    """No `except` of the product may take this for one of its errors."""


@pytest.fixture
def in_time():
    def stop(*_):
        raise Hangs

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)


def make_socket(path):
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{folder}/{path.name}")  # a longer path does not fit
    os.close(folder)


def make_link_to_pipe(path):
    os.mkfifo("pipe")
    path.symlink_to(Path("pipe").resolve())


def make_huge(path):
    path.touch()
    os.truncate(path, 1 << 40)


KINDS = {
    "pipe": os.mkfifo,
    "link to a pipe": make_link_to_pipe,
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "huge": make_huge,
}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    root = tmp_path_factory.mktemp("template") / "run"
    start(root, stop_at="restore")
    return root


@pytest.fixture
def run(template, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(template, tmp_path / "reports" / "r"))


def put(run, name, kind):
    path = run / name
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    KINDS[kind](path)


def line_of(action, *given):
    try:
        action(*given)
    except (ScalebenchError, OSError) as error:
        assert len(str(error).splitlines()) == 1 and len(str(error)) < 700
        return str(error)
    return ""


@pytest.mark.usefixtures("in_time")
@cases(
    "name, kind",
    *product(NAMES, ("pipe", "device", "folder")),
    *product(("run.json", ".lock", CELL, "summary.json"), ("link to a pipe", "socket", "huge")),
)
def test_what_is_no_file_is_never_waited_for(run, name, kind):
    put(run, name, kind)
    read = line_of(load_run, run)
    assert "run.json" in read if name == "run.json" else read == ""
    if name != "run.json":
        named = {CELL: Path(CELL).name, "link-profile.json": "link-profile.json"}.get(name)
        assert load_run(run).damaged.keys() == ({named} if named else set())
    line_of(read_results, run)
    said = line_of(resume, run)
    if kind not in ("folder", "huge"):
        assert name in said, "nothing else than files and folders is left in it"
        assert stat.S_IFMT((run / name).lstat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR)
    elif kind == "folder" and (Path(name).suffix or name == ".lock"):
        assert name in said
    elif kind == "folder":
        assert said == ""
