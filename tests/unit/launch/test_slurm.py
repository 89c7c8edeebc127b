"""What an allocation is, what a step is called with, and why one has ended."""

import sys
from pathlib import Path

import pytest

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.slurm.allocation import find_allocation, tasks_per_node, why_no_steps
from scalebench.launch.slurm.launcher import step_command, why_ended
from scalebench.spec.world import Rendezvous

INSIDE = {"SLURM_JOB_ID": "17", "SLURM_TASKS_PER_NODE": "4(x2)", "SLURMD_NODENAME": "n1"}


@pytest.mark.parametrize(
    ("text", "counts"), [("2", (2,)), ("4(x2)", (4, 4)), ("4(x2),3,1(x2)", (4, 4, 3, 1, 1))]
)
def test_tasks_of_each_node(text: str, counts: tuple[int, ...]) -> None:
    assert tasks_per_node(text) == counts


@pytest.mark.parametrize("text", ["", "x", "4(x)", "0", "-1", "4,,2"])
def test_what_slurm_does_not_write(text: str) -> None:
    with pytest.raises(EnvironmentUnfit, match="SLURM_TASKS_PER_NODE"):
        tasks_per_node(text)


def test_an_allocation_fills_its_nodes_one_after_the_other() -> None:
    allocation = find_allocation(INSIDE)
    assert allocation.num_tasks == 8
    assert [allocation.num_nodes(n) for n in (1, 4, 5, 8)] == [1, 1, 2, 2]
    assert not allocation.one_node
    assert find_allocation(INSIDE | {"SLURM_TASKS_PER_NODE": "4"}).one_node


def test_outside_of_an_allocation_it_is_said_how_to_get_one() -> None:
    with pytest.raises(EnvironmentUnfit, match=r"salloc.*submit --slurm"):
        find_allocation({})
    with pytest.raises(EnvironmentUnfit, match="--ntasks"):
        find_allocation({"SLURM_JOB_ID": "17"})


def test_where_no_steps_can_be_started_the_list_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_no_steps(INSIDE) == "there is no srun on the PATH"
    (tmp_path / "srun").touch(mode=0o755)
    assert why_no_steps(INSIDE) is None
    assert "SLURM_JOB_ID" in str(why_no_steps({}))


def test_a_step_is_killed_as_a_whole_and_takes_as_few_nodes_as_hold_it() -> None:
    allocation = find_allocation(INSIDE | {"SLURM_CPUS_PER_TASK": "3"})
    command = step_command(allocation, 4, Rendezvous(host="a", port=1), 7)
    assert command[0] == "srun"
    assert command[-1] == "7"
    options = command[: command.index(sys.executable)]
    assert {"--kill-on-bad-exit=1", "--nodes=1", "--ntasks=4", "--cpus-per-task=3"} <= {*options}


@pytest.mark.parametrize(
    ("said", "rank", "kind", "words"),
    [
        ("srun: error: n2: task 1: Killed\nsrun: error: n1: task 0: Terminated", 1, "signal", "n2"),
        ("srun: error: n1: task 0: Exited with exit code 3", 0, "exit", "exit code 3"),
        ("srun: error: Unable to create step", None, "exit", "Unable to create step"),
        ("", None, "exit", "exit code 137"),
    ],
)
def test_the_task_that_went_wrong_is_named(
    said: str, rank: int | None, kind: str, words: str
) -> None:
    failure = why_ended(said, 137)
    assert (failure.rank, failure.kind) == (rank, kind)
    assert words in failure.message
