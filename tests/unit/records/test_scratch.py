"""Temporary folders: made and cleaned by many at once, and nothing but abandoned ones removed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from scalebench.errors import EnvironmentUnfit
from scalebench.records.storage.folder import MARK, PREFIX, Scratch, remove_abandoned

KILLED = """
import os, signal
from scalebench.records.storage.folder import Scratch
scratch = Scratch()
(scratch.folder / "deep").mkdir()
(scratch.folder / "deep" / "file").touch()
print(scratch.folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
START_AND_CLEAN = """
import os, sys
from scalebench.records.storage.folder import Scratch
processes, rounds = 24, 15
gate, opened = os.pipe()
for _ in range(processes):
    if os.fork() == 0:
        os.close(opened)
        os.read(gate, 1)  # until all are there
        for _ in range(rounds):
            with Scratch() as folder:
                (folder / "file").touch()
                os.sched_yield()
                (folder / "file").unlink()
        os._exit(0)
os.close(opened)
sys.exit(sum(os.wait()[1] != 0 for _ in range(processes)))
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A temporary directory for this test and the processes that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def abandoned():
    """Return the folder of a process that was killed."""
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return Path(done.stdout.strip())


def test_many_that_start_and_clean_at_once_lose_nothing(temporary):
    command = [sys.executable, "-c", START_AND_CLEAN]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next_and_what_is_in_use_stays(temporary):
    left = abandoned()
    with Scratch() as first:
        assert not left.exists()
        forgotten = Scratch()
        with Scratch():
            assert first.is_dir() and forgotten.folder.is_dir()
        other = forgotten.folder
        del forgotten
        assert first.is_dir() and not other.exists()
    assert list(temporary.iterdir()) == []


def test_only_what_is_marked_and_holds_no_run_is_removed(temporary):
    inside = abandoned()  # first: it removes as well
    for name in (f"{PREFIX}run", "scalebench-ddp"):
        (temporary / name).mkdir()
        (temporary / name / ".lock").touch()
    (temporary / f"{PREFIX}run" / MARK).touch()
    (temporary / f"{PREFIX}run" / "run.json").touch()
    (temporary / f"{PREFIX}mine").mkdir()
    (temporary / f"{PREFIX}mine" / "thesis.tex").touch()
    (temporary / f"{PREFIX}file").touch()
    os.mkfifo(temporary / f"{PREFIX}fifo")
    outside = temporary / "outside"
    outside.mkdir()
    for name in (MARK, "keep"):
        (outside / name).touch()
    (temporary / f"{PREFIX}link").symlink_to(outside)
    (inside / "link").symlink_to(outside)
    before = set(temporary.rglob("*")) - {inside, *inside.rglob("*")}
    remove_abandoned()
    assert set(temporary.rglob("*")) == before


def test_no_room_for_a_temporary_folder_is_one_line(temporary, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "gone"))
    with pytest.raises(EnvironmentUnfit, match="set TMPDIR"):
        Scratch()
