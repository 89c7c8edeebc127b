"""Traced blocks of a script: every mark lies between two readings of the machine's clock."""

from scalebench.worker.attach.tracing import Traces
from scalebench.worker.script.traces import capture_of


def test_a_stored_block_tells_whether_the_clocks_moved(tmp_path):
    traces = Traces("cpu")
    traces.begin(7)
    for _ in range(4):
        traces.mark()
    traces.store(tmp_path, 0)
    (block,) = traces.blocks
    marks = list(zip(block["before_ns"], block["step_ns"], strict=True))
    assert len(marks) == 5 and all(before <= inside for before, inside in marks)
    assert capture_of(block).clock_error_s < 1e-3
    moved = [inside + (500_000_000 if i > 2 else 0) for i, inside in enumerate(block["step_ns"])]
    ahead = [before + (500_000_000 if i > 2 else 0) for i, before in enumerate(block["before_ns"])]
    found = capture_of(block | {"step_ns": moved, "before_ns": ahead})
    assert 0.4 < found.clock_error_s < 0.6
