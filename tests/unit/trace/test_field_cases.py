"""Traces on which scalebench was wrong once, with the right figures; and their variants."""

import re
import shutil
import subprocess

import pytest

from scalebench.errors import UsageError
from scalebench.report.page.trace_page import render_trace_page
from scalebench.report.tables.layout import Screen
from scalebench.report.tables.traces import render_traces
from scalebench.trace.job import analyse_job, as_json
from tests.builders.repository.field_files import field_file

FIGURES = ("comm_s", "compute_s", "overlap_s", "exposed_comm_s", "idle_s")


def case(number, *names):
    (folder,) = field_file("cases").glob(f"{number}-*")
    return [folder / name for name in names] or [folder]


def in_us(job):
    return [[round(getattr(r.figures, name) * 1e6, 3) for name in FIGURES] for r in job.ranks]


@pytest.mark.parametrize(
    ("number", "files", "figures", "said"),
    [
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
    ],
)
def test_the_figures_and_what_is_said(number, files, figures, said):
    job = analyse_job(case(number, *files))
    if figures is not None:
        assert in_us(job) == figures
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
