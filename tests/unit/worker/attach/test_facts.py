"""What is said of a rank besides its steps."""

import pytest
import torch

from scalebench.worker.attach.facts import bases_of
from scalebench.worker.attach.problems import ScriptProblem, check_torch


@pytest.mark.parametrize("version", ["1.13.1", "2.3.1+cu121"])
def test_versions_that_are_too_old(version):
    with pytest.raises(ScriptProblem, match=r"2\.4 or newer is needed"):
        check_torch(version)


def test_a_class_of_the_users_is_not_torchs_of_the_same_name():
    mine = type("DistributedDataParallel", (torch.nn.Module,), {"__module__": "mine"})
    assert bases_of(mine) == {"Module"}
