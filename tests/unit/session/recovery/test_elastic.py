"""A job with fewer ranks: who trains what, and what was noted made into stretches."""

import errno
import itertools
import os
from collections import namedtuple

import pytest

from scalebench.errors import UsageError
from scalebench.records.measured.fault_events import Event
from scalebench.session.recovery import directory
from scalebench.session.recovery.timeline import NoTimeline, timeline_of
from scalebench.spec.recovery import PHASES, FaultPlan, Recovery
from tests.builders.runs import make_cell
from tests.examples import cases

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def cells():
    saving = make_cell("ddp", 2).model_copy(update={"purpose": "save", "recovery": Recovery()})
    return [make_cell("ddp", 2), saving]


def test_a_directory_that_is_not_there(cells, tmp_path):
    with pytest.raises(UsageError, match="there is no such directory"):
        directory.with_directory(cells, tmp_path / "missing", tmp_path, "x")


def refusing(number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    return refuse


@cases(
    "number, why",
    (errno.EACCES, "Permission denied"),
    (errno.EROFS, "Read-only file system"),
    (errno.ENOSPC, "No space left on device"),
)
def test_a_directory_that_cannot_be_written(cells, tmp_path, monkeypatch, number, why):
    monkeypatch.setattr(directory.tempfile, "NamedTemporaryFile", refusing(number))
    with pytest.raises(UsageError, match=f"cannot go into .*: {why}. Give a directory that you"):
        directory.with_directory(cells, tmp_path, tmp_path, "x")


def test_a_directory_that_is_too_small(cells, tmp_path, monkeypatch):
    monkeypatch.setattr(directory.shutil, "disk_usage", lambda _: Usage(10, 9, 1000))
    needed = 3 * 3 * 12 * cells[1].workload.num_parameters
    assert directory.needed_bytes(cells) == needed
    with pytest.raises(UsageError, match=r"has 1\.00 kB free, and they need about"):
        directory.with_directory(cells, tmp_path, tmp_path, "x")


MS = 1_000_000
PLAN = FaultPlan(kind="kill", rank=1, at_step=6)
OUTSIDE = (100 * MS, 110 * MS, 160 * MS)
BEFORE = [
    [Event("step", n, n * 10 * MS) for n in range(1, 7)],
    [Event("step", n, n * 10 * MS) for n in range(1, 6)],
]


def continued(start=200, connected=20, built=40, load=50, step=10, saved=4, steps=3, data=5):
    parts = [start, connected, built, load - data, data, *[step] * steps]
    times = list(itertools.accumulate(parts))
    names = [("started", 77), ("connected", 0), ("built", 0), ("state", 0), ("loaded", saved)]
    names += [("step", saved + 1 + n) for n in range(steps)]
    return [Event(name, n, t * MS) for (name, n), t in zip(names, times, strict=True)]


def phases(*after, outside=OUTSIDE):
    return timeline_of(PLAN, "scalebench", outside, BEFORE, after or [continued(), continued()])


@cases(
    "argument, phase",
    ("start", "start"),
    ("connected", "rendezvous"),
    ("built", "build"),
    ("load", "load"),
)
def test_a_delay_is_found_in_its_phase_and_nowhere_else(argument, phase):
    usual = phases().phases_s
    late_by = {"start": 200, "connected": 20, "built": 40, "load": 50}[argument] + 300
    slow = phases(continued(), continued(**{argument: late_by})).phases_s
    more = {name: slow[name] - usual[name] for name in PHASES}
    assert more.pop(phase) == pytest.approx(0.3)
    assert all(abs(rest) < 1e-9 for rest in more.values())


def test_a_rank_that_does_not_get_as_far_is_said():
    with pytest.raises(NoTimeline, match="did not come to 'step 7'"):
        phases(continued(), continued(steps=2))
