"""Ranks of a script on several machines: their numbers there, and their clocks."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from scalebench.records.secret import Forged
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from scalebench.worker.process.store_queue import SealedStore
from scalebench.worker.script.places import Place, compare_clocks, meet, told_by_rank_0
from scalebench.worker.script.supervise import environment_for
from tests.builders.runs import make_cell

PLACES = [
    Place(host="a", local_rank=0, clock="x"),
    Place(host="a", local_rank=1, clock="x"),
    Place(host="b", local_rank=0, clock="y"),
]
ADDRESSES = {"host": "10.0.0.1", "master": 1234, "run_dir": "/tmp/r", "key": "k"}
OFFSET_NS = 5_000_000_000


def variables(rank: int) -> dict[str, str]:
    target = ScriptTarget(name="train", program="train.py")
    cell = make_cell("script", 3, strategy=Script(), backend=None, workload=target)
    identity = {"rank": rank, "local_rank": PLACES[rank].local_rank}
    return environment_for(cell, identity, ADDRESSES, PLACES)


def test_each_rank_is_told_its_machine_as_torchrun_does(monkeypatch):
    told = [variables(rank) for rank in range(3)]
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    assert [tuple(int(one[name]) for name in names) for one in told] == [
        (0, 0, 2, 0, 2),
        (1, 1, 2, 0, 2),
        (2, 0, 1, 1, 2),
    ]
    assert {one["MASTER_ADDR"] for one in told} == {"10.0.0.1"}


def test_what_other_launchers_have_said_is_left_out(monkeypatch):
    others = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    for name in (*others, "SLURM_JOB_ID", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.setenv(name, "7")
    found = variables(0)
    assert not {*others, "TORCHELASTIC_ERROR_FILE"} & found.keys()
    assert found["SLURM_JOB_ID"] == "7"


def test_clocks_of_other_machines_are_compared_over_the_store():
    store = SealedStore(dist.HashStore(), "key")

    def compared(rank: int):
        ahead = OFFSET_NS if rank == 2 else 0
        return compare_clocks(store, rank, PLACES, "before", lambda: time.monotonic_ns() + ahead)

    with ThreadPoolExecutor(3) as ranks:
        found = list(ranks.map(compared, range(3)))
    assert [one.method for one in found] == ["shared clock", "shared clock", "ping-pong"]
    assert found[0].offset_ns == found[1].offset_ns == 0
    assert abs(found[2].offset_ns - OFFSET_NS) <= found[2].bound_ns


def test_all_ranks_meet():
    store = SealedStore(dist.HashStore(), "key")
    with ThreadPoolExecutor(2) as ranks:
        found = list(
            ranks.map(
                lambda rank: meet(store, rank, 2, {"host": "ab"[rank], "local_rank": 0}), range(2)
            )
        )
    assert found[0] == found[1] and [place.host for place in found[0]] == ["a", "b"]


def test_where_a_stranger_says_that_ranks_are_is_not_believed():
    store = dist.HashStore()
    store.set("addresses", '{"run_dir": "/home"}')
    with pytest.raises(Forged, match="addresses"):
        told_by_rank_0(SealedStore(store, "key"), None)
    SealedStore(store, "key").set("place0", "{}")
    store.set("addresses", store.get("place0"))  # signed, under another name
    with pytest.raises(Forged, match="addresses"):
        told_by_rank_0(SealedStore(store, "key"), None)
