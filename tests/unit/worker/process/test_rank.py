import gc
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from scalebench.errors import EnvironmentUnfit
from scalebench.machine import Processor
from scalebench.records.secret import Forged
from scalebench.spec.probes import Sweep, Transfer
from scalebench.worker import survey
from scalebench.worker.collectives.probes import FEWEST_SIZES, TimeLimit
from scalebench.worker.process import jobs, setup
from scalebench.worker.process.setup import write_nccl_log
from scalebench.worker.process.store_queue import join_session, open_session
from scalebench.worker.process.token import Token, next_slot, order_of_cycle
from scalebench.worker.process.zygote import Zygote, freeze_objects
from tests.builders.links.nccl_wire_logs import LOGS
from tests.examples import cases


@cases("major, hip, computes", (7, None, False), (8, None, True), (9, None, True), (9, "7.2", True))
def test_which_gpus_compute_in_bfloat16(monkeypatch, major, hip, computes):
    """The V100 and the T4 do not; the A100 and AMD's do."""
    gpu = SimpleNamespace(name="x", uuid="u", total_memory=1, major=major, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "hip", hip)
    found = [survey.rated_format(torch.device(*one)) for one in (("cuda", 0), ("cpu",))]
    assert found == [torch.bfloat16 if computes else torch.float16, torch.float32]


PROGRAM = """
import ctypes, os, platform, resource, sys, threading, time
from scalebench.worker.process import token
from scalebench.worker.process.zygote import Zygote

class Launcher:
    def sendall(self, message):
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(used.ru_utime + used.ru_stime)

token.adopt_orphans()
told, tell = os.pipe()
rank = os.fork()
if rank == 0:
    if os.fork() == 0:  # as torch.compile's workers do, it works and outlives its rank
        while time.process_time() < 0.5:
            pass
        threading.Thread(target=time.sleep, args=[60]).start()
        os.write(tell, b"x")
        if sys.argv[1] == "first thread ends":
            ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
        time.sleep(60)
    os.read(told, 1)
    os._exit(0)
os.waitid(os.P_PID, rank, os.WEXITED | os.WNOWAIT)
zygote = Zygote(Launcher())
zygote.alive[rank] = [0, 0]
zygote.reap()
"""


@pytest.mark.slow
@cases("what", "works on", "first thread ends")
def test_the_time_of_what_a_rank_left_behind_is_the_jobs_when_its_end_is_told(what):
    done = subprocess.run([sys.executable, "-c", PROGRAM, what], capture_output=True, text=True)
    assert float(done.stdout) >= 0.5, done.stderr


SIZES = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20)
OPERATIONS = ("all_reduce", "all_gather")
BYTE_PER_S = 1e6


def swept(limit_s, repeats=2):
    """How often each operation was timed at each size, and how long that took."""
    transfers = tuple(Transfer(operation=op, size_bytes=s) for op in OPERATIONS for s in SIZES)
    job = {"world_size": 2, "device": "cpu", "backend": "gloo", "threads": 1}
    limit = TimeLimit(Sweep(**job, transfers=transfers, repeats=repeats, time_limit_s=limit_s))
    timed, spent_s = Counter(), 0.0
    for place in filter(limit.allows, repeats * list(limit.order)):
        one = transfers[place]
        took_s = (one.back_to_back + 1) * one.size_bytes / BYTE_PER_S
        limit.spent(place, took_s)
        timed[one.operation, one.size_bytes] += 1
        spent_s += took_s
    return timed, spent_s


@given(st.floats(min_value=1e-6, max_value=12 * sum(SIZES) / BYTE_PER_S))
def test_the_limit_is_kept_and_every_operation_can_still_be_fitted(limit_s):
    timed, spent_s = swept(limit_s)
    fewest_s = len(OPERATIONS) * 3 * sum(SIZES[:FEWEST_SIZES]) / BYTE_PER_S
    assert spent_s <= max(limit_s, fewest_s)
    for operation in OPERATIONS:
        sizes = sorted(size for op, size in timed if op == operation)
        assert tuple(sizes) == SIZES[: len(sizes)] and len(sizes) >= FEWEST_SIZES


CORES = [Processor(number, number % 4, number // 4, node=number % 4 // 2) for number in range(8)]
"""Four cores with two siblings each; cores 0 and 1 on node 0, cores 2 and 3 on node 1."""


def test_a_rank_with_a_gpu_takes_cores_of_its_node(monkeypatch):
    """On a machine with two GPUs on node 1."""
    gpu = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x9D, pci_device_id=0)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, numbers: None)
    monkeypatch.setattr(setup, "read_processors", lambda numbers: CORES)
    monkeypatch.setattr(setup, "gpu_node", {"0000:9d:00.0": 1}.__getitem__)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    assert setup.pin(0, 2, "cuda") == {"affinity": [2, 3], "numa_nodes": [1], "num_cores": 2}
    assert setup.pin(1, 2, "cuda") == {"affinity": [0, 1], "numa_nodes": [0], "num_cores": 2}


ASKED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}


@cases(
    "own, conf, transports, reason",
    ({}, "", ["NET/Socket"], None),
    ({}, "NCCL_IB_HCA=mlx5\n", ["NET/Socket"], None),
    ({"NCCL_DEBUG": "INFO"}, "", ["NET/Socket"], None),
    ({"NCCL_DEBUG": "WARN"}, "", None, "NCCL_DEBUG is set"),
    ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "mine"}, "", None, "NCCL_DEBUG_FILE is set"),
    ({}, "NCCL_IB_HCA=mlx5\nNCCL_DEBUG=WARN\n", None, "NCCL_DEBUG is set"),
)
def test_nccl_writes_its_log_unless_the_user_has_one(
    tmp_path, monkeypatch, own, conf, transports, reason
):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_")}
    monkeypatch.setattr(os, "environ", kept | own | {"NCCL_CONF_FILE": str(tmp_path / "conf")})
    (tmp_path / "conf").write_text(conf)
    before, printed = dict(os.environ), tmp_path / "rank0.log"
    log = write_nccl_log(tmp_path / "nccl.log", printed)
    set_here = {name: os.environ[name] for name in os.environ.keys() - before.keys()}
    asked = {**ASKED, "NCCL_DEBUG_FILE": str(tmp_path / "nccl.log")}
    assert set_here == (asked if transports and not own else {})
    assert before.items() <= os.environ.items()
    if os.environ.get("NCCL_DEBUG") == "INFO":  # as NCCL does
        (tmp_path / os.environ.get("NCCL_DEBUG_FILE", printed)).write_text(LOGS["2.28 H200"])
    found = log.read(ask_gpus=False)
    assert (found and [one.name for one in found.transports]) == transports
    assert (reason or "") in (log.reason or "")


@given(turns_of=st.lists(st.integers(1, 6), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_every_launch_has_one_turn_in_each_cycle_until_it_leaves(turns_of, seed):
    num_launches, walked, left = len(turns_of), [], []
    turn = (0, order_of_cycle(0, num_launches, seed)[0])
    while turn is not None:
        walked.append(turn)
        place = turn[1]
        if [who for _, who in walked].count(place) == turns_of[place]:
            left.append(place)
        turn = next_slot(*turn, left, num_launches, seed)
    for place, count in enumerate(turns_of):
        assert [cycle for cycle, who in walked if who == place] == list(range(count))


def test_a_launch_that_never_comes_is_waited_for_within_the_limit(tmp_path):
    first = order_of_cycle(0, 2, seed=3)[0]
    with Token(tmp_path, first, 2, seed=3, limit_s=0.2) as token:
        token.wait()
        with pytest.raises(TimeoutError, match=f"launch {1 - first} did not take its turn"):
            token.pass_on()


SECRET = "s" * 32
GARBAGE = ["", "1", "x", "\x00\xff \x80", f"{10**12} {'0' * 64} {'0' * 64}"]


@pytest.fixture
def world():
    """A store, its session, and a rank of two; each has told one thing and was told two."""
    store = HashStore()
    session = open_session(store, SECRET)
    ranks = [join_session(store, rank, lambda: [SECRET], 1.0) for rank in (0, 1)]
    for number, rank in enumerate(ranks):
        session.send(number, {"first": 1})
        session.send(number, {"second": 2})
        rank.tell(number, {"of": number})
    return store, session, ranks[0]


@cases("header", *GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_the_place_of_a_message_is_refused_and_nothing_is_waited_for(world, header):
    store, _, rank = world
    store.set("to/0/0", header)
    with pytest.raises(Forged, match="to/0/0 is not signed"):
        rank.received(0, 0)


@cases("source", "to/1/0", "to/0/1", "of/0/0", "of/1/0")
def test_a_message_counts_under_its_own_name_alone(world, source):
    """Not for another rank, not out of order, and not back to where it came from."""
    store, _, rank = world
    for part in ("/0", ""):
        store.set(f"to/0/0{part}", store.get(f"{source}{part}"))
    with pytest.raises(Forged, match="to/0/0 is not signed"):
        rank.received(0, 0)


@cases("part", None, "something else", "")
def test_a_message_whose_parts_were_changed_or_taken_away_is_refused(world, part):
    store, _, rank = world
    store.delete_key("to/0/0/0") if part is None else store.set("to/0/0/0", part)
    with pytest.raises(Forged, match="to/0/0 was changed"):
        rank.received(0, 0)


@cases("name", "of/0/0", "of/7/0", "of/0/-1", "to/0/0", "x", "")
def test_what_no_rank_has_told_and_what_it_told_before_is_refused(world, name):
    store, session, _ = world
    kept = {key: store.get(key) for key in ("of/0/0", "of/0/0/0")}
    assert [session.sent(number) for number in (0, 1)] == [{"of": 0}, {"of": 1}]
    for key, value in kept.items():
        store.set(key, value)
    store.set("from/2", name)
    with pytest.raises(Forged):
        session.sent(2)


def test_a_rank_without_the_secret_of_the_session_does_not_take_part(world):
    store, _, _ = world
    with pytest.raises(EnvironmentUnfit, match=r"SCALEBENCH_SECRET.*--trust-network"):
        join_session(store, 7, lambda: ["w" * 32], 0.0)
    assert not store.check(["number/7"])


def takes_over_the_process(request):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, force=True)
    logging.getLogger("stand_in_framework").info("by its logger")
    print("by print")
    os.write(1, b"by its own C code\n")
    os.system("echo by a program that it starts")
    sys.stdout = sys.stderr
    print("by a stream that it replaced")
    return 0


def test_all_that_a_framework_prints_is_in_the_log_of_its_rank(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(jobs, "_JOBS", {"train": takes_over_the_process})
    here, there = socket.socketpair()
    log = tmp_path / "rank0.log"
    with here, there:
        zygote = Zygote(there)
        for descriptor, stream in ((1, "stdout"), (2, "stderr")):  # as in the zygote, not pytest's
            monkeypatch.setattr(sys, stream, os.fdopen(descriptor, "w", closefd=False))
        zygote.start({"tag": [0, 0], "job": "train", "log": str(log), "rank": 0})
        (pid,) = zygote.alive
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, log.read_text()
        zygote.alive.clear()
    ways = ("its logger", "print", "its own C code", "a program that it starts")
    said = log.read_text()
    assert [way for way in (*ways, "a stream that it replaced") if f"by {way}" not in said] == []
    assert capfd.readouterr() == ("", "")


def test_ranks_collect_garbage_although_what_forks_them_did_not_at_first():
    gc.disable()
    freeze_objects()
    enabled = gc.isenabled()
    gc.enable()
    gc.unfreeze()
    assert enabled
