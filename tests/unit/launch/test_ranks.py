"""Which ranks the others wait for, when a launch is still running at its limit."""

from pathlib import Path

import pytest

from scalebench.launch.first_failure import RankExit, where_it_hangs
from scalebench.launch.ranks import Ranks, ranks_lost, what_went_wrong, who_is_missing
from scalebench.records.rank import RankError
from tests.builders.runs import make_cell, make_record


@pytest.mark.parametrize(
    ("late", "called", "missing"),
    [
        ([0, 1], {0: 42, 1: 41}, [1]),
        ([0, 1, 2], {0: 42, 1: 41, 2: 41}, [1, 2]),
        ([0, 1], {0: 42}, [1]),  # rank 1 is stopped and says nothing
        ([0, 1], {0: 42, 1: 42}, []),  # all are there: nobody can tell
        ([0, 1], {}, []),
        ([0], {0: 3}, []),
    ],
)
def test_the_rank_that_called_fewer_collectives_is_missing(
    late: list[int], called: dict[int, int], missing: list[int]
) -> None:
    assert who_is_missing(late, called) == missing


def ended(dispensable: tuple[int, ...], *exits: RankExit) -> Ranks:
    processes = Ranks(None, 1, 3, 0.0, dispensable=dispensable)  # type: ignore[arg-type]
    processes.exits = list(exits)
    return processes


def test_a_dispensable_rank_that_is_killed_is_lost_and_no_failure(tmp_path: Path) -> None:
    logs = {rank: tmp_path / f"rank{rank}.log" for rank in range(3)}
    records = [make_record(0), make_record(1)]
    killed = RankExit(2, -9, 100, killed_by_us=False)
    processes = ended((1, 2), RankExit(0, 0, 200, False), killed)
    assert what_went_wrong(make_cell(), processes, True, records, logs, {}) is None
    assert [(one.rank, one.message) for one in ranks_lost(processes, records, logs)] == [
        (2, "killed by SIGKILL")
    ]
    failure = what_went_wrong(make_cell(), ended((), killed), True, records, logs, {})
    assert failure is not None and failure.rank == 2
    assert not ranks_lost(ended((), killed), records, logs)


def test_a_rank_that_is_needed_fails_the_launch_whoever_was_lost_before(tmp_path: Path) -> None:
    logs = {rank: tmp_path / f"rank{rank}.log" for rank in range(3)}
    exits = RankExit(2, -9, 100, False), RankExit(0, -11, 200, False)
    failure = what_went_wrong(make_cell(), ended((1, 2), *exits), True, [make_record(1)], logs, {})
    assert failure is not None and (failure.rank, failure.message) == (0, "killed by SIGSEGV")


LOST_WORKER = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."
MEMORY = "the kernel's out-of-memory killer ended a process: a cgroup's limit is 1.00 GB"


@pytest.mark.parametrize(
    ("code", "error", "kind"),
    [
        (-9, None, "oom"),
        (1, RankError(kind="exception", message=LOST_WORKER, time_ns=1), "oom"),
        (1, RankError(kind="exception", message="ValueError: of its own", time_ns=1), "exception"),
        (-11, None, "signal"),
    ],
)  # fmt: skip
def test_what_the_out_of_memory_killer_did_is_out_of_memory(
    tmp_path: Path, code: int, error: RankError | None, kind: str
) -> None:
    logs = {rank: tmp_path / f"rank{rank}.log" for rank in range(3)}
    processes = ended((), RankExit(1, code, 100, False))
    processes.out_of_memory = MEMORY
    records = [] if error is None else [make_record(1).model_copy(update={"error": error})]
    failure = what_went_wrong(make_cell(), processes, True, records, logs, {})
    assert failure is not None and (failure.rank, failure.kind) == (1, kind)
    assert (MEMORY in failure.message) == (kind == "oom")


def test_a_stopped_rank_is_to_blame_for_those_that_waited_in_vain(tmp_path: Path) -> None:
    logs = {rank: tmp_path / f"rank{rank}.log" for rank in range(3)}
    waited = RankError(kind="peer", message="Timed out waiting", time_ns=1)
    told_to_end = RankError(kind="exception", message="SystemExit", time_ns=9)
    records = [
        make_record(rank).model_copy(update={"error": error})
        for rank, error in ((0, waited), (1, told_to_end))
    ]
    processes = ended((), RankExit(0, 1, 2, False), RankExit(2, -9, 9, True))
    processes.stopped, processes.ending_ns = {2: 4242}, 5
    failure = what_went_wrong(make_cell(), processes, True, records, logs, {})
    assert failure is not None and (failure.rank, failure.kind) == (2, "peer")
    assert "rank 2 was stopped (process 4242" in failure.message


STACKS = """Fatal Python error: earlier
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f02 (most recent call first):
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 3116 in all_reduce
  File "/home/me/train.py", line 14 in exchange
  File "train.py", line 40 in <module>
  File "/x/site-packages/scalebench/worker/attach/script.py", line 89 in run
"""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (STACKS, "train.py:14 in exchange"),
        (STACKS.replace('"/home/me/', '"/usr/lib/python3.11/').replace('"train', '"/scalebench/x'),
         "distributed_c10d.py:3116 in all_reduce"),
        ("no stack at all", None),
        ("Thread 1 (most recent call first):\n  <no Python frame>\n", None),
    ],
)  # fmt: skip
def test_where_a_rank_hangs_is_its_own_innermost_line(
    tmp_path: Path, text: str, place: str | None
) -> None:
    (tmp_path / "log").write_text(text)
    assert where_it_hangs(tmp_path / "log") == place
    assert where_it_hangs(tmp_path / "none") is None
