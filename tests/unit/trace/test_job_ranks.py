"""Which rank a file is of where names and numbers are at their limits, and what is said of it."""

import json

import numpy as np
import pytest

from scalebench.trace.analysis import Figures
from scalebench.trace.intervals import intervals
from scalebench.trace.job import RankTrace, analyse_job, as_json, name_ranks
from scalebench.trace.timeline import Timeline


def named(*names, world_size=None):
    timelines = [(name, Timeline((), intervals([]), world_size=world_size)) for name in names]
    return [(trace.rank, trace.rank_from) for trace in name_ranks(timelines)]


@pytest.mark.parametrize(
    ("name", "world_size", "rank"),
    [
        ("trace_1023.json", None, 1023),
        ("trace_1024.json", None, None),
        ("trace_3.json", 4, 3),
        ("trace_4.json", 4, None),
        ("trace_2_4.json", 4, 2),
        ("trace_1_2.json", 4, 2),  # the last
        ("trace_2000.json", 4096, 2000),
        ("rank=7.json", 4, 7),  # labelled: whatever the trace says
        ("Rank.0012-5.json", None, 12),
        ("trace.json", None, None),
    ],
)
def test_a_number_in_a_name_is_a_rank_if_the_job_can_have_it(name, world_size, rank):
    assert named(name, world_size=world_size) == [
        (0, "order") if rank is None else (rank, "file name")
    ]


def test_files_by_their_place():
    assert named("b", "a", "c") == [(0, "order"), (1, "order"), (2, "order")]
    assert named("x2", "x2", "x3") == [(0, "order"), (1, "order"), (2, "order")]


def test_some_traces_say_their_rank_and_others_have_it_in_their_name():
    told = Timeline((), intervals([]), rank=5)
    silent = Timeline((), intervals([]))
    assert name_ranks([("x1.json", told), ("x2.json", silent)]) == [
        RankTrace("x1.json", 5, "trace", told),
        RankTrace("x2.json", 2, "file name", silent),
    ]


@pytest.fixture
def write(tmp_path):
    """A file with a kernel from 0 to 10 and communication of a group of two from 5 to 25 µs."""

    def written(name, rank, world_size=2, late=0, with_kernels=True):
        event = {"ph": "X", "tid": 7, "cat": "kernel" if with_kernels else "cpu_op"}
        told = {"Collective name": "allreduce", "In msg nelems": 6, "dtype": "Float"}
        reduce = {"args": {**told, "Group size": 2}, "name": "ncclDevKernel_Generic"}
        rows = [{**event, "name": "aten::gemm", "ts": 0, "dur": 10}]
        if with_kernels:
            rows.append({**event, **reduce, "ts": 5 + late, "dur": 20 - late})
        job = {"rank": rank, "world_size": world_size}
        path = tmp_path / name
        path.write_text(json.dumps({"traceEvents": rows, "distributedInfo": job}))
        return path

    return written


def test_a_whole_job_has_nothing_to_notice(write):
    job = analyse_job([write("a", 1, late=4), write("b", 0)])
    assert (job.notices, job.refused, job.world_size) == ((), (), 2)
    assert job.waits.reason is None
    first, second = job.ranks
    assert (first.trace.rank, second.trace.rank) == (0, 1)
    # 10 to 25 is exposed; rank 1 comes at 9, when rank 0 still computes.
    assert first.wait.wait_s == 0.0
    assert first.wait.exposed_transfer_s == pytest.approx(15e-6)
    assert first.unavailable == {}
    (file, _) = as_json(job)["files"]
    assert (file["device"], file["num_steps"], file["wait_s"]) == ("gpu", 0, 0.0)
    assert file["kinds"][0]["payload_bytes"] == 24
    assert [one["rank"] for one in as_json(job)["stragglers"]] == [1]


def test_two_traces_of_one_rank_have_no_waits(write):
    job = analyse_job([write("a", 0), write("b", 0)])
    assert job.waits.reason == "several traces are of the same rank"
    assert set(job.ranks[0].unavailable) == {"exposed_transfer_s", "wait_s"}
    assert job.notices == (
        "1 of the job's 2 ranks were given.",
        "Several traces are of the same rank; they are of different jobs or times.",
    )
    assert as_json(job)["clock_error_s"] is None


def test_traces_that_do_not_agree_on_the_job_tell_no_size(write):
    job = analyse_job([write("a", 0, world_size=2), write("b", 1, world_size=3)])
    assert job.world_size is None


def test_traces_with_and_without_kernels_are_not_compared(write):
    job = analyse_job([write("a", 0), write("b", 1, with_kernels=False)])
    assert "Some traces show GPU kernels and others none: they cannot be compared." in job.notices
    first, second = job.ranks
    assert "overlap_ratio" in second.unavailable and "overlap_ratio" not in first.unavailable
    assert isinstance(job.total, Figures) and job.total.compute_s == pytest.approx(20e-6)
    assert np.isclose(job.total.comm_s, 20e-6)


def test_one_trace_without_a_rank_takes_it_from_nobody_worth_telling(write):
    job = analyse_job([write("a", None, world_size=1)])
    assert job.notices == ()
    assert job.waits.reason == "the trace of one rank does not show when the others arrived"
