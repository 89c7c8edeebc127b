"""What is said of a rank besides its steps."""

import pytest

from scalebench.worker.attach import facts
from scalebench.worker.attach.problems import ScriptProblem, check_torch


@pytest.mark.parametrize(
    ("device", "by_device", "backend"),
    [
        ("cpu", "cpu:gloo,cuda:nccl", "gloo"),
        ("cuda", "cpu:gloo,cuda:nccl", "nccl"),
        ("cuda", "cpu:gloo", None),
        ("cpu", "undefined", None),
    ],
)
def test_the_backend_of_a_device(device, by_device, backend):
    assert facts.backend_for(device, by_device) == backend


@pytest.mark.parametrize("version", ["1.13.1", "2.3.1+cu121"])
def test_versions_that_are_too_old(version):
    with pytest.raises(ScriptProblem, match=r"2\.4 or newer is needed"):
        check_torch(version)
