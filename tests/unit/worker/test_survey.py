"""What the survey says of a GPU's arithmetic, and in which format it is rated."""

from types import SimpleNamespace

import pytest
import torch

from scalebench.worker import survey


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
    assert survey._device(0)["bfloat16"] is computes
    assert survey.rated_format(torch.device("cuda", 0)) is (
        torch.bfloat16 if computes else torch.float16
    )
    assert survey.rated_format(torch.device("cpu")) is torch.float32
