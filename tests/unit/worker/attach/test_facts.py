"""What is said of a rank besides its steps."""

import pytest
import torch

from scalebench.worker.attach.checks.learning import divided_by
from scalebench.worker.attach.checks.replicas import Replicas
from scalebench.worker.attach.facts import bases_of
from scalebench.worker.attach.problems import ScriptProblem, check_torch


@pytest.mark.parametrize("version", ["1.13.1", "2.3.1+cu121"])
def test_versions_that_are_too_old(version):
    with pytest.raises(ScriptProblem, match=r"2\.4 or newer is needed"):
        check_torch(version)


def test_a_class_of_the_users_is_not_torchs_of_the_same_name():
    mine = type("DistributedDataParallel", (torch.nn.Module,), {"__module__": "mine"})
    assert bases_of(mine) == {"Module"}


def test_experts_of_deepspeed_are_compared_with_their_copies_alone(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_process_group_ranks", lambda group: group)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    kind = type("DeepSpeedEngine", (torch.nn.Module,), {"__module__": "deepspeed.runtime.engine"})
    engine = kind()
    engine.module = torch.nn.ModuleDict({"gate": torch.nn.Linear(2, 2, bias=False)})
    engine.module["expert"] = torch.nn.Linear(2, 2, bias=False)
    expert = engine.module["expert"].weight
    expert.allreduce, expert.group_name = False, "ep_size_2"
    engine.data_parallel_group = [0, 1, 2, 3]
    engine.expert_data_parallel_group = {"ep_size_2": [0, 2]}
    replicas = Replicas("cpu")
    replicas.look(0, [], [engine])
    held = [["gate.weight", None, False], ["expert.weight", (0, 2), False]]
    assert replicas.noted()["held"] == held


@pytest.mark.parametrize("factor", [float("inf"), float("nan")])
def test_a_loss_that_is_multiplied_by_no_number_ends_no_check(factor):
    loss = torch.ones(4, requires_grad=True).mean() * factor
    assert divided_by(loss) == (1.0, None)
