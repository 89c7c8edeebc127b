"""Who a process is, told from the variables that launchers set."""

import re

import pytest

from scalebench.errors import UsageError
from scalebench.launch.external.environment import PORTS, find_member

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29501",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "3221225473",
}
ALLOCATION = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "n[01-02]",
    "SLURM_NTASKS": "4",
    "SLURM_NNODES": "2",
}
SRUN = ALLOCATION | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[01-02]",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
}
BATCH_SCRIPT = ALLOCATION | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


def test_no_world_is_the_rule() -> None:
    assert find_member({}) is None
    assert find_member({"RANK": "0", "WORLD_SIZE": "1"}) is None


def test_torchrun() -> None:
    member = find_member(TORCHRUN)
    assert member is not None
    assert (member.launcher, member.rank, member.world_size) == ("torchrun", 3, 4)
    assert (member.rendezvous.host, member.rendezvous.port) == ("n1", 29501)
    assert member.rendezvous.served and not member.rendezvous.one_node


def test_torchrun_in_a_step_of_slurm_is_the_world_of_torchrun() -> None:
    member = find_member(SRUN | TORCHRUN)
    assert member is not None and (member.launcher, member.rank) == ("torchrun", 3)


def test_mpirun_on_one_machine_meets_on_loopback_at_a_port_of_the_job() -> None:
    member = find_member(MPIRUN)
    assert member is not None
    assert (member.launcher, member.rank, member.local_rank) == ("mpirun", 1, 1)
    assert member.rendezvous.host == "127.0.0.1" and member.rendezvous.one_node
    assert not member.rendezvous.served
    other = find_member(MPIRUN | {"OMPI_COMM_WORLD_RANK": "0"})
    assert other is not None and other.rendezvous == member.rendezvous
    another_job = find_member(MPIRUN | {"PMIX_NAMESPACE": "3221225474"})
    assert another_job is not None and another_job.rendezvous.port != member.rendezvous.port


def test_mpirun_on_several_machines_needs_to_be_told_where_they_meet() -> None:
    several = MPIRUN | {"OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(UsageError, match=r"MASTER_ADDR.*mpirun -x"):
        find_member(several)
    member = find_member(several | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
    assert member is not None and member.rendezvous.host == "10.0.0.1"


def test_srun() -> None:
    member = find_member(SRUN)
    assert member is not None
    assert (member.launcher, member.rank, member.world_size) == ("srun", 2, 4)
    assert member.rendezvous.host == "n01" and not member.rendezvous.one_node
    assert member.rendezvous.port in PORTS
    next_step = find_member(SRUN | {"SLURM_STEP_ID": "1"})
    assert next_step is not None and next_step.rendezvous.port != member.rendezvous.port


@pytest.mark.parametrize(
    "environment",
    [
        ALLOCATION,
        BATCH_SCRIPT,
        SRUN | {"SLURM_STEP_ID": "4294967290"},  # salloc's interactive step
        SRUN | {"SLURM_STEP_ID": "4294967291"},  # the batch script as a step
        SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},  # srun --pty bash
    ],
)
def test_a_shell_in_an_allocation_is_no_world(environment: dict[str, str]) -> None:
    assert find_member(environment) is None


def test_mpich_and_intel_mpi() -> None:
    pmi = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    member = find_member(pmi | {"MASTER_PORT": "29500"})
    assert member is not None and (member.launcher, member.rendezvous.one_node) == ("pmi", True)
    assert find_member({"PMI_RANK": "0", "PMI_SIZE": "1"}) is None  # a shell on some machines


def test_variables_set_by_hand() -> None:
    by_hand = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    member = find_member(by_hand)
    assert member is not None and (member.launcher, member.rank) == ("environment", 1)
    agreed = find_member(SRUN | by_hand | {"RANK": "2", "WORLD_SIZE": "4"})
    assert agreed is not None and agreed.launcher == "srun"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RANK": "0"}, ["RANK=0 is set but WORLD_SIZE is not"]),
        ({"RANK": "2", "WORLD_SIZE": "2"}, ["RANK='2' WORLD_SIZE='2'", "not a valid rank"]),
        ({"RANK": "x", "WORLD_SIZE": "2"}, ["RANK='x'"]),
        (SRUN | {"RANK": "0", "WORLD_SIZE": "2"}, ["RANK=0 WORLD_SIZE=2", "SLURM_PROCID=2"]),
        (MPIRUN | {"RANK": "0", "WORLD_SIZE": "2"}, ["OMPI_COMM_WORLD_RANK=1", "mpirun"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, ["MASTER_PORT"]),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, ["MASTER_ADDR"]),
        (TORCHRUN | {"MASTER_PORT": "99999"}, ["MASTER_PORT='99999'"]),
        ({"TORCHELASTIC_RUN_ID": "x"}, ["RANK and WORLD_SIZE"]),
    ],
)
def test_contradictions_are_told_in_one_line(environment: dict[str, str], words: list[str]) -> None:
    with pytest.raises(UsageError) as told:
        find_member(environment)
    assert "\n" not in str(told.value)
    for word in words:
        assert re.search(re.escape(word), str(told.value)), str(told.value)
