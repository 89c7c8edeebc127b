"""Which ranks the others wait for, when a launch is still running at its limit."""

from pathlib import Path

import pytest

from scalebench.launch.first_failure import RankExit
from scalebench.launch.ranks import Ranks, ranks_lost, what_went_wrong, who_is_missing
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
