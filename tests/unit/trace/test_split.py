"""Which rank or device a file, or a part of one, is of."""

import json

import pytest

from scalebench.trace.files.file_ranks import name_ranks
from scalebench.trace.intervals import intervals
from scalebench.trace.job import analyse_job, as_json
from scalebench.trace.timeline import Timeline
from tests.examples import cases

REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def event(cat, name, ts, dur, pid, tid=7, **args):
    row = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": pid, "tid": tid}
    return {**row, "args": args}


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


OTHER_PROCESS = {"pid": 10, "device": 1}


@pytest.mark.parametrize(
    ("rows", "ranks", "by", "parts"),
    [
        (labelled("[TP00]", rank()) + labelled("[TP01]", rank(200)), [0, 1], "trace",
         ["[TP00]", "[TP01]"]),
        (labelled("[TP01-DP00]", rank()) + labelled("[TP00-DP00]", rank(200)), [0, 1], "order",
         ["[TP00-DP00]", "[TP01-DP00]"]),
        (labelled("rank 10:", rank()) + labelled("rank 2:", rank(200)), [2, 10], "trace",
         ["rank 2", "rank 10"]),
        ([*rank(rank=3), *rank(200, 10, rank=12)], [3, 12], "trace", ["rank 3", "rank 12"]),
        ([*rank(), *rank(200, device=1, first=5)], [0, 1], "device", ["device 0", "device 1"]),
        ([*rank(), *rank(200, **OTHER_PROCESS)], [0, 1], "device", ["device 0", "device 1"]),
        ([*rank(device=6), *rank(200, device=2, first=5)], [2, 6], "device",
         ["device 2", "device 6"]),
    ],
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


@pytest.mark.parametrize("odd", [[1], {"a": 1}, 2**70, "\u0663", None, float("nan"), -1])
@pytest.mark.parametrize("where", ["device", "rank", "External id"])
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
)
def test_of_names_that_differ_in_one_number_it_is_the_rank(names, world_size, ranks):
    found = [(n, "order") for n in range(len(names))]
    if ranks is not None:
        found = [(n, "file name") for n in ranks]
    assert named(*names, world_size=world_size) == found
