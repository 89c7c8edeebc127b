import json
import subprocess
import sys

import pytest

from scalebench.errors import UsageError
from scalebench.launch import external as module
from scalebench.launch.environment import find_member
from scalebench.launch.external import ExternalLauncher, Registration
from scalebench.records.measured.rank import Block
from scalebench.records.measured.trace import DeviceStates, DeviceTrack, NodeTrack
from scalebench.records.secret import VARIABLE, new_secret
from scalebench.session.machine.survey import refusal
from scalebench.spec.world import Rendezvous, WorldMember
from tests.builders.runs import make_cell, make_record
from tests.examples import cases

SHIFT_NS = 10**15
RENDEZVOUS = Rendezvous(host="127.0.0.1", port=1, served=True, one_node=False, prefix="x")


class Bridge:
    """Processes that answer at once; the clock of number n is n times `SHIFT_NS` behind."""

    members = ()

    def __init__(self, answers):
        self.answers = answers
        self.shifts_ns = {process: process * SHIFT_NS for process in range(len(answers))}
        self.told, self.seats = {}, {}

    def write(self, processes, message):
        if "start" in message:
            self.told[processes[0]] = message["start"]

    def collect(self, kind, processes, limit_s):
        return dict.fromkeys(processes, 1)

    def next_message(self, timeout_s):
        process = next(iter(self.told))
        seat = self.seats[process] = self.told.pop(process)
        left = self.answers[process]
        return {"exited": seat["tag"], "code": 0, "time_ns": 0, "from": process, **left}


@pytest.fixture
def world(monkeypatch):
    bridge = []
    monkeypatch.setattr(module, "BridgeClient", lambda *_: bridge[0])
    monkeypatch.setenv(VARIABLE, new_secret())  # else it is written to files

    def make(hosts, answers):
        bridge[:] = [Bridge(answers)]
        member = {"rank": 0, "local_rank": 0, "rendezvous": RENDEZVOUS}
        launcher = ExternalLauncher(WorldMember(launcher="srun", world_size=len(hosts), **member))
        launcher.registrations = {
            i: Registration(host=host, pid=100 + i, affinity=(0,), cores=(0,), torch="2")
            for i, host in enumerate(hosts)
        }
        return launcher

    return make


def surveyed(devices, unusable=None):
    survey = {"torch": "2.13.0+cu130", "cuda": "13.0", "unusable": unusable}
    return {"answer": json.dumps(survey | {"devices": [{"uuid": uuid} for uuid in devices]})}


@cases(
    "hosts, devices, watched",
    (("a", "a"), (("x",), ("y",)), ("x", "y")),
    (("a", "a"), (("x", "y"), ("x", "y")), ("x", "y")),
    (("a", "b"), (("x", "y"), ("z", "w")), ("x", "z")),
    (("a", "a", "b"), (("x",), ("x",), ("z",)), ("x", None, "z")),
    (("a", "b"), ((), ("z",)), (None, "z")),
)
def test_each_rank_watches_the_gpu_that_it_trains_on(world, tmp_path, hosts, devices, watched):
    launcher = world(hosts, [surveyed(seen) for seen in devices])
    launcher.survey()
    block = Block(phase="clean", first=0, count=1, start_ns=1, end_ns=2)
    for process, left in enumerate(launcher.bridge.answers):
        track = DeviceTrack(uuid=f"of {process}", states=DeviceStates(time_ns=[5]))
        record = make_record(process, step_s=[0.1], loss=[1.0], blocks=[block])
        left["record"] = record.model_dump_json()
        left["watched"] = NodeTrack(devices=[track]).model_dump_json()
    launcher.launch(make_cell("ddp", len(hosts), device="cuda"), tmp_path)
    watches = [launcher.bridge.seats[i].get("watch") for i in range(len(hosts))]
    assert [watch and watch["uuids"][0] for watch in watches] == list(watched)
    for host, watch in zip(hosts, watches, strict=True):
        family = [100 + i for i, other in enumerate(hosts) if other == host]
        assert watch is None or watch["family"] == family


def test_a_machine_of_the_world_whose_devices_cannot_be_used_is_named(world):
    told = {"devices": "NVML shows 8 GPUs, and torch sees none", "reason": "too old"}
    answers = [surveyed(["a"]), surveyed(["a"]), surveyed([], told)]
    found = world(("n0", "n1", "n2"), answers).survey()
    assert found["devices"] == [{"uuid": "a"}]
    assert refusal(found).startswith("n2: NVML shows 8 GPUs, and torch sees none: too old.")
    assert world(("n0", "n1"), answers[:2]).survey()["unusable"] is None


def variables(text):
    return dict(word.split("=") for word in text.split())


TORCHRUN = variables(
    "TORCHELASTIC_RUN_ID=none TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=0 "
    "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=29501"
)
MPIRUN = variables(
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
    "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=3221225473"
)
ALLOCATION = variables("SLURM_JOB_ID=17 SLURM_JOB_NODELIST=n[01-02] SLURM_NTASKS=4 SLURM_NNODES=2")
SRUN = ALLOCATION | variables(
    "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=n[01-02] "
    "SLURM_PROCID=2 SLURM_LOCALID=0"
)
BY_HAND = variables("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29500")
PMI = variables("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 MASTER_PORT=29500")
TOLD = variables("OMPI_COMM_WORLD_SIZE=4 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500")


@cases(
    "environment, found",
    (TORCHRUN, ("torchrun", 3, 4, "n1")),
    (SRUN | TORCHRUN, ("torchrun", 3, 4, "n1")),  # in a step of Slurm
    (MPIRUN, ("mpirun", 1, 2, "127.0.0.1")),
    (MPIRUN | TOLD, ("mpirun", 1, 4, "10.0.0.1")),
    (SRUN, ("srun", 2, 4, "n01")),
    (SRUN | BY_HAND | {"RANK": "2", "WORLD_SIZE": "4"}, ("srun", 2, 4, "a")),
    (PMI, ("pmi", 1, 2, "127.0.0.1")),
    (BY_HAND, ("environment", 1, 2, "a")),
    ({}, None),
    ({"RANK": "0", "WORLD_SIZE": "1"}, None),
    ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),  # a shell on some machines
    (ALLOCATION, None),
    (ALLOCATION | variables("SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0"), None),
    (SRUN | {"SLURM_STEP_ID": "4294967290"}, None),  # salloc's interactive step
    (SRUN | {"SLURM_STEP_ID": "4294967291"}, None),  # the batch script as a step
    (SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, None),  # srun --pty bash
)
def test_the_world_that_a_launcher_has_made(environment, found):
    member = find_member(environment)
    told = member and (member.launcher, member.rank, member.world_size, member.rendezvous.host)
    assert told == found


@cases(
    "environment, words",
    ({"RANK": "0"}, "RANK=0 is set but WORLD_SIZE is not"),
    ({"RANK": "2", "WORLD_SIZE": "2"}, "not a valid rank"),
    ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x'"),
    (SRUN | {"RANK": "0", "WORLD_SIZE": "2"}, "SLURM_PROCID=2"),
    (MPIRUN | {"RANK": "0", "WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK=1"),
    (MPIRUN | {"OMPI_COMM_WORLD_SIZE": "4"}, "mpirun -x"),
    ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT"),
    ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR"),
    (TORCHRUN | {"MASTER_PORT": "99999"}, "MASTER_PORT='99999'"),
    ({"TORCHELASTIC_RUN_ID": "x"}, "RANK and WORLD_SIZE"),
)
def test_contradictions_are_told_in_one_line(environment, words):
    with pytest.raises(UsageError) as told:
        find_member(environment)
    assert words in str(told.value) and "\n" not in str(told.value)


PROGRAM = "from scalebench.launch.processes import why_no_loopback; print(why_no_loopback())"


@cases(
    "set_up, reason",
    ("true", "Network is unreachable"),
    ("ip link set lo up && ip address del 127.0.0.1/8 dev lo", "Cannot assign requested"),
    ids=["down", "IPv6 only"],
)
def test_why_they_cannot_is_told(set_up, reason):
    made = ["unshare", "-rn", "sh", "-c", f'{set_up} || exit 77; exec "$@"', "sh"]
    done = subprocess.run([*made, sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no such namespace can be made here: {done.stderr.strip()}")
    assert reason in done.stdout, done.stdout + done.stderr
