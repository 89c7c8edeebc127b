"""A job with fewer ranks: who trains what, and what was noted made into stretches."""

import errno
import os
import signal
import subprocess
from collections import namedtuple

import pytest

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records.fault_events import Event, FaultFolder
from scalebench.session.recovery import directory
from scalebench.session.recovery.elastic import elastic_run, goes_on_with_fewer, with_fewer_ranks
from scalebench.session.recovery.striking import Striking
from scalebench.session.recovery.timeline import NoTimeline
from scalebench.spec import Ddp, Fsdp, Mesh
from scalebench.spec.recovery import FaultPlan, Recovery
from tests.builders.runs import make_cell

MS = 1_000_000


def failing(world_size, strategy=None, **changes):
    plan = Recovery(directory="/somewhere")
    return make_cell("ddp", world_size, strategy=strategy, recovery=plan, **changes)


@pytest.mark.parametrize(
    ("world_size", "strategy", "expected"),
    [
        (2, Ddp(), (1, 32, 2)),
        (2, Ddp(accumulate=2), (1, 32, 4)),
        (4, Ddp(), (2, 16, 2)),  # 3 do not divide a batch of 32
        (2, Fsdp(), (1, 32, 1)),
    ],
)
def test_fewer_ranks_keep_the_global_batch(world_size, strategy, expected):
    fewer = with_fewer_ranks(failing(world_size, strategy))
    parts = getattr(fewer.strategy, "accumulate", 1)
    assert (fewer.world_size, fewer.rank_batch, parts) == expected
    assert fewer.global_batch == 32


def test_only_data_parallel_jobs_of_two_ranks_or_more_go_on():
    assert goes_on_with_fewer(failing(2)) and not goes_on_with_fewer(failing(1))
    assert not goes_on_with_fewer(failing(2, Mesh(shard=None, tensor=2)))
    off = failing(2).model_copy(update={"recovery": Recovery(elastic=False)})
    assert not goes_on_with_fewer(off)


def steps(first, last, every_ms, began_ms=0, late_ms=0, loss=1.0):
    return [
        Event("step", n, (began_ms + (n - first + 1) * every_ms + late_ms) * MS, loss)
        for n in range(first, last + 1)
    ]


def test_stretches_are_steps_that_all_ranks_have_done():
    cells = [failing(2), with_fewer_ranks(failing(2)), failing(2)]
    before = [steps(1, 7, 10, loss=4.0), steps(1, 6, 10, late_ms=1, loss=2.0)]
    fewer = [steps(5, 8, 20, began_ms=500, loss=3.0)]
    again = [steps(9, 11, 10, began_ms=700), steps(9, 11, 10, began_ms=705)]
    found = elastic_run(cells, [before, fewer, again], [steps(1, 11, 10)] * 2, 65 * MS)
    first, second, third = found.stretches
    assert (first.first, first.loss) == (1, [3.0] * 6)
    assert first.step_s == pytest.approx([0.01] * 4)  # not the one after the save at step 4
    assert (second.first, second.loss, second.step_s) == (5, [3.0] * 4, pytest.approx([0.02] * 3))
    assert third.first == 9 and len(found.unbroken_loss) == 11
    assert found.shrink_s == pytest.approx(0.455)  # from 65 ms to 520 ms
    assert found.grow_s == pytest.approx(0.135)  # from 580 ms to 715 ms


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


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.EACCES, "Permission denied"),
        (errno.EROFS, "Read-only file system"),
        (errno.ENOSPC, "No space left on device"),
    ],
)
def test_a_directory_that_cannot_be_written(cells, tmp_path, monkeypatch, number, why):
    monkeypatch.setattr(directory.tempfile, "NamedTemporaryFile", refusing(number))
    with pytest.raises(UsageError, match=f"cannot go into .*: {why}. Give a directory that you"):
        directory.with_directory(cells, tmp_path, tmp_path, "x")


def test_a_directory_that_cannot_keep_files(cells, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", refusing(errno.EINVAL))
    what = "where fsync fails: Invalid argument. Give a directory on another"
    with pytest.raises(UsageError, match=what):
        directory.with_directory(cells, tmp_path, tmp_path, "x")


def test_a_directory_that_is_too_small(cells, tmp_path, monkeypatch):
    monkeypatch.setattr(directory.shutil, "disk_usage", lambda _: Usage(10, 9, 1000))
    needed = 3 * 3 * 12 * cells[1].workload.num_parameters
    assert directory.needed_bytes(cells) == needed
    with pytest.raises(UsageError, match=r"has 1\.00 kB free, and they need about"):
        directory.with_directory(cells, tmp_path, tmp_path, "x")


@pytest.fixture
def rank():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture
def folder(tmp_path, rank):
    """Return what a rank has noted that has done its step."""
    folder = FaultFolder(tmp_path)
    folder.note(0, 1, "started", rank.pid)
    folder.note(0, 1, "step", 6)
    return folder


def strike(folder, rank, kind, cut_link=None):
    with Striking(folder, [FaultPlan(kind=kind, rank=1, at_step=6)], cut_link) as striking:
        rank.wait()
    return striking


@pytest.mark.parametrize("error", [EnvironmentUnfit("the holder has ended"), ValueError("closed")])
def test_a_link_that_cannot_be_cut_is_said_and_its_rank_ends(folder, rank, error):
    def refuse():
        raise error

    with pytest.raises(NoTimeline, match=f"rank 1 could not be made to fail: {error}"):
        strike(folder, rank, "link", refuse)
    assert rank.returncode == -signal.SIGKILL
