import os
import subprocess
import sys

import pytest
import torch

from scalebench.errors import EnvironmentUnfit
from scalebench.machine import relevant_variables
from scalebench.session.machine.diagnosis import diagnose, read_conditions
from scalebench.session.machine.survey import refusal
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.spec import Case, Ddp, Suite
from scalebench.worker import survey
from tests.builders.machines import CONDITIONS, FACTS


def rates(*flop_per_s):
    return [
        {"device": f"cuda:{i}", "matrix_flop_per_s": rate, "copy_byte_per_s": 3e12}
        for i, rate in enumerate(flop_per_s)
    ]


def texts(facts=(), conditions=()):
    found = diagnose({**FACTS, **dict(facts)}, {**CONDITIONS, **dict(conditions)})
    return [f"{finding.level}: {finding.text}" for finding in found]


DESERVED = [
    ({"torch": "2.10.1"}, {}, "warning: torch 2.10.1 is older than 2.11"),
    ({"backends": ["nccl"]}, {}, "warning: torch has no gloo backend"),
    ({"backends": ["gloo"]}, {}, "warning: CUDA devices but no NCCL"),
    ({"devices": [], "cuda": None}, {}, "note: torch is a CPU build"),
    ({"devices": []}, {}, "note: torch sees no CUDA device"),
    ({"rates": rates(900e12, 700e12)}, {}, "warning: cuda:1 reaches 78% of the fastest"),
    ({"cgroup_cpus": 0.5}, {}, "warning: the cgroup allows 0.5 of a core"),
    ({}, {"no_loopback": "unreachable"}, "warning: nothing can connect to 127.0.0.1, so no two"),
    (
        {"variables": {"CUDA_LAUNCH_BLOCKING": "1"}},
        {},
        "warning: CUDA_LAUNCH_BLOCKING=1 makes every kernel wait",
    ),
    (
        {"variables": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}},
        {},
        "warning: TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective",
    ),
    (
        {},
        {"cpu_busy_share": 0.5, "busiest": {"name": "backup", "pid": 42, "cores": 1.02}},
        "warning: other programs keep the processors 50% busy, most of all backup (42): 1.0 cores",
    ),
    ({}, {"swap_used_bytes": 1}, "note: swap is in use"),
    ({}, {"shm_bytes": 64 << 20}, "warning: /dev/shm has only 67 MB"),
    ({}, {"open_files_limit": 256}, "warning: only 256 open files"),
    ({}, {"cpu_governor": "powersave"}, "note: the CPU frequency governor is 'powersave'"),
    ({}, {"compiler": None}, "note: no C++ compiler"),
    ({}, {"sched_batch": False}, "note: no SCHED_BATCH"),
]


@pytest.mark.parametrize(("facts", "conditions", "text"), DESERVED, ids=[d[2] for d in DESERVED])
def test_a_warning_appears_for_the_facts_that_deserve_it_and_alone(facts, conditions, text):
    found = texts(facts, conditions)
    assert len(found) == 1
    assert found[0].startswith(text)


def test_what_changes_times_on_gpus_is_recorded():
    names = (
        *("NVIDIA_TF32_OVERRIDE", "CUDA_DEVICE_MAX_CONNECTIONS", "CUBLAS_WORKSPACE_CONFIG"),
        *("HIP_VISIBLE_DEVICES", "RCCL_MSCCL_ENABLE", "FI_PROVIDER", "UCX_TLS", "NCCL_ALGO"),
    )
    given = dict.fromkeys((*names, "WIFI_KEY", "CUDA_HOME", "NVIDIA_TF32_OVERRIDE_OLD"), "1")
    assert set(relevant_variables(given)) == set(names)


def test_the_conditions_of_this_machine_can_be_read_and_judged():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinning:
        conditions = read_conditions()
        spinning.kill()
    assert set(conditions) == set(CONDITIONS)
    assert conditions["busiest"]["cores"] > 0
    assert conditions["busiest"]["pid"] != os.getpid()
    diagnose(FACTS, conditions)


POSSIBLE = {"network": None, "quota": None, "rootless": False}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        (
            {"network": "no program 'ip': install iproute2", "quota": "no permission"},
            ["note: no virtual hosts (--launcher lab): no program 'ip': install iproute2"],
        ),
        (
            {"quota": "/sys/fs/cgroup: Permission denied", "rootless": True},
            [
                "note: virtual hosts, but no share of the CPU for each (--cpus-per-rank): "
                "/sys/fs/cgroup: Permission denied"
            ],
        ),
    ],
)
def test_what_of_virtual_hosts_cannot_be_had(changes, told):
    assert texts(conditions={"virtual_hosts": POSSIBLE | changes}) == told


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
    (UNEXPECTED + "803: system has unsupported display driver / cuda driver combination", "reboot"),
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


@pytest.fixture
def torch_says(monkeypatch, tmp_path):
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
    ({"kernel": 8}, "gpus shows 8 GPUs, and torch sees none"),
    ({"kernel": 8, "CUDA_VISIBLE_DEVICES": ""}, None),
    ({"kernel": 8, "CUDA_VISIBLE_DEVICES": "-1"}, None),
    ({"kernel": 8, "CUDA_VISIBLE_DEVICES": "9"}, "gpus shows 8 GPUs, and torch sees none"),
    ({"amd": (0, 51, 52)}, None),  # a graphics part that nobody trains on: torch is not for ROCm
    ({"amd": (0, 51, 52), "hip": "6.4"}, "AMD's driver shows 2 GPU(s), and torch sees none"),
    ({"amd": (0, 51), "hip": "6.4", "HIP_VISIBLE_DEVICES": "-1"}, None),
    ({"accelerator": "xpu"}, "torch has 2 device(s) of type xpu"),
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
