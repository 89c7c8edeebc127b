"""What a rank writes down of itself."""

from contextlib import nullcontext

import torch

from scalebench.records.files import read_model, write_model
from scalebench.records.paths import LaunchPaths
from scalebench.records.rank import RankRecord
from scalebench.worker import rank
from scalebench.worker.process.context import RankContext
from tests.builders.runs import make_cell


def test_tf32_is_read_after_the_users_module_was_built(tmp_path, monkeypatch):
    """The module may set it; what was in force before says nothing of the steps."""
    on = {"matmul_tf32": False, "convolution_tf32": True}
    cell = make_cell("plain", 1)
    paths = LaunchPaths(tmp_path)
    write_model(paths.job_json, cell)
    paths.record(0).parent.mkdir(parents=True, exist_ok=True)

    def builds_a_module_and_trains(context, keep):
        on.update(matmul_tf32=True, convolution_tf32=False)
        keep({"facts": {"optimizer": "AdamW"}})

    context = RankContext(cell, 0, 0, torch.device("cpu"))
    monkeypatch.setattr(rank, "connected", lambda *_: nullcontext(context))
    monkeypatch.setattr(rank, "tf32_in_force", lambda _: dict(on))
    monkeypatch.setattr(rank.process, "settle", lambda *_: {"threads": 1})
    monkeypatch.setattr(rank.process, "keep_sockets_in", lambda _: None)
    monkeypatch.setitem(rank._WORK, "measure", builds_a_module_and_trains)
    assert rank.run_cell({"rank": 0, "folder": str(tmp_path)}) == 0
    facts = read_model(paths.record(0), RankRecord).facts
    assert facts["matmul_tf32"] is True and facts["convolution_tf32"] is False
    assert (facts["threads"], facts["optimizer"]) == (1, "AdamW")
