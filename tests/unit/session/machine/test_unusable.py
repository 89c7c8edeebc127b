"""Devices that are there and that torch cannot use: ranks do not go to the CPU in silence."""

import pytest
import torch

from scalebench.errors import EnvironmentUnfit
from scalebench.session.machine.diagnosis import diagnose
from scalebench.session.machine.unusable import refusal
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.spec import Case, Ddp, Suite
from scalebench.spec.virtual_hosts import VirtualHosts
from scalebench.worker import survey
from tests.builders.machines import CONDITIONS, FACTS

SUITE = Suite(name="ddp", question="?", cases=(Case(name="ddp", strategy=Ddp()),))

TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU "
    "driver by downloading and installing a new version from the URL: "
    "http://www.nvidia.com/Download/index.aspx Alternatively, go to: https://pytorch.org to "
    "install a PyTorch version that has been compiled with your version of the CUDA driver."
)
NO_DRIVER = (
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed "
    "a driver from http://www.nvidia.com/Download/index.aspx"
)
UNEXPECTED = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
    "NumCudaDevices() that might have already set an error? Error "
)
SAID = [
    (TOO_OLD, "torch 2.13.0+cu130 needs driver 580 or newer, here is 535.104.05"),
    (NO_DRIVER, "--gpus all"),
    ("Torch not compiled with CUDA enabled", "torch 2.13.0+cu130 is a CPU build"),
    (UNEXPECTED + "802: system not yet initialized", "systemctl start nvidia-fabricmanager"),
    (
        UNEXPECTED + "803: system has unsupported display driver / cuda driver combination",
        "reboot",
    ),
    ("No CUDA GPUs are available", "CUDA_VISIBLE_DEVICES"),
    ("No HIP GPUs are available", "HIP_VISIBLE_DEVICES"),
    ("something new", "torch.cuda.init()"),
]


def facts_with(reason, devices="NVML shows 8 GPUs, and torch sees none"):
    told = {"devices": devices, "reason": reason}
    return {**FACTS, "devices": [], "driver": "535.104.05", "unusable": told}


def plan_with(facts, **request):
    here = Machine(num_gpus=0, num_cores=4, unusable=refusal(facts))
    return make_plan(Request(**request), [SUITE], here)


@pytest.mark.parametrize(("words", "remedy"), SAID, ids=[remedy for _, remedy in SAID])
def test_run_refuses_in_torchs_words_with_the_remedy_and_doctor_says_the_same(words, remedy):
    facts = facts_with(words)
    with pytest.raises(EnvironmentUnfit) as refused:
        plan_with(facts)
    text = str(refused.value)
    assert text.startswith("NVML shows 8 GPUs, and torch sees none: ")
    assert words.rstrip(".") in text and remedy in text and "--device cpu" in text
    (finding,) = diagnose(facts, CONDITIONS)
    assert (finding.level, f"{finding.text}. {finding.remedy}") in {
        ("warning", text.partition(". --device cpu")[0])
    }


@pytest.mark.parametrize(
    "asked", [{"device": "cpu"}, {"virtual_hosts": VirtualHosts(link_bit_per_s=(1e8,))}]
)
def test_who_asks_for_the_cpu_gets_it(asked):
    assert plan_with(facts_with(TOO_OLD), **asked).spec.device == "cpu"


@pytest.fixture
def torch_says(monkeypatch, tmp_path):
    """Have torch, the kernel and the variables be those of another machine."""

    def become(words=TOO_OLD, kernel=0, hip=None, amd=(), accelerator=None, **variables):
        def init():
            raise RuntimeError(words)

        for name in survey.HIDING:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(torch.cuda, "init", init)
        monkeypatch.setattr(torch.version, "hip", hip)
        device = None if accelerator is None else torch.device(accelerator)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: device)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
        for number in range(kernel):
            (tmp_path / "gpus" / f"0000:{number:02x}:00.0").mkdir(parents=True)
        for number, gpu_id in enumerate(amd):
            (tmp_path / "nodes" / str(number)).mkdir(parents=True)
            (tmp_path / "nodes" / str(number) / "gpu_id").write_text(f"{gpu_id}\n")
        monkeypatch.setattr(survey, "NVIDIA_DEVICES", tmp_path / "gpus")
        monkeypatch.setattr(survey, "AMD_NODES", tmp_path / "nodes")
        return survey.survey()["unusable"]

    return become


MACHINES = [
    ({}, None),
    ({"kernel": 1}, "gpus shows 1 GPU, and torch sees none"),
    ({"kernel": 8}, "gpus shows 8 GPUs, and torch sees none"),
    ({"kernel": 8, "CUDA_VISIBLE_DEVICES": ""}, None),
    ({"kernel": 8, "CUDA_VISIBLE_DEVICES": "-1"}, None),
    ({"kernel": 8, "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, None),
    ({"kernel": 8, "CUDA_VISIBLE_DEVICES": "9"}, "gpus shows 8 GPUs, and torch sees none"),
    ({"amd": (0, 51, 52)}, None),  # a graphics part that nobody trains on: torch is not for ROCm
    ({"amd": (0, 51, 52), "hip": "6.4"}, "AMD's driver shows 2 GPU(s), and torch sees none"),
    ({"amd": (0,), "hip": "6.4"}, None),
    ({"amd": (0, 51), "hip": "6.4", "HIP_VISIBLE_DEVICES": "-1"}, None),
    ({"accelerator": "xpu"}, "torch has 2 device(s) of type xpu"),
    ({"accelerator": "mps"}, "torch has 2 device(s) of type mps"),
    ({"accelerator": "privateuseone"}, "torch has 2 device(s) of type privateuseone"),
]


@pytest.mark.parametrize(("machine", "devices"), MACHINES, ids=str)
def test_the_survey_finds_devices_that_torch_cannot_use(torch_says, machine, devices):
    told = torch_says(**machine)
    if devices is None:
        assert told is None
        return
    assert told["devices"].endswith(devices)
    assert told["reason"] == (
        "scalebench cannot train on it" if "accelerator" in machine else TOO_OLD
    )
