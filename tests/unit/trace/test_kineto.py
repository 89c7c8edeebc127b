import gzip
import json
import os
import signal
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.trace.events import length_s
from scalebench.trace.files import json_stream, reading
from scalebench.trace.files.kineto import read_kineto
from scalebench.trace.files.reading import read_all
from tests.examples import cases

KERNEL = {
    "ph": "X", "cat": "kernel", "name": "ncclDevKernel_Generic", "pid": 0, "tid": 20,
    "ts": 1682725898236567, "dur": 10.5, "args": {"correlation": 9, "stream": 20},
}  # fmt: skip
KERNEL_TEXT = json.dumps(KERNEL).replace("236567", "236567.123")
"""The same to the nanosecond, which a double does not hold."""

OP = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 4, "tid": 4, "ts": 5, "dur": 2}


def written(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@cases(
    "content",
    '{"traceEvents": [EVENT]}',
    '{"n": 1234567, "traceEvents": [EVENT]}',
    '{"a": [1, 2, {"traceEvents": 7}], "traceEvents": [EVENT], "z": null, "n": 1234}',
    '{"traceEvents":[EVENT],"baseTimeNanoseconds":0}',
    "[EVENT]",
    '\ufeff{"traceEvents": [EVENT]}',
    '{\n\n "traceEvents" :\t[\r\nEVENT\n]\n ,\n}',
    '{"traceEvents": [{"args": {"x": NaN, "y": "a\tb"}, "ph": "i"}, EVENT]}',
)
def test_formatting_and_order_do_not_matter(tmp_path, monkeypatch, content):
    path = written(tmp_path / "trace.json", content.replace("EVENT", KERNEL_TEXT))
    for chunk_bytes in (1, 7, 1 << 20):
        monkeypatch.setattr(json_stream, "CHUNK_BYTES", chunk_bytes)
        events = read_kineto(path)
        assert len(events) == 1
        assert (events.end_ns - events.start_ns).tolist() == [10_500]
        assert events.correlation.tolist() == [9]
        assert events.clock_offset_ns == 1682725898236567123


def test_as_many_kernels_without_a_time_as_with_one_are_left_out(tmp_path):
    rows = [{**KERNEL, "ts": 0}, KERNEL, {**KERNEL, "ts": 0, "tid": 8}, {**KERNEL, "tid": 8}]
    events = read_kineto(written(tmp_path / "trace.json", rows))
    assert (len(events), events.num_left_out) == (2, 2)
    endless = {**KERNEL, "dur": 86_400_000_000}
    with pytest.raises(UsageError, match="no event with a valid time"):
        read_kineto(written(tmp_path / "trace.json", [endless]))


def test_what_the_device_did_once_counts_once(tmp_path):
    """Merged files say it again; another stream, or another launch, is something else."""
    others = [{**KERNEL, "tid": 21}, {**KERNEL, "args": {"correlation": 10}}]
    nothing, op = {**KERNEL, "dur": 0}, {**OP, "ts": KERNEL["ts"]}
    path = written(tmp_path / "trace.json", [KERNEL, op, *others, KERNEL, op, nothing, nothing])
    events = read_kineto(path)
    assert [len(events.of("kernel")), len(events.of("cpu_op")), events.num_left_out] == [5, 2, 0]


def test_copies_that_rocm_carries_out_by_kernels_are_none(tmp_path):
    names = ("__amd_rocclr_copyBuffer", "__amd_rocclr_fillBufferAligned", "Cijk_Ailk_Bljk")
    path = written(tmp_path / "trace.json", [{**KERNEL, "name": name} for name in names])
    events = read_kineto(path)
    found = [events.of(category).tolist() for category in ("gpu_memcpy", "gpu_memset", "kernel")]
    assert found == [[0], [1], [2]]


WHOLE = json.dumps({"traceEvents": [KERNEL, OP]}).encode()


@cases(
    "data, words",
    (b"", "is empty"),
    (b"Registration", "is not JSON"),
    (b"{traceEvents: []}", "is not JSON"),
    (b'{"traceEvents": [{"ts": 1 "dur": 2}], "padding": "not near the end"}', "is not JSON"),
    (b'{"traceEvents": {}}', "without traceEvents"),
    (b"[]", "no event with a duration"),
    (b"[" * 100_000, "not a trace"),
    (WHOLE[:-1], "cut off"),
    (WHOLE[: len(WHOLE) // 2], "cut off"),
    (gzip.compress(WHOLE, mtime=0)[:-9], "cut off"),
    (b"\x1f\x8b", "cut off"),
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_told_in_one_line(tmp_path, data, words):
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    with pytest.raises(UsageError) as refused:
        read_kineto(path)
    text = str(refused.value)
    assert str(path) in text
    assert words in text
    assert "\n" not in text
    assert text.endswith(".")


def test_memory_does_not_grow_with_what_is_left_out(tmp_path):
    """30 MB of metadata and arguments, of which nothing is kept."""
    filler = json.dumps({"ph": "M", "name": "m", "args": {"text": "x" * 1000}})
    path = tmp_path / "trace.json"
    with path.open("w") as file:
        file.write('{"traceEvents": [')
        for _ in range(30_000):
            file.write(filler + ",")
        file.write(json.dumps(OP) + "]}")
    tracemalloc.start()
    assert len(read_kineto(path)) == 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 30e6
    assert peak < 12e6


HOST = {**OP, "cat": "cuda_runtime", "ts": 1000, "dur": 5}
EPOCH = 1.6e15


@cases(
    "start, changed, is_kept",
    (1010, {}, True),
    (900, {}, True),  # launched before the trace began
    (0, {"dur": 0}, False),
    (1e18, {}, False),
    (float("inf"), {}, False),
    (1010, {"dur": float("inf")}, False),
    (1010, {"dur": 1e12}, False),
    *((1010, {"dur": text}, False) for text in ("soon", "1e999999999", "nan")),
    (0, {"cat": "gpu_memcpy"}, False),
)
@cases("base", 0, EPOCH)
def test_what_cannot_be_where_the_file_has_it_is_left_out_and_counted(
    tmp_path, start, changed, is_kept, base
):
    whole = [{**HOST, "ts": base + 1000}, {**KERNEL, "ts": base + 1020}]
    ts = start if start == 0 or not abs(start) < 1e10 else base + start
    events = read_kineto(written(tmp_path / "a.json", [*whole, {**KERNEL, "ts": ts, **changed}]))
    assert (len(events), events.num_left_out) == ((3, 0) if is_kept else (2, 1))
    assert events.start_ns.max() < 10**9


GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
FILES = sorted(str(file) for file in GOLDEN.glob("*.json.gz"))


@pytest.mark.slow
@cases("window", "file", "steps")
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
