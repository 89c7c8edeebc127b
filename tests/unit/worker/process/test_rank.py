"""What a rank writes down of itself."""

import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.spec.probes import Sweep, Transfer
from scalebench.worker import survey
from scalebench.worker.collectives.probes import FEWEST_SIZES, TimeLimit


@pytest.mark.parametrize(
    ("name", "major", "hip", "computes"),
    [
        ("Tesla V100-SXM2-16GB", 7, None, False),
        ("Tesla T4", 7, None, False),
        ("NVIDIA A100-SXM4-80GB", 8, None, True),
        ("NVIDIA H200", 9, None, True),
        ("AMD Instinct MI210", 9, "7.2", True),
    ],
)
def test_which_gpus_compute_in_bfloat16(monkeypatch, name, major, hip, computes):
    gpu = SimpleNamespace(name=name, uuid="u", total_memory=1, major=major, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert survey.rated_format(torch.device("cuda", 0)) is (
        torch.bfloat16 if computes else torch.float16
    )
    assert survey.rated_format(torch.device("cpu")) is torch.float32


PROGRAM = """
import ctypes, os, platform, resource, sys, threading, time
from scalebench.worker.process import family
from scalebench.worker.process.zygote import Zygote

class Launcher:
    def sendall(self, message):
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(used.ru_utime + used.ru_stime)

family.adopt_orphans()
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


@pytest.mark.parametrize("what", ["works on", "first thread ends"])
def test_the_time_of_what_a_rank_left_behind_is_the_jobs_when_its_end_is_told(what):
    done = subprocess.run([sys.executable, "-c", PROGRAM, what], capture_output=True, text=True)
    assert float(done.stdout) >= 0.5, done.stderr


SIZES = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20)
OPERATIONS = ("all_reduce", "all_gather")
BYTE_PER_S = 1e6


def swept(limit_s, repeats=2):
    transfers = tuple(Transfer(operation=op, size_bytes=s) for op in OPERATIONS for s in SIZES)
    job = {"world_size": 2, "device": "cpu", "backend": "gloo", "threads": 1}
    plan = Sweep(**job, transfers=transfers, repeats=repeats, time_limit_s=limit_s)
    limit, timed, spent_s = TimeLimit(plan), Counter[tuple[str, int]](), 0.0
    for _ in range(repeats):
        for place in limit.order:
            if limit.allows(place):
                one = transfers[place]
                took_s = (one.back_to_back + 1) * one.size_bytes / BYTE_PER_S
                if limit_s is not None:
                    limit.spent(place, took_s)
                timed[one.operation, one.size_bytes] += 1
                spent_s += took_s
    return timed, spent_s


ALL_S = swept(None)[1]


@given(st.floats(min_value=1e-6, max_value=2 * ALL_S))
def test_the_limit_is_kept_and_every_operation_can_still_be_fitted(limit_s):
    timed, spent_s = swept(limit_s)
    fewest_s = len(OPERATIONS) * 3 * sum(SIZES[:FEWEST_SIZES]) / BYTE_PER_S
    assert spent_s <= max(limit_s, fewest_s)
    for operation in OPERATIONS:
        sizes = sorted(size for op, size in timed if op == operation)
        assert tuple(sizes) == SIZES[: len(sizes)] and len(sizes) >= FEWEST_SIZES
