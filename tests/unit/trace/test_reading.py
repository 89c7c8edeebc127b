"""Trace files are read side by side, and say the same as one after the other."""

import gzip
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.trace.files import json_stream, reading
from scalebench.trace.files.json_stream import TraceFile
from scalebench.trace.files.reading import read_all
from scalebench.trace.intervals import length_s

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
FILES = sorted(str(file) for file in GOLDEN.glob("*.json.gz"))


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


def test_a_process_that_is_killed_is_one_line(monkeypatch):
    def read(file):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(reading, "read_kineto", read)
    with pytest.raises(EnvironmentUnfit, match="memory ran out"):
        read_all(FILES[:2], "file", 2)


EVENTS = [{"a": "1"}, 17, "text, with ] and }", None, [1, [2, "3.5"]], {"": {}}, True]
CONTENT = json.dumps({"before": 5, "traceEvents": EVENTS, "after": {"x": "y"}})


def read(path):
    file = TraceFile(path)
    return list(file.events()), file.about


@pytest.mark.parametrize("chunk", [*range(1, 20), 1000])
def test_pieces_of_any_size_are_the_same_file(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", chunk)
    for name, data in (("plain", CONTENT.encode()), ("packed", gzip.compress(CONTENT.encode()))):
        (tmp_path / name).write_bytes(data)
        assert read(tmp_path / name) == (EVENTS, {"before": 5, "after": {"x": "y"}})
