"""Real runs: small, short, and with the troubles of `troubled` at hand."""

import json
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ran

TRACED = ("--quick", "--steps", "4", "--no-report", "--batch-size", "16")
SHORT = (*TRACED, "--no-trace")


@pytest.fixture
def troubled(project):
    """Put the troubled workloads where ``--workload troubled:NAME`` finds them."""
    shutil.copy(Path(__file__).with_name("troubled.py"), project)


@contextmanager
def mounted(folder, option):
    folder.mkdir()
    done = ran(["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(folder)])
    if done.returncode:
        pytest.skip(f"cannot mount a small disk here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        ran(["umount", "-l", str(folder)], code=0)


def summary_of(run):
    return dict(json.loads((run / "summary.json").read_text()))


def row_of(run, case, world_size):
    rows = summary_of(run)["rows"]
    return next(r for r in rows if (r["case"], r["world_size"]) == (case, world_size))


PROGRESS = re.compile(r"scalebench: \d+ s: ")
"""A line about every ten seconds."""


def complaint(done, code=2):
    """Return the one line that was printed, but for progress; fails on anything else."""
    assert done.returncode == code, (done.returncode, done.stderr)  # type: ignore[attr-defined]
    assert done.stdout == ""  # type: ignore[attr-defined]
    told = done.stderr.splitlines()  # type: ignore[attr-defined]
    lines = [line for line in told if not PROGRESS.match(line)]
    assert len(lines) == 1, lines
    assert lines[0].startswith("scalebench: ")
    return str(lines[0])
