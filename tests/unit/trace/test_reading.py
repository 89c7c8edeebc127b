"""Trace files are read side by side, and say the same as one after the other."""

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.trace import reading
from scalebench.trace.intervals import length_s
from scalebench.trace.reading import read_all

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
FILES = sorted(str(file) for file in GOLDEN.glob("*.json.gz"))
REAL_READ = reading.read_kineto


@pytest.mark.parametrize("window", ["file", "steps"])
def test_several_processes_say_what_one_says(window, tmp_path):
    cut = tmp_path / "cut.json"
    cut.write_text('{"traceEvents": [')
    files = [FILES[0], str(cut), *FILES[1:], str(tmp_path / "missing.json")]
    alone, beside = (read_all(files, window, n) for n in (1, 3))
    assert list(alone) == list(beside) == files
    assert len([one for one in beside.values() if isinstance(one, UsageError)]) >= 2
    for one, other in zip(alone.values(), beside.values(), strict=True):
        if isinstance(one, UsageError):
            assert str(one) == str(other)
        else:
            assert one.figures == other.figures and np.array_equal(one.exposed, other.exposed)
            assert one.timeline.operations == other.timeline.operations
            assert length_s(one.exposed) == pytest.approx(one.figures.exposed_comm_s)
            assert len(other.timeline.compute) == len(other.timeline.copies) == 0


@pytest.mark.parametrize("num_processes", [2, None])
def test_files_are_read_at_the_same_time(monkeypatch, num_processes):
    """By default as many as there are cores."""
    both = multiprocessing.get_context("fork").Barrier(2, timeout=60)

    def read(file):
        both.wait()  # breaks unless two processes are here at once
        return REAL_READ(file)

    monkeypatch.setattr(reading, "read_kineto", read)
    monkeypatch.setattr(reading, "num_cores", lambda: 2)
    found = read_all(FILES[:2], "file", num_processes)
    assert all(not isinstance(one, Exception) for one in found.values())


def test_a_process_that_is_killed_is_one_line(monkeypatch):
    def read(file):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(reading, "read_kineto", read)
    with pytest.raises(EnvironmentUnfit, match="memory ran out"):
        read_all(FILES[:2], "file", 2)
