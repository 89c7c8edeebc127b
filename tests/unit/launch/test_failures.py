import fcntl
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.launch import failures
from scalebench.launch.lab import lab
from scalebench.launch.lab.lab import NoQuota, Quotas
from scalebench.launch.ranks import RankExit
from scalebench.machine import find_hierarchy
from scalebench.records.measured.rank import RankError
from tests.builders.runs import make_record
from tests.examples import cases


def test_the_rank_that_called_fewer_collectives_is_missing():
    assert failures.who_is_missing([0, 1], {0: 42, 1: 41}) == [1]
    assert failures.who_is_missing([0, 1], {0: 42}) == [1]  # rank 1 is stopped and says nothing
    assert failures.who_is_missing([0, 1], {0: 42, 1: 42}) == []  # all are there: nobody can tell
    assert failures.who_is_missing([0, 1], {}) == []


STACKS = """Fatal Python error: earlier
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f02 (most recent call first):
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 3116 in all_reduce
  File "/home/me/train.py", line 14 in exchange
  File "train.py", line 40 in <module>
  File "/x/site-packages/scalebench/worker/attach/script.py", line 89 in run
"""


@cases("text, place", 
        (STACKS, "train.py:14 in exchange"),
        (STACKS.replace('"/home/me/', '"/usr/lib/python3.11/').replace('"train', '"/scalebench/x'),
         "distributed_c10d.py:3116 in all_reduce"),
        ("Thread 1 (most recent call first):\n  <no Python frame>\n", None))  # fmt: skip
def test_where_a_rank_hangs_is_its_own_innermost_line(tmp_path, text, place):
    (tmp_path / "log").write_text(text)
    assert failures.where_it_hangs(tmp_path / "log") == place
    assert failures.where_it_hangs(tmp_path / "none") is None


def failed(rank, kind="exception", time_ns=100, message="it broke"):
    error = RankError(kind=kind, message=message, traceback="Traceback: …", time_ns=time_ns)
    return make_record(rank, error=error)


@pytest.fixture
def logs(tmp_path):
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_text(f"rank {rank} was here\n")
    return {rank: tmp_path / f"rank{rank}.log" for rank in range(4)}


def killed(rank, code=-9, time_ns=100, by_us=False):
    return RankExit(rank, code, time_ns, by_us)


@given(
    st.permutations(range(4)),
    st.sampled_from(["exception", "oom", "usage", "unsupported", "exit", "limit"]),
    st.integers(0, 10**12),
)
def test_a_lost_peer_never_hides_the_real_cause(order, kind, when):
    *peers, cause = order
    records = [failed(rank, "peer", time_ns=rank) for rank in peers]
    records.insert(cause % 3, failed(cause, kind, time_ns=when))
    found = failures.first_failure(records, [], dict.fromkeys(range(4), Path("none")))
    assert (found.rank, found.kind) == (cause, kind)


TIMEOUT = (
    "collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=9437184, "
    "NumelOut=9437184, Timeout(ms)=600000) ran for 600070 milliseconds before timing out."
)
FULL, ILLEGAL = "out of memory", "an illegal memory access was encountered"
ENDED = "[rank1]:[E623 21:21:18 ProcessGroupNCCL.cpp:2197] [PG ID 0 PG GUID 0(default_pg) Rank 1] "
DOG = "watchdog thread terminated with exception:"
STACK = "\n".join(f"frame #{n}: <unknown function> + 0x145c0 (0x7f in libtorch)" for n in range(90))


@cases(
    "written, kind, said",
    (f"{ENDED}Process group {DOG} [Rank 1] Watchdog caught {TIMEOUT}", "peer", TIMEOUT),
    (f"{ENDED}Process group {DOG} CUDA error: {FULL}", "oom", f"CUDA error: {FULL}"),
    (f"[Rank 1] NCCL {DOG} CUDA error: {ILLEGAL}", "signal", f"CUDA error: {ILLEGAL}"),
    ("the user's own line", "signal", None),
)
def test_what_nccls_watchdog_wrote_is_told_of_the_rank_that_it_ended(logs, written, kind, said):
    logs[1].write_text(f"step 1\n{written}\n{STACK}\nFatal Python error: Aborted\n")
    found = failures.first_failure(
        [], [killed(1, -signal.SIGABRT), killed(0, -9, by_us=True)], logs
    )
    watchdog = "" if said is None else f" by NCCL's watchdog: {said}"
    blame = " (rank 0 never answered)" if kind == "peer" else ""
    message = f"killed by SIGABRT{watchdog}{blame}"
    assert (found.rank, found.kind, found.message) == (1, kind, message)


@cases(
    "written, tail",
    ("".join(f"line {i}\n" for i in range(10_000)), [f"line {i}" for i in range(9985, 10_000)]),
    ("it broke\nUSDT:2026-11-23 18:07:03 1:1 Handler.cpp:52] profiler_start\n", ["it broke"]),
    ("x" * 1_000_000, ["x" * failures.LOG_TAIL_BYTES]),
    ids=["the last lines", "no profiler's notes", "one endless line"],
)
def test_the_end_of_a_log_is_told(tmp_path, written, tail):
    (tmp_path / "log").write_text(written)
    assert failures.log_tail(tmp_path / "log").splitlines() == tail
    assert failures.log_tail(tmp_path / "none") == failures.log_tail(tmp_path) == ""


V2 = "cgroup2 {top} cgroup2 rw,nosuid 0 0\n"


def test_nothing_is_delegated(tmp_path):
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    with pytest.raises(NoQuota, match="no CPU controller is delegated"):
        Quotas((0.2,), find_hierarchy(V2.format(top=tmp_path), "0::/"))


def test_only_groups_that_nobody_holds_are_removed(tmp_path):
    for name in ("scalebench-lab-1-aa", "scalebench-lab-2-bb", "other"):
        (tmp_path / name / "rank0").mkdir(parents=True)
    held = os.open(tmp_path / "scalebench-lab-2-bb", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    lab.remove_abandoned(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "scalebench-lab-2-bb"]
    os.close(held)
    lab.remove_abandoned(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["other"]
