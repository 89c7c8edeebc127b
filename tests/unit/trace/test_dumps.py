"""Dumps of torch's flight recorder and of NCCL Inspector; torch's own analyzer is the oracle."""

import io
import json
import os
import pickle
import re
import subprocess
import sys

import pytest

from scalebench.errors import UsageError
from scalebench.report.tables.layout import Screen
from scalebench.report.tables.traces import render_dumps
from scalebench.trace.dumps import examine, find_dumps
from tests.examples import cases

pytestmark = pytest.mark.slow


def entry(
    sequence,
    name="all_reduce",
    sizes=(1000, 1000),
    state="completed",
    dtype="Float",
    duration_ms=None,
    **other,
):
    made = {
        "record_id": sequence, "pg_id": 0, "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence, "p2p_seq_id": 0, "op_id": sequence,
        "profiling_name": f"nccl:{name}", "time_created_ns": 10**18 + sequence,
        "input_sizes": [[sizes[0]]], "output_sizes": [[sizes[1]]],
        "input_dtypes": [dtype], "output_dtypes": [dtype], "state": state,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
        "retired": False, "timeout_ms": 600_000, "is_p2p": False,
        "frames": [{"name": "all_reduce", "filename": "/lib/torch/distributed/c.py", "line": 1},
                   {"name": "step", "filename": "/job/train.py", "line": 33}],
    }  # fmt: skip
    timing = {} if duration_ms is None else {"duration_ms": duration_ms}
    return {**made, **timing, **other}


def written(folder, ranks, world_size, as_json=False):
    config = {"name": "0", "desc": "default_pg", "ranks": str(list(range(world_size)))}
    for rank, entries in ranks.items():
        dump = {"version": "2.10", "pg_config": {"0": config}, "entries": entries}
        data = json.dumps(dump).encode() if as_json else pickle.dumps(dump, protocol=2)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return [str(folder)]


def two(*calls):
    return [entry(1), entry(2), *calls]


waiting = entry(3, state="started")
CASES = {
    "complete": {0: two(entry(3)), 1: two(entry(3)), 2: two(entry(3))},
    "missing": {0: two(waiting), 1: two(), 2: two(waiting)},
    "order": {0: two(waiting), 1: two(entry(3, "broadcast", state="started")), 2: two(waiting)},
    "size": {0: two(waiting), 1: two(entry(3, sizes=(9, 9), state="started")), 2: two(waiting)},
    "dtype": {0: two(waiting), 1: two(entry(3, dtype="Half", state="started")), 2: two(waiting)},
    "all_to_all": {
        rank: [entry(1, "all_to_all", (300, 200 + 50 * (rank == 1)))] for rank in range(3)
    },
    "uneven all_to_all": {
        rank: [entry(1, "all_to_all", (300, 200 + 100 * rank))] for rank in range(3)
    },
    "gather": {r: [entry(1, "gather", (10, 30 if r == 0 else 0))] for r in range(3)},
}


@cases("as_json", False, True)
@cases(
    "case, missing, mismatch, said",
    ("complete", [], None, "all ranks entered it and ended it"),
    ("missing", [1], None,
     "rank 1 did not enter it; the last call was 2, all_reduce at train.py:33"),
    ("order", [], "order", "the order differs at 3: ranks 0, 2: all_reduce; rank 1: broadcast"),
    ("size", [], "size", "rank 1: all_reduce of 9 float32"),
    ("dtype", [], "size", "rank 1: all_reduce of 1000 float16"),
    ("all_to_all", [], "size", "900 elements are sent and 650 expected"),
    ("uneven all_to_all", [], None, "all ranks entered it"),
    ("gather", [], None, "all ranks entered it"),
)  # fmt: skip
def test_who_is_missing_and_what_does_not_fit(tmp_path, case, missing, mismatch, said, as_json):
    found = examine(find_dumps(written(tmp_path, CASES[case], 3, as_json)))
    (group,) = found[0].groups
    assert [behind.rank for behind in group.missing] == missing
    assert (group.mismatch.what if group.mismatch else None) == mismatch
    assert said in render_dumps(found, None, Screen(120))


@cases("case", *CASES)
def test_torch_s_own_analyzer_finds_the_same(tmp_path, case):
    folder = written(tmp_path, CASES[case], 3)
    (group,) = examine(find_dumps(folder))[0].groups
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder[0]]
    done = subprocess.run([*command, "-p", "nccl_trace_rank_"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr
    missing = re.search(r"missing ranks: \{(.*)\}", told)
    assert [b.rank for b in group.missing] == ([int(missing[1])] if missing else [])
    assert bool(group.mismatch) == ("has errors" in told or "mismatch in the collective" in told)
    if group.mismatch:
        number = re.search(r"sequence number: (\d+)", told)
        assert group.mismatch.sequence == int(number[1])


class _Runs:
    """A pickle that calls something when it is read."""

    def __init__(self, function, *arguments):
        self.what = (function, arguments)

    def __reduce__(self):
        return self.what


@cases(
    "content",
    pickle.dumps({"entries": [_Runs(os.mkdir, "made-by-a-pickle")]}, protocol=2),
    pickle.dumps({"entries": [_Runs(print, "x")]}, protocol=5),
    pickle.dumps(io.BytesIO, protocol=2),
    pickle.dumps({"entries": [entry(1)]}, protocol=2)[:-40],
    pickle.dumps([1, 2], protocol=2),
    pickle.dumps({"entries": [{**entry(1), "input_sizes": [["a"]]}]}, protocol=2),
    pickle.dumps({"entries": [{**entry(1), "process_group": [["x"]]}]}, protocol=2),
    pickle.dumps({"entries": [{**entry(1), "collective_seq_id": float("inf")}]}, protocol=2),
    pickle.dumps({"entries": [{**entry(1), "input_sizes": [[2**62, 2**62]]}]}, protocol=2),
    pickle.dumps({"entries": [3], "pg_config": {"0": 5}}, protocol=2),
    b"\x80\x02\x8a\xff",
    b'{"comm_lib_version": "", "entries": [',
    b'{"pg_status": {}, "entries": {}}',
)
def test_a_damaged_or_dangerous_dump_is_one_line(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(str(file))) as caught:
        examine(find_dumps([str(file)]))
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == [file]


@cases(
    "names, said",
    (["dump"], "does not tell its rank"),
    (["a_rank_0", "b_rank_0"], "are both of rank 0"),
    (["rank_0", "trace.json"], "is a dump of collectives and .* is none"),
)
def test_names_that_do_not_fit(tmp_path, names, said):
    for name in names:
        text = b'{"traceEvents": []}' if name.endswith("json") else pickle.dumps({"entries": []})
        (tmp_path / name).write_bytes(text)
    with pytest.raises(UsageError, match=said):
        examine(find_dumps([str(tmp_path / name) for name in names]))


def test_bus_bandwidth_is_that_of_the_rank_that_did_not_wait(tmp_path):
    def timed(sequence, ms):
        return entry(sequence, sizes=(25_000_000, 25_000_000), duration_ms=ms)

    ranks = {0: [timed(1, 9), timed(2, 4)], 1: [timed(1, 4), timed(2, 7)]}
    (found,) = examine(find_dumps(written(tmp_path, ranks, 2)))
    (bandwidth,) = found.bandwidths
    assert (bandwidth.count, bandwidth.num_bytes, bandwidth.lasted_s) == (2, 10**8, 0.004)
    assert bandwidth.busbw_byte_per_s == pytest.approx(25e9)  # 100 MB in 4 ms, of 2 ranks × 1


def _inspected(rank, number, us, busbw, size=2**31):
    record = {
        "header": {"id": "0x7f8c", "rank": rank, "n_ranks": 4, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0", "pid": rank, "hostname": "h"},
        "coll_perf": {
            "coll": "ReduceScatter", "coll_sn": number, "coll_msg_size_bytes": size,
            "coll_exec_time_us": us, "coll_algobw_gbs": busbw * 4 / 3, "coll_busbw_gbs": busbw,
        },
    }  # fmt: skip
    return json.dumps(record) + "\n"


def test_dumps_of_nccl_inspector(tmp_path):
    for rank in range(3):
        numbers = range(1, 4 if rank != 1 else 3)
        lines = [_inspected(rank, number, 8000 + 500 * rank, 360 - 20 * rank) for number in numbers]
        (tmp_path / f"host-pid{rank}.log").write_text("".join(lines) + '{"header": {"ra')
    found = examine(find_dumps([str(tmp_path)]))
    (group,), (bandwidth,) = found[0].groups, found[0].bandwidths
    assert group.group == "ReduceScatter of 0x7f8c"
    assert ([b.rank for b in group.missing], group.without_dump) == ([1], [3])
    assert bandwidth.busbw_byte_per_s == 360e9
    assert found[0].notices == ("3 lines are no records of the Inspector and left out.",)
    text = render_dumps(found, None, Screen())
    assert "rank 1 has no record of it; the last call was 2, ReduceScatter" in text
