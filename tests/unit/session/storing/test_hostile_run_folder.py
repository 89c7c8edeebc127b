"""What is no file in a run folder is said in one line, and never waited for."""

import os
import shutil
import signal
import socket
import stat
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from scalebench.analysis.run import load_run
from scalebench.errors import ScalebenchError
from scalebench.session.interleaved.ab_runs import read_results
from tests.builders.sessions import resume, start

pytestmark = pytest.mark.slow

LIMIT_S = 30
CELL = "cells/saves.ddp.n1.r0.json.gz"
NAMES = (
    *("run.json", ".lock", "link-profile.json", "summary.json", "summary.csv", "report.html"),
    *("timeline.perfetto.json.gz", ".probe", "cells", CELL, "logs", "checkpoints"),
)


class Hangs(BaseException):
    """No `except` of the product may take this for one of its errors."""


@pytest.fixture(autouse=True)
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


KINDS: dict[str, Callable[[Path], None]] = {
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


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *product(NAMES, ("pipe", "device", "folder")),
        *product(("run.json", ".lock", CELL, "summary.json"), ("link to a pipe", "socket", "huge")),
    ],
)
def test_what_is_no_file_is_never_waited_for(run, name, kind):
    put(run, name, kind)
    read = line_of(load_run, run)
    if name == "run.json":
        assert "run.json" in read
    else:
        assert read == ""
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
