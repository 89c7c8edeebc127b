"""What is said of a job's traces, what the JSON has, and the tables and page made of it."""

import json
import re
from pathlib import Path

import pytest

from scalebench.report.page.trace_page import render_trace_page
from scalebench.report.tables.traces import render_traces
from scalebench.trace.job import analyse_job, as_json

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
BOTH = sorted(GOLDEN.glob("nccl-sendrecv*.json.gz"))
HOSTILE = "</script><b>all_reduce %{x} \x1b[31m"


def trace(rank=None, world_size=None, kernels=(), **more):
    """A trace as a file holds it; microseconds."""
    job = {k: v for k, v in {"rank": rank, "world_size": world_size}.items() if v is not None}
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": end - start, "tid": 7}
        for name, start, end in (*kernels, ("gemm", 0, 10), ("ncclDevKernel_Generic", 5, 25))
    ]
    return {"traceEvents": events, "distributedInfo": job, **more}


@pytest.fixture
def write(tmp_path):
    def written(name, content):
        (tmp_path / name).write_text(json.dumps(content))
        return tmp_path / name

    return written


def apart(rank, world_size):
    """A rank whose one stream computes and whose other does what nobody knows."""
    rows = [("gemm", 0, 10, 7), ("mine::exchange<8>(int)", 5, 25, 20)]
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": end - start, "tid": stream}
        for name, start, end, stream in rows
    ]
    job = {"rank": rank, "world_size": world_size}
    return {"traceEvents": events, "distributedInfo": job if world_size else {}}


@pytest.mark.parametrize(("world_size", "many"), [(64, 1), (None, 2), (1, 1), (None, 1)])
def test_a_job_without_communication_names_what_may_be_it(write, world_size, many):
    files = [write(f"rank{n}.json", apart(n, world_size)) for n in range(many)]
    job = analyse_job(files)
    said = [notice for notice in job.notices if "No communication was recognised" in notice]
    several = (world_size or many) > 1
    assert len(said) == several
    for file in as_json(job)["files"]:
        assert bool(file["unknown_kernels"]) is several
        reason = f"a job of {world_size or many} ranks" if several else "there was no communication"
        assert reason in file["unavailable"]["overlap_ratio"]
    assert not several or "If the kernels named below communicate" in said[0]
    assert ("may be communication: mine::exchange<8>(int), " in render_traces(job)) is several
    named = analyse_job(files, communication=re.compile(r"^mine::"))
    assert named.ranks[0].figures.overlap_s == pytest.approx(5e-6)
    assert not any("recognised" in notice for notice in named.notices)
    nothing = analyse_job(files, communication=re.compile("yours"))
    assert "--communication yours is found in the name of no GPU kernel." in nothing.notices


NAMES = {
    "file", "rank", "rank_from", "device", "num_steps", "window_s", "comm_s", "compute_s",
    "overlap_s", "exposed_comm_s", "overlap_ratio", "comm_compute_ratio", "copies_s", "idle_s",
    "kinds", "phases", "exposed_transfer_s", "wait_s", "unknown_kernels", "unavailable",
    "copies_alone_s", "comm_beside_copies_s", "num_calls", "num_unseen_calls",
}  # fmt: skip
"""A contract: never take one away."""


def test_json():
    answer = json.loads(json.dumps(as_json(analyse_job(BOTH)), allow_nan=False))
    assert answer["format"] == "scalebench.trace/1"
    assert answer["window"] == "file"
    assert answer["world_size"] == 128
    assert [file["rank"] for file in answer["files"]] == [0, 1]
    for file in answer["files"]:
        assert set(file) >= NAMES
        assert file["overlap_ratio"] == pytest.approx(1 - file["exposed_comm_s"] / file["comm_s"])
        missing = {name for name, value in file.items() if value is None}
        assert missing == set(file["unavailable"])
        assert set(file["kinds"][0]) == {
            "kind", "count", "payload_bytes", "total_s", "exposed_s", "hidden_s",
        }  # fmt: skip
    assert answer["files"][0]["comm_s"] == pytest.approx(0.396199, rel=1e-3)
    beside = [file["comm_beside_copies_s"] for file in answer["files"]]
    assert beside == pytest.approx([0.950e-3, 4.028e-3], rel=1e-3)  # counted by tenths of a µs
    assert answer["total"]["comm_s"] == pytest.approx(0.396199 + 0.379053, rel=1e-3)


def test_names_of_a_trace_are_harmless_in_table_and_page(write):
    job = analyse_job([write("a.json", trace(0, 2, [(HOSTILE, 30, 40)]))])
    assert "\x1b" not in render_traces(job)
    page = render_trace_page(job)
    assert "</script><b>" not in page
    assert "&lt;/script&gt;&lt;b&gt;all_reduce" in page
