"""A launch whose times do not count has NCCL write its log, and leaves what it says."""

import os
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalebench.records.files import read_model, write_model
from scalebench.records.paths import LaunchPaths
from scalebench.records.probes import ProbeRecord
from scalebench.records.rank import Memory, RankRecord
from scalebench.worker import probes, rank
from tests.builders.nccl_wire_logs import LOGS
from tests.builders.runs import make_cell

LOG = LOGS["2.28 H200"]
ASKED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """A twin of NCCL that writes where the environment says, then fails if it is told to."""
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    output = tmp_path / "rank0.log"
    output.touch()

    def run(module, name, job, kind, fails=False):
        @contextmanager
        def nccl(*_):
            if os.environ.get("NCCL_DEBUG") == "INFO":
                file = os.environ.get("NCCL_DEBUG_FILE", str(output))
                Path(file).write_text(LOG)
            if fails:
                raise RuntimeError("NCCL error: unhandled system error")
            yield SimpleNamespace(device=SimpleNamespace(type="cpu"))

        monkeypatch.setattr(module, "connected" if module is rank else "joined", nccl)
        monkeypatch.setattr(module.process, "settle", lambda *_: {})
        paths = LaunchPaths(tmp_path)
        write_model(paths.job_json, job)
        request = {"rank": 0, "folder": str(tmp_path), "log": str(output)}
        getattr(module, name)(request)
        return read_model(paths.record(0), kind)

    monkeypatch.setattr(rank, "_store_of", lambda *_: None)
    monkeypatch.setattr(rank, "_backend_facts", lambda _: {})
    monkeypatch.setattr(rank, "tf32_in_force", lambda _: {})
    monkeypatch.setattr(rank, "_peaks_so_far", lambda _: Memory())
    monkeypatch.setattr(probes, "rendezvous_store", lambda *_: None)
    monkeypatch.setattr(probes, "_record", lambda _: ProbeRecord(rank=0))
    for purpose in ("inspect", "measure"):
        monkeypatch.setitem(rank._WORK, purpose, lambda _, keep: keep({"facts": {}}))
    return run


def cell(**changes):
    return make_cell(**{"device": "cuda", "backend": "nccl", "purpose": "inspect"} | changes)


@pytest.mark.parametrize(
    ("changes", "own", "conf", "transports", "reason"),
    [
        ({}, {}, "", ["NET/Socket"], None),
        ({"purpose": "measure"}, {}, "", None, None),
        ({"world_size": 1}, {}, "", None, None),
        ({"device": "cpu", "backend": "gloo"}, {}, "", None, None),
        ({}, {"NCCL_DEBUG": "INFO"}, "", ["NET/Socket"], None),
        ({}, {"NCCL_DEBUG": "WARN"}, "", None, "NCCL_DEBUG is set"),
        ({}, {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "mine"}, "", None, "NCCL_DEBUG_FILE is set"),
        ({}, {}, "NCCL_IB_HCA=mlx5\nNCCL_DEBUG=WARN\n", None, "NCCL_DEBUG is set"),
    ],
)
def test_only_the_inspection_of_ranks_over_nccl_writes_one_and_never_over_the_users_setting(
    launch, tmp_path, monkeypatch, changes, own, conf, transports, reason
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nccl.conf").write_text(conf)
    os.environ.update(own)
    before = {k: v for k, v in os.environ.items() if k.startswith("NCCL_")}
    record = launch(rank, "run_cell", cell(**changes), RankRecord)
    told = record.wires and [one.name for one in record.wires.transports]
    assert told == transports
    assert (reason or "") in (record.wires_unavailable or "")
    set_here = {k: v for k, v in os.environ.items() if k.startswith("NCCL_") and k not in before}
    if transports and not own:
        assert set_here.pop("NCCL_DEBUG_FILE").startswith(str(tmp_path))
        assert set_here == ASKED
    else:
        assert set_here == {}
    assert all(os.environ[name] == value for name, value in before.items())


def test_a_rank_that_fails_leaves_what_its_log_says(launch):
    record = launch(rank, "run_cell", cell(), RankRecord, fails=True)
    assert record.error is not None
    assert record.wires.network == "Socket"
