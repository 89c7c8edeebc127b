import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scalebench.errors import UsageError
from scalebench.report.page.other_pages import render_trace_page
from scalebench.report.tables.layout import Screen
from scalebench.report.tables.traces import render_traces
from scalebench.trace.events import Timeline, intervals
from scalebench.trace.files.metadata import name_ranks
from scalebench.trace.job import analyse_job, as_json
from tests.builders.repository.field_files import field_file
from tests.examples import cases

GOLDEN = Path(__file__).parents[2] / "golden" / "traces"
BOTH = sorted(GOLDEN.glob("nccl-sendrecv*.json.gz"))
HOSTILE = "</script><b>all_reduce %{x} \x1b[31m"


def x(cat, name, ts, dur, tid=7, **more):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, **more}


def trace(rank=None, world_size=None, kernels=(), **more):
    """A trace as a file holds it; microseconds."""
    job = {k: v for k, v in {"rank": rank, "world_size": world_size}.items() if v is not None}
    rows = (*kernels, ("gemm", 0, 10), ("ncclDevKernel_Generic", 5, 25))
    events = [x("kernel", name, start, end - start) for name, start, end in rows]
    return {"traceEvents": events, "distributedInfo": job, **more}


@pytest.fixture
def write(tmp_path):
    def written(name, content):
        (tmp_path / name).write_text(json.dumps(content))
        return tmp_path / name

    return written


def test_the_same_file_twice_counts_once(write):
    file = write("a.json", trace(rank=0))
    job = analyse_job([file, file])
    assert len(job.ranks) == 1
    assert f"{file} was given 2 times and is counted once." in job.notices
    (other,) = analyse_job([write("b.json", trace(rank=0))]).ranks
    assert not any("given" in notice for notice in analyse_job([other.trace.file]).notices)


@cases(
    "more, ranks, is_known",
    ([], 2, False),
    ([("user_annotation", "gloo:all_reduce", 30, 40)], 2, True),
    ([], 1, True),  # it has nothing to exchange
)
def test_calls_of_cpu_ranks_without_a_mark_leave_no_zero(write, more, ranks, is_known):
    rows = [("cpu_op", "aten::mm", 0, 10), ("cpu_op", "c10d::allreduce_", 20, 25), *more]
    rows += [("cpu_op", "c10d::barrier", 50, 60)]
    events = [x(cat, name, start, end - start) for cat, name, start, end in rows]
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
    events = [x("kernel", "gemm", 0, 10), x("kernel", "mine::exchange<8>(int)", 5, 20, 20)]
    job = {"rank": rank, "world_size": world_size}
    return {"traceEvents": events, "distributedInfo": job if world_size else {}}


@cases("world_size, many", (64, 1), (None, 2), (1, 1), (None, 1))
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


@cases("library", "mine::exchange<8>(int)", "hx_swap", "p2p(half*)")
def test_an_unknown_library_beside_nccl_is_suspected_with_the_remedy(write, library):
    job = apart(0, 8)
    job["traceEvents"][1]["name"] = library
    job["traceEvents"].append(x("kernel", REDUCE, 12, 5, 27))
    found = analyse_job([write("a.json", job)])
    assert list(found.ranks[0].trace.timeline.unknown) == [library]
    assert any(notice.endswith("name them: --communication REGEX.") for notice in found.notices)
    named = analyse_job([write("a.json", job)], communication=re.compile(re.escape(library)))
    assert not named.ranks[0].trace.timeline.unknown
    assert named.ranks[0].figures.comm_s == pytest.approx(20e-6)


@cases("starts, said", ((1,), "1 kernel begins"), ((1, 2), "2 kernels beg"))
def test_kernels_before_their_launch_are_counted_and_said(write, starts, said):
    both = (("cuda_runtime", "cudaLaunchKernel", 1), ("kernel", "gemm", 7))
    events = [
        x(cat, name, ts, 4, tid, args={"correlation": n})
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


def test_communication_beside_copies_is_shown_as_that(write):
    """Compute 0-10, communication 5-25, a copy 20-40: 5 µs of communication beside it alone."""
    whole = trace(0, 1)
    whole["traceEvents"].append(x("gpu_memcpy", "Memcpy DtoH", 20, 20, 9))
    job = analyse_job([write("a.json", whole)])
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
    assert bars["communication during copies"] == pytest.approx(0.005)
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
        x(*row, pid=1, args={} if link is None else {"correlation": link}) for *row, link in rows
    ]
    shown = render_traces(analyse_job([write("a.json", {"traceEvents": events})]), Screen())
    told = " ".join(shown.partition("the host meanwhile: ")[2].split())
    assert told.startswith("… > model.py(3): forward > ") and "torch/nn.py" not in told


REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def event(cat, name, ts, dur, pid, tid=7, **args):
    return x(cat, name, ts, dur, tid, pid=pid, args=args)


def rank(late=0, pid=9, device=0, first=1, **more):
    """A rank whose communication of 40 µs its own computation hides for 10."""
    gpu = {"device": device, **more}
    return [
        event("cuda_runtime", "cudaLaunchKernel", late, 5, pid, correlation=first, **more),
        event("cuda_runtime", "cudaLaunchKernel", late + 5, 5, pid, correlation=first + 1, **more),
        event("kernel", REDUCE, late + 10, 40, device, 20, correlation=first, **gpu),
        event("kernel", "gemm", late + 40, 100, device, correlation=first + 1, **gpu),
    ]


def labelled(label, rows):
    return [{**row, "pid": f"{label} {row['pid']}"} for row in rows]


@pytest.fixture
def found(tmp_path):
    def of(*files):
        paths = [tmp_path / f"node{n}.json" for n in range(len(files))]
        for path, rows in zip(paths, files, strict=True):
            path.write_text(json.dumps({"traceEvents": rows}))
        return analyse_job(paths)

    return of


@cases(
    "rows, ranks, by, parts",
    (labelled("[TP00]", rank()) + labelled("[TP01]", rank(200)), [0, 1], "trace",
     ["[TP00]", "[TP01]"]),
    (labelled("[TP01-DP00]", rank()) + labelled("[TP00-DP00]", rank(200)), [0, 1], "order",
     ["[TP00-DP00]", "[TP01-DP00]"]),
    (labelled("rank 10:", rank()) + labelled("rank 2:", rank(200)), [2, 10], "trace",
     ["rank 2", "rank 10"]),
    ([*rank(rank=3), *rank(200, 10, rank=12)], [3, 12], "trace", ["rank 3", "rank 12"]),
    ([*rank(), *rank(200, device=1, first=5)], [0, 1], "device", ["device 0", "device 1"]),
    ([*rank(), *rank(200, pid=10, device=1)], [0, 1], "device", ["device 0", "device 1"]),
    ([*rank(device=6), *rank(200, device=2, first=5)], [2, 6], "device",
     ["device 2", "device 6"]),
)  # fmt: skip
def test_each_by_itself(found, rows, ranks, by, parts):
    job = found(rows)
    assert [(r.trace.rank, r.trace.rank_from, r.trace.part) for r in job.ranks] == [
        (number, by, part) for number, part in zip(ranks, parts, strict=True)
    ]
    assert [rank.figures.comm_s for rank in job.ranks] == [pytest.approx(40e-6)] * 2
    assert [rank.figures.overlap_s for rank in job.ranks] == [pytest.approx(10e-6)] * 2
    assert any(f"{parts[0]}, {parts[1]}." in notice for notice in job.notices)
    assert [file["part"] for file in as_json(job)["files"]] == parts


@cases("odd", [1], {"a": 1}, 2**70, "\u0663", None, float("nan"), -1)
@cases("where", "device", "rank", "External id")
def test_owners_of_any_kind_are_read(found, odd, where):
    rows = rank()
    rows[2]["args"][where] = odd
    rows.append({**rows[3], "pid": odd})
    rows.append(event("cpu_op", "c10d::allreduce_", 0, 9, 9, **{where: odd}))
    (one, *_) = found(rows).ranks
    assert one.figures.comm_s == pytest.approx(40e-6)


def named(*names, world_size=None):
    timelines = [(name, Timeline((), intervals([]), world_size=world_size)) for name in names]
    return [(trace.rank, trace.rank_from) for trace in name_ranks(timelines)]


@cases(
    "name, rank",
    ("rank=7.json", 7),  # whatever the trace says of the job's size
    ("Rank.0012-5.json", 12),
    ("dlrm_rank_2.json", 2),
    ("trace_r11.json", 11),
    ("8ranks_rank1.json", 1),
    ("trace_3.json", None),
    ("moe_04_top2_dense.json", None),
    ("r1t03_53384.1718.pt.trace.json", None),
    ("frank3.json", None),
    ("local_rank3.json", None),
)
def test_a_rank_in_a_name_is_one_that_is_called_so(name, rank):
    assert named(name, world_size=4) == [(0, "order") if rank is None else (rank, "file name")]


@cases(
    "names, world_size, ranks",
    ([f"h100_{n}.json" for n in (10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)], None, range(10, -1, -1)),
    (["trace_0.json", "trace_3.json"], 4, [0, 3]),
    (["trace_1023.json", "trace_0.json"], None, [1023, 0]),
    (["trace_1024.json", "trace_0.json"], None, None),
    (["trace_2000.json", "trace_0.json"], 4096, [2000, 0]),
    (["trace_4.json", "trace_0.json"], 4, None),
    (["a1.2.json", "a2.3.json"], None, None),  # differ in two
    (["a1.json", "b2.json"], None, None),  # and in more than numbers
    (["a1.json", "a2.3.json"], None, None),
    (["x/a1.json", "y/a1.json"], None, None),
    (["rank3.json", "other.json"], None, None),
    (["a_rank3.json", "b_rank3.json"], None, None),
)
def test_of_names_that_differ_in_one_number_it_is_the_rank(names, world_size, ranks):
    found = [(n, "order") for n in range(len(names))]
    if ranks is not None:
        found = [(n, "file name") for n in ranks]
    assert named(*names, world_size=world_size) == found


FIGURES = ("comm_s", "compute_s", "overlap_s", "exposed_comm_s", "idle_s")


def case(number, *names):
    (folder,) = field_file("cases").glob(f"{number}-*")
    return [folder / name for name in names] or [folder]


@cases(
    "number, files, figures, said",
    ("01", ["small.json"], [[900, 750, 750, 150, 100]], ["1 of the job's 64"]),
    ("06", ["small.json"], [[500, 400, 200, 300, 100]], ["1 event .* is left out", "2 ranks"]),
    (
        "07",
        ["small.json"],
        [[600, 400, 0, 600, 0], [300, 600, 0, 300, 0]],
        [r"holds 2 ranks or devices, .*\[TP00\], \[TP01\]", "taken for the 2"],
    ),
    ("08", ["xpu-small.json"], [[500, 600, 200, 300, 110]], ["1 of the job's 4"]),
    ("09", ["resnet50_h100.json"], [[50, 80, 30, 20, 0]], ["it counts as rank 0"]),
    ("17", ["small.json"], None, ["2 ranks", "1 of 1 NCCL calls of rank 0 has no kernel"]),
    (
        "18",
        ["rank0.json", "rank1.json"],
        [[700, 900, 300, 400, 900], [300, 300, 0, 300, 1600]],
        ["taken from the file names", "taken for the 2 given"],
    ),
    ("21", ["small.json"], [[50, 80, 10, 40, 10]], ["1 of the job's 2"]),
)
def test_the_figures_and_what_is_said(number, files, figures, said):
    job = analyse_job(case(number, *files))
    if figures is not None:
        found = [[getattr(r.figures, name) * 1e6 for name in FIGURES] for r in job.ranks]
        assert found == [pytest.approx(each, abs=1e-3) for each in figures]
    assert len(job.notices) == len(said)
    for notice, words in zip(job.notices, said, strict=True):
        assert re.search(words, notice), notice
    assert all(not rank.trace.timeline.unknown for rank in job.ranks)


def test_kinds_sizes_and_waits_of_the_cases():
    (oneccl,) = analyse_job(case("08", "xpu-small.json")).total.kinds
    assert (oneccl.name, oneccl.payload_bytes) == ("all_reduce", 4 * 2**20)
    (tokens,) = analyse_job(case("01", "small.json")).total.kinds
    assert (tokens.name, tokens.count) == ("dispatch", 2)
    waits = analyse_job(case("18", "rank0.json", "rank1.json")).waits.ranks
    told = [(waits[rank].wait_s * 1e6, waits[rank].exposed_transfer_s * 1e6) for rank in (0, 1)]
    assert told == [pytest.approx((300, 100)), pytest.approx((0, 300))]


def test_a_lost_kernel_leaves_no_zero():
    job = analyse_job(case("17", "small.json"))
    (file,) = as_json(job)["files"]
    assert (file["num_calls"], file["num_unseen_calls"]) == (1, 1)
    assert file["comm_s"] is file["overlap_ratio"] is file["exposed_comm_s"] is None
    assert file["unavailable"]["comm_s"] == "1 of 1 NCCL calls have no kernel"
    assert re.search(r"^0 +– +80\.0 µs +– ", render_traces(job, Screen()), re.MULTILINE)
    assert "was hidden is not known: calls have no kernel." in render_trace_page(job)


def test_process_ids_are_no_ranks():
    pods = "pod-a_69.1694128201557.pt.trace.json", "pod-a_68.1694128201554.pt.trace.json"
    job = analyse_job(case("09", *pods))
    found = [(r.trace.rank, r.trace.rank_from, r.trace.file.rpartition("/")[2]) for r in job.ranks]
    assert found == [(0, "order", pods[0]), (1, "order", pods[1])]


def test_a_trace_of_another_profiler_is_refused():
    with pytest.raises(UsageError, match=r"no event has a category of torch\.profiler: cpu_op, "):
        analyse_job(case("14", "autograd-2020.json"))


@pytest.mark.skipif(not shutil.which("zstd"), reason="the program zstd is not here")
def test_a_folder_is_one_job(tmp_path):
    rank0, rank1 = case("18", "rank0.json", "rank1.json")
    (tmp_path / "deep").mkdir()
    (tmp_path / "notes.txt").write_text("nothing of a trace")
    packed = tmp_path / "rank0.json.zst"
    subprocess.run(["zstd", "-q", rank0, "-o", packed], check=True)
    shutil.copy(rank1, tmp_path / "deep" / "rank1.json")
    job = analyse_job([tmp_path])
    assert [rank.trace.rank for rank in job.ranks] == [0, 1]
    assert job.ranks[0].wait.wait_s == pytest.approx(300e-6)
    packed.write_bytes(packed.read_bytes()[:-9])
    assert re.search(r"rank0\.json\.zst is (damaged|cut off)", *analyse_job([tmp_path]).refused)


def test_a_folder_without_a_trace(tmp_path):
    with pytest.raises(UsageError, match=r"contains no trace.*\.json, \.json\.gz, \.zst"):
        analyse_job([tmp_path])
