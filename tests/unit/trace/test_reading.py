"""Trace files are read side by side, and say the same as one after the other."""

import gzip
import json
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.trace import json_stream, reading
from scalebench.trace.intervals import length_s
from scalebench.trace.json_stream import TraceFile
from scalebench.trace.metadata import Facts, from_annotation, from_metadata, from_request
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


def test_numbers_with_a_fraction_stay_text_and_others_do_not(tmp_path):
    (tmp_path / "a").write_text('[1682725898236567.123, 12, -3, 1e3, "x"]')
    assert read(tmp_path / "a") == (["1682725898236567.123", 12, -3, "1e3", "x"], {})


@pytest.mark.parametrize(("characters", "refused"), [(60, False), (200, True)])
def test_a_value_that_is_too_long_is_no_trace(tmp_path, monkeypatch, characters, refused):
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 8)
    monkeypatch.setattr(json_stream, "LONGEST_VALUE", 64)
    (tmp_path / "a").write_text(json.dumps(["x" * characters]))
    if refused:
        with pytest.raises(UsageError, match="is not JSON"):
            read(tmp_path / "a")
    else:
        assert read(tmp_path / "a")[0] == ["x" * characters]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"traceEvents": [{"ts": 1 "dur": 2}], "padding": "long"}', "is not JSON (Expecting ','"),
        ('{"traceEvents": [tru', "is cut off"),
        ('{"traceEvents": ["abc', "is cut off"),
        ('{"traceEvents": [1, nonsense-that-is-long-enough]}', "is not JSON (Expecting value)"),
        ('{"traceEvents"', "is cut off"),
        ('{"traceEvents":', "is cut off"),
        ('{5: [1], "traceEvents": []}', "is not JSON. A trace"),
        ('{"traceEvents"; [1]}', "is not JSON. A trace"),
        ('"text"', "is not JSON. A trace"),
        ("{}", "is JSON without traceEvents"),
        ("[1, nonsenseword", "is cut off"),  # 12 characters: so long is a number or a word
        ("[1, nonsensewords", "is not JSON (Expecting value)"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, text, words):
    (tmp_path / "a").write_text(text)
    with pytest.raises(UsageError) as refused:
        read(tmp_path / "a")
    assert words in str(refused.value)
    assert str(refused.value).endswith(".") and not str(refused.value).endswith("..")


TOLD = {
    "In msg nelems": "6",
    "Out msg nelems": 24,
    "dtype": "Float",
    "Process Group Name": "7",
    "Group size": 4,
    "Seq": 9,
}


@pytest.mark.parametrize(
    ("name", "kind", "elements"),
    [
        ("allreduce", "all_reduce", 6),
        ("_allgather_base", "all_gather", 24),
        ("_reduce_scatter_base", "reduce_scatter", 6),
        ("recv", "recv", 6),
        ("barrier", "barrier", 0),
    ],
)
def test_metadata_tells_every_fact(name, kind, elements):
    found = from_metadata({"Collective name": name, **TOLD})
    assert found == Facts(kind, 4 * elements, "float32", "7", 4, 9)


def shapes(*dims, types=("double", "float")):
    return {"Input Dims": list(dims), "Input type": list(types)}


@pytest.mark.parametrize(
    ("details", "dtype", "num_bytes"),
    [
        (shapes([2, 3], [5]), None, 2 * 3 * 8 + 5 * 4),
        (shapes([2, 3], types=["float"]), "float32", 24),
        (shapes([], types=["double"]), "float64", 8),
        (shapes([0, 3], types=["float"]), "float32", 0),
        (shapes([2, 3], [5], types=["float", "unheard of"]), None, None),
        (shapes(["a"], types=["float"]), None, None),
        (shapes(), None, None),
        ({"Input Dims": [[2]]}, None, None),
        ({"Input type": ["float"]}, None, None),
    ],
)
def test_an_annotation_has_the_size_of_all_that_is_handed_in(details, dtype, num_bytes):
    assert from_annotation("gloo:all_reduce", details, 3) == Facts("all_reduce", num_bytes, dtype)


def test_an_all_gather_is_as_large_as_all_ranks_parts():
    details = shapes([2, 3], types=["float"])
    assert from_annotation("gloo:all_gather", details, 3).num_bytes == 72
    assert from_annotation("gloo:all_gather", details, None).num_bytes is None
    assert from_annotation("gloo:barrier", details, 3) == Facts("barrier", 0)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("c10d::_allgather_base_", Facts("all_gather", 48, "float64")),
        ("c10d::_reduce_scatter_base_", Facts("reduce_scatter", 20, "float32")),
        ("c10d::alltoall_base_", Facts("all_to_all", 20, "float32")),
        ("c10d::allreduce_", Facts("all_reduce")),
        ("c10d::barrier", Facts("barrier", 0)),
    ],
)
def test_a_request_has_its_full_tensor_at_its_place(name, found):
    assert from_request(name, shapes([2, 3], [5])) == found
