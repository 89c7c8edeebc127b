"""NCCL is asked for its log, and never over a setting of the user's."""

import os

import pytest

from scalebench.worker.process.nccl_log import write_nccl_log
from tests.builders.links.nccl_wire_logs import LOGS

ASKED = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH"}


@pytest.mark.parametrize(
    ("own", "conf", "transports", "reason"),
    [
        ({}, "", ["NET/Socket"], None),
        ({}, "NCCL_IB_HCA=mlx5\n", ["NET/Socket"], None),
        ({"NCCL_DEBUG": "INFO"}, "", ["NET/Socket"], None),
        ({"NCCL_DEBUG": "WARN"}, "", None, "NCCL_DEBUG is set"),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "mine"}, "", None, "NCCL_DEBUG_FILE is set"),
        ({}, "NCCL_IB_HCA=mlx5\nNCCL_DEBUG=WARN\n", None, "NCCL_DEBUG is set"),
    ],
)
def test_it_is_written_and_read_unless_the_user_wants_it_otherwise(
    tmp_path, monkeypatch, own, conf, transports, reason
):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_")}
    monkeypatch.setattr(os, "environ", kept | own | {"NCCL_CONF_FILE": str(tmp_path / "conf")})
    (tmp_path / "conf").write_text(conf)
    before = dict(os.environ)
    printed = tmp_path / "rank0.log"
    log = write_nccl_log(tmp_path / "nccl.log", printed)
    set_here = {name: os.environ[name] for name in os.environ.keys() - before.keys()}
    if transports and not own:
        assert set_here == {**ASKED, "NCCL_DEBUG_FILE": str(tmp_path / "nccl.log")}
    else:
        assert set_here == {}
    assert before.items() <= os.environ.items()
    if os.environ.get("NCCL_DEBUG") == "INFO":  # as NCCL does
        (tmp_path / os.environ.get("NCCL_DEBUG_FILE", printed)).write_text(LOGS["2.28 H200"])
    found = log.read(ask_gpus=False)
    assert (found and [one.name for one in found.transports]) == transports
    assert (reason or "") in (log.reason or "")
