import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.launch.first_failure import RankExit, first_failure, log_tail
from scalebench.records.rank import RankError
from tests.builders.runs import make_record


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


def test_ranks_that_are_well_have_no_failure(logs):
    records = [make_record(rank) for rank in range(4)]
    assert first_failure(records, [killed(rank, 0) for rank in range(4)], logs) is None


def test_the_earliest_failure_is_the_first(logs):
    records = [failed(0, time_ns=300), failed(1, time_ns=100), failed(2, time_ns=200)]
    found = first_failure(records, [], logs)
    assert (found.rank, found.kind, found.message) == (1, "exception", "it broke")
    assert found.traceback == "Traceback: …"
    assert found.log_tail == "rank 1 was here"


@given(
    st.permutations(range(4)),
    st.sampled_from(["exception", "oom", "usage", "unsupported", "exit", "limit"]),
    st.integers(0, 10**12),
)
def test_a_lost_peer_never_hides_the_real_cause(order, kind, when):
    *peers, cause = order
    records = [failed(rank, "peer", time_ns=rank) for rank in peers]
    records.insert(cause % 3, failed(cause, kind, time_ns=when))
    found = first_failure(records, [], dict.fromkeys(range(4), Path("none")))
    assert (found.rank, found.kind) == (cause, kind)


def test_a_killed_rank_wins_over_the_peers_that_noticed_it_earlier(logs):
    records = [failed(0, "peer", time_ns=50), failed(2, "peer", time_ns=60)]
    found = first_failure(records, [killed(1, time_ns=100)], logs)
    assert (found.rank, found.kind, found.message) == (1, "signal", "killed by SIGKILL")


TIMEOUT = (
    "collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=9437184, "
    "NumelOut=9437184, Timeout(ms)=600000) ran for 600070 milliseconds before timing out."
)
ENDED = "[rank1]:[E623 21:21:18 ProcessGroupNCCL.cpp:2197] [PG ID 0 PG GUID 0(default_pg) Rank 1] "
STACK = "\n".join(
    f"frame #{n}: <unknown function> + 0x145c0 (0x7f in libtorch.so)" for n in range(90)
)


@pytest.mark.parametrize(
    ("written", "kind", "said"),
    [
        (
            f"[rank1]:[E ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught {TIMEOUT}",
            "peer",
            TIMEOUT,
        ),
        (
            f"{ENDED}Process group watchdog thread terminated with exception: [Rank 1] Watchdog "
            f"caught {TIMEOUT}",
            "peer",
            TIMEOUT,
        ),
        (
            f"{ENDED}Process group watchdog thread terminated with exception: CUDA error: out of "
            "memory",
            "oom",
            "CUDA error: out of memory",
        ),
        (
            "[Rank 1] NCCL watchdog thread terminated with exception: CUDA error: an illegal "
            "memory access was encountered",
            "signal",
            "CUDA error: an illegal memory access was encountered",
        ),
        ("the user's own line", "signal", None),
    ],
)
def test_what_nccls_watchdog_wrote_is_told_of_the_rank_that_it_ended(logs, written, kind, said):
    logs[1].write_text(f"step 1\n{written}\n{STACK}\nFatal Python error: Aborted\n")
    found = first_failure([], [killed(1, -signal.SIGABRT), killed(0, -9, by_us=True)], logs)
    watchdog = "" if said is None else f" by NCCL's watchdog: {said}"
    blame = " (rank 0 never answered)" if kind == "peer" else ""
    message = f"killed by SIGABRT{watchdog}{blame}"
    assert (found.rank, found.kind, found.message) == (1, kind, message)


def test_lost_peers_alone_are_reported_the_earliest_first(logs):
    records = [failed(0, "peer", time_ns=90), failed(1, "peer", time_ns=80)]
    assert first_failure(records, [], logs).rank == 1


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (-signal.SIGSEGV, "SIGSEGV"),
        (-signal.SIGKILL, "SIGKILL"),
        (-signal.SIGBUS, "SIGBUS"),
        (-(signal.SIGRTMIN + 3), str(signal.SIGRTMIN + 3)),  # has a number and no name
    ],
)
def test_the_signal_is_named(logs, code, named):
    found = first_failure([], [killed(0, code)], logs)
    assert (found.kind, found.rank) == ("signal", 0)
    assert named in found.message


@pytest.mark.parametrize("code", [0, 1, 137])
def test_a_rank_that_left_without_a_record_is_a_failure_with_its_exit_code(logs, code):
    found = first_failure([make_record(0)], [killed(0, 0), killed(1, code)], logs)
    assert (found.rank, found.kind) == (1, "exit")
    assert f"exit code {code} " in found.message


def test_whom_we_killed_did_not_fail(logs):
    exits = [killed(0, time_ns=10, by_us=True), killed(1, time_ns=20)]
    assert first_failure([], exits, logs).rank == 1
    assert first_failure([], exits[:1], logs) is None


def test_a_ranks_own_account_counts_and_not_its_exit_code(logs):
    found = first_failure([failed(0, "oom", time_ns=100)], [killed(0, 1, time_ns=50)], logs)
    assert found.kind == "oom"


def test_the_log_tail_is_the_end(tmp_path):
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {i}" for i in range(100_000)))
    tail = log_tail(log).splitlines()
    assert tail[-1] == "line 99999"
    assert tail == [f"line {i}" for i in range(100_000 - len(tail), 100_000)]
    assert 5 <= len(tail) <= 30


def test_a_log_of_one_endless_line_or_of_rubbish_is_cut_and_read(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"\xff" * 1_000_000)
    assert 0 < len(log_tail(log)) <= 10_000


def test_without_a_log_the_tail_is_empty(tmp_path):
    assert log_tail(tmp_path / "none") == ""
    assert log_tail(tmp_path) == ""


def test_the_log_tail_leaves_out_the_profilers_notes(tmp_path):
    log = tmp_path / "log"
    log.write_text("it broke\nUSDT:2026-11-23 18:07:03 1:1 Handler.cpp:52] profiler_start\n")
    assert log_tail(log) == "it broke"
