"""What is said of a job's traces, what the JSON has, and the tables and page made of it."""

import json
import re
from pathlib import Path

import pytest

from scalebench.report.page.trace_page import render_trace_page
from scalebench.report.tables.layout import Screen
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


def ranks_of(*files):
    return {
        Path(r.trace.file).name: (r.trace.rank, r.trace.rank_from) for r in analyse_job(files).ranks
    }


@pytest.mark.parametrize("names", [("rank3.json", "other.json"), ("a_rank3.json", "b_rank3.json")])
def test_names_that_do_not_tell_every_rank_tell_none(write, names):
    first, second = (write(name, trace()) for name in names)
    assert ranks_of(first, second) == {names[0]: (0, "order"), names[1]: (1, "order")}


def test_the_same_file_twice_counts_once(write):
    file = write("a.json", trace(rank=0))
    job = analyse_job([file, file])
    assert len(job.ranks) == 1
    assert f"{file} was given 2 times and is counted once." in job.notices
    (other,) = analyse_job([write("b.json", trace(rank=0))]).ranks
    assert not any("given" in notice for notice in analyse_job([other.trace.file]).notices)


@pytest.mark.parametrize(
    ("more", "ranks", "is_known"),
    [
        ([], 2, False),
        ([("user_annotation", "gloo:all_reduce", 30, 40)], 2, True),
        ([], 1, True),  # it has nothing to exchange
    ],
)
def test_calls_of_cpu_ranks_without_a_mark_leave_no_zero(write, more, ranks, is_known):
    rows = [("cpu_op", "aten::mm", 0, 10), ("cpu_op", "c10d::allreduce_", 20, 25), *more]
    rows += [("cpu_op", "c10d::barrier", 50, 60)]
    events = [
        {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": end - start, "tid": 7}
        for cat, name, start, end in rows
    ]
    content = {"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": ranks}}
    job = analyse_job([write("rank0.json", content)])
    (file,) = as_json(job)["files"]
    assert (file["comm_s"] is not None) is (file["idle_s"] is not None) is is_known
    assert ("1 of 1 c10d calls" in " ".join(job.notices)) is not is_known
    if not is_known:
        assert file["unavailable"]["comm_s"] == "1 of 1 c10d calls have no mark of a backend"
        assert "was hidden is not known: calls have no mark of a backend." in render_trace_page(job)


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
    assert (
        "may be communication: mine::exchange<8>(int), " in render_traces(job, Screen())
    ) is several
    assert "not separated" not in render_traces(job, Screen())
    named = analyse_job(files, communication=re.compile(r"^mine::"))
    assert named.ranks[0].figures.overlap_s == pytest.approx(5e-6)
    assert not any("recognised" in notice for notice in named.notices)
    nothing = analyse_job(files, communication=re.compile("yours"))
    assert "--communication yours is found in the name of no GPU kernel." in nothing.notices


@pytest.mark.parametrize("library", ["mine::exchange<8>(int)", "hx_swap", "p2p(half*)"])
def test_an_unknown_library_beside_nccl_is_suspected_with_the_remedy(write, library):
    known = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"}
    job = apart(0, 8)
    job["traceEvents"][1]["name"] = library
    job["traceEvents"].append({**known, "ts": 12, "dur": 5, "tid": 27})
    found = analyse_job([write("a.json", job)])
    assert list(found.ranks[0].trace.timeline.unknown) == [library]
    assert any(notice.endswith("name them: --communication REGEX.") for notice in found.notices)
    named = analyse_job([write("a.json", job)], communication=re.compile(re.escape(library)))
    assert not named.ranks[0].trace.timeline.unknown
    assert named.ranks[0].figures.comm_s == pytest.approx(20e-6)


@pytest.mark.parametrize(("starts", "said"), [((1,), "1 kernel begins"), ((1, 2), "2 kernels beg")])
def test_kernels_before_their_launch_are_counted_and_said(write, starts, said):
    both = (("cuda_runtime", "cudaLaunchKernel", 1), ("kernel", "gemm", 7))
    events = [
        {
            "ph": "X",
            "cat": cat,
            "name": name,
            "ts": ts,
            "dur": 4,
            "tid": tid,
            "args": {"correlation": n},
        }
        for n in (1, 2, 3)
        for cat, name, tid in both
        for ts in [10 * n + (cat == "kernel") * (-3 if n in starts else 3)]
    ]
    job = analyse_job([write("a.json", {"traceEvents": events})])
    (notice,) = [one for one in job.notices if said in one]
    assert notice.endswith("cannot be true; they count as the trace has them.") is True
    assert job.total.compute_s == pytest.approx(12e-6)


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


BESIDE = "communication during copies"


def with_copies():
    """Compute 0-10, communication 5-25, a copy 20-40: 5 µs of communication beside it alone."""
    copying = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH", "ts": 20, "dur": 20, "tid": 9}
    written = trace(0, 1)
    return {**written, "traceEvents": [*written["traceEvents"], copying]}


def test_communication_beside_copies_is_shown_as_that(write):
    job = analyse_job([write("a.json", with_copies())])
    (file,) = as_json(job)["files"]
    assert file["comm_beside_copies_s"] == pytest.approx(5e-6)
    assert file["copies_alone_s"] == pytest.approx(15e-6)
    assert (file["overlap_s"], file["exposed_comm_s"]) == (
        pytest.approx(5e-6),
        pytest.approx(15e-6),
    )
    told = "rank 0: 5.00 µs of the exposed communication ran during copies, without computation"
    assert told in render_traces(job, Screen())
    page = render_trace_page(job)
    assert told in page
    spec = json.loads(re.search(r'id="trace-parts-spec">(.*?)</script>', page, re.DOTALL)[1])
    bars = {bar["name"]: bar["x"][0] for bar in spec["data"]}
    assert bars[BESIDE] == pytest.approx(0.005)
    assert bars["communication alone"] == pytest.approx(0.010)
    assert bars["copies only"] == pytest.approx(0.015)
    assert sum(bars.values()) == pytest.approx(0.040)


def test_names_of_a_trace_are_harmless_in_table_and_page(write):
    job = analyse_job([write("a.json", trace(0, 2, [(HOSTILE, 30, 40)]))])
    assert "\x1b" not in render_traces(job, Screen())
    page = render_trace_page(job)
    assert "</script><b>" not in page
    assert "&lt;/script&gt;&lt;b&gt;all_reduce" in page


def test_of_a_deep_stack_the_innermost_calls_are_shown(write):
    frames = [f"model.py({n}): forward" for n in range(9)] + ["torch/nn.py(1): _call"]
    rows = [
        *(("python_function", name, 20, 60, 1, None) for name in frames),
        *(("cuda_runtime", "cudaLaunchKernel", start, 1, 1, 1 + start) for start in (5, 70)),
        *(("kernel", "gemm", start, 10, 7, start - 1) for start in (7, 72)),
    ]
    events = [
        {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid,
         "args": {} if link is None else {"correlation": link}}
        for cat, name, ts, dur, tid, link in rows
    ]  # fmt: skip
    shown = render_traces(analyse_job([write("a.json", {"traceEvents": events})]), Screen())
    told = " ".join(shown.partition("the host meanwhile: ")[2].split())
    assert told.startswith("… > model.py(3): forward > ") and "torch/nn.py" not in told
