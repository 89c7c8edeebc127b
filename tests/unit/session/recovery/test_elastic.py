"""A job with fewer ranks: who trains what, and what was noted made into stretches."""

import errno
import os
from collections import namedtuple

import pytest

from scalebench.errors import UsageError
from scalebench.session.recovery import directory
from scalebench.spec.recovery import Recovery
from tests.builders.runs import make_cell

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


def test_a_directory_that_is_too_small(cells, tmp_path, monkeypatch):
    monkeypatch.setattr(directory.shutil, "disk_usage", lambda _: Usage(10, 9, 1000))
    needed = 3 * 3 * 12 * cells[1].workload.num_parameters
    assert directory.needed_bytes(cells) == needed
    with pytest.raises(UsageError, match=r"has 1\.00 kB free, and they need about"):
        directory.with_directory(cells, tmp_path, tmp_path, "x")
