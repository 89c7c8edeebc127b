import os
import platform
import subprocess
import sys

import pytest
import torch

from scalebench.cli.text_tables import render_inventory
from scalebench.errors import EnvironmentUnfit
from scalebench.machine import relevant_variables
from scalebench.session.machine.diagnosis import diagnose, read_conditions
from scalebench.session.machine.inventory import take_inventory
from scalebench.session.machine.survey import refusal, survey_key
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.spec import Case, Ddp, Suite
from scalebench.worker import survey
from tests.examples import cases

GPU = {"index": 0, "name": "A GPU", "memory_bytes": 80e9}
FACTS = {
    "torch": "2.13.0+cu130",
    "cuda": "13.0",
    "backends": ["gloo", "nccl"],
    "devices": [GPU, GPU],
    "cgroup_cpus": None,
    "variables": {},
}
CONDITIONS = {
    "cpu_busy_share": 0.02,
    "busiest": None,
    "memory_available_bytes": 64e9,
    "swap_used_bytes": 0,
    "shm_bytes": 8 << 30,
    "no_loopback": None,
    "open_files_limit": 4096,
    "cpu_governor": "performance",
    "compiler": "/usr/bin/g++",
    "sched_batch": True,
    "cpu_clock_hz": 2.3e9,
    "links": {"lo": {"bit_per_s": None, "mtu_bytes": 65536}},
}


def texts(**changes):
    """What is found of a good machine with other facts or conditions."""
    facts = FACTS | {name: new for name, new in changes.items() if name in (*FACTS, "rates")}
    conditions = CONDITIONS | {n: new for n, new in changes.items() if n not in facts}
    return [f"{finding.level}: {finding.text}" for finding in diagnose(facts, conditions)]


RATES = [
    {"device": f"cuda:{i}", "matrix_flop_per_s": rate, "copy_byte_per_s": 3e12}
    for i, rate in enumerate((900e12, 700e12))
]
BUSY = {"name": "backup", "pid": 42, "cores": 1.02}
DESERVED = {
    "warning: torch 2.10.1 is older than 2.11": {"torch": "2.10.1"},
    "warning: torch has no gloo backend": {"backends": ["nccl"]},
    "warning: CUDA devices but no NCCL": {"backends": ["gloo"]},
    "note: torch is a CPU build": {"devices": [], "cuda": None},
    "note: torch sees no CUDA device": {"devices": []},
    "warning: cuda:1 reaches 78% of the fastest": {"rates": RATES},
    "warning: the cgroup allows 0.5 of a core": {"cgroup_cpus": 0.5},
    "warning: nothing can connect to 127.0.0.1, so no two": {"no_loopback": "unreachable"},
    "warning: CUDA_LAUNCH_BLOCKING=1 makes every kernel wait": {
        "variables": {"CUDA_LAUNCH_BLOCKING": "1"}
    },
    "warning: TORCH_DISTRIBUTED_DEBUG=DETAIL checks every collective": {
        "variables": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    },
    "warning: other programs keep the processors 50% busy, most of all backup (42): 1.0 cores": {
        "cpu_busy_share": 0.5,
        "busiest": BUSY,
    },
    "note: swap is in use": {"swap_used_bytes": 1},
    "warning: /dev/shm has only 67 MB": {"shm_bytes": 64 << 20},
    "warning: only 256 open files": {"open_files_limit": 256},
    "note: the CPU frequency governor is 'powersave'": {"cpu_governor": "powersave"},
    "note: no C++ compiler": {"compiler": None},
    "note: no SCHED_BATCH": {"sched_batch": False},
    "note: no virtual hosts (--launcher lab): no program 'ip': install iproute2": {
        "virtual_hosts": {"network": "no program 'ip': install iproute2", "quota": "no"}
    },
    "note: virtual hosts, but no share of the CPU for each (--cpus-per-rank): /sys: denied": {
        "virtual_hosts": {"network": None, "quota": "/sys: denied", "rootless": True}
    },
}


@cases("text", *DESERVED)
def test_a_warning_appears_for_the_facts_that_deserve_it_and_alone(text):
    (found,) = texts(**DESERVED[text])
    assert found.startswith(text)
    assert texts() == []
    assert texts(virtual_hosts={"network": None, "quota": None, "rootless": False}) == []


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
    assert set(conditions) == set(CONDITIONS) and conditions["busiest"]["cores"] > 0
    assert conditions["busiest"]["pid"] != os.getpid()
    diagnose(FACTS, conditions)


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


@cases("words, remedy", *SAID, ids=[remedy for _, remedy in SAID])
def test_run_refuses_in_torchs_words_with_the_remedy_and_doctor_says_the_same(words, remedy):
    told = {"devices": "NVML shows 8 GPUs, and torch sees none", "reason": words}
    facts = {**FACTS, "devices": [], "driver": "535.104.05", "unusable": told}
    suite = Suite(name="ddp", question="?", cases=(Case(name="ddp", strategy=Ddp()),))
    with pytest.raises(EnvironmentUnfit) as refused:
        make_plan(Request(), [suite], Machine(num_gpus=0, num_cores=4, unusable=refusal(facts)))
    text = str(refused.value)
    assert text.startswith("NVML shows 8 GPUs, and torch sees none: ")
    assert words.rstrip(".") in text and remedy in text and "--device cpu" in text
    (finding,) = diagnose(facts, CONDITIONS)
    told = f"{finding.text}. {finding.remedy}"
    assert (finding.level, told) == ("warning", text.partition(". --device cpu")[0])


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


@cases("machine, devices", *MACHINES, ids=str)
def test_the_survey_finds_devices_that_torch_cannot_use(torch_says, machine, devices):
    told = torch_says(**machine)
    assert (told is None) is (devices is None)
    if told:
        reason = "scalebench cannot train on it" if "accelerator" in machine else TOO_OLD
        assert told["devices"].endswith(devices) and told["reason"] == reason


def touch(root, name):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("")


SLICE = "proc/driver/nvidia/capabilities/gpu0/mig/gi1/access"
CHANGES = {
    "another host": lambda root, set_: set_.setattr(platform, "node", lambda: "gpu-17"),
    "another GPU": lambda root, set_: touch(root, "dev/nvidia1"),
    "a GPU of AMD": lambda root, set_: touch(root, "dev/dri/renderD128"),
    "a slice of a GPU": lambda root, set_: touch(root, SLICE),
    "a GPU that is taken away": lambda root, set_: (root / "dev/nvidia0").unlink(),
    "a choice of AMD's": lambda root, set_: set_.setenv("HIP_VISIBLE_DEVICES", "1"),
    "another order": lambda root, set_: set_.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
    "another driver": lambda root, set_: (root / "proc/driver/nvidia/version").write_text("580"),
}


@cases("change", *CHANGES.values(), ids=CHANGES)
def test_an_answer_is_for_this_host_and_these_devices(tmp_path, monkeypatch, change):
    for name in ("dev/nvidia0", "dev/nvidiactl", "proc/driver/nvidia/version"):
        touch(tmp_path, name)
    before = survey_key(tmp_path)
    assert survey_key(tmp_path) == before
    touch(tmp_path, "dev/nvidia-uvm")
    assert survey_key(tmp_path) == before  # no device of its own
    change(tmp_path, monkeypatch)
    assert survey_key(tmp_path) != before


SURVEY = {"strategies": ["ddp", "plain"], "devices": [], "torch": "2.13.0", "backends": ["gloo"]}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def by_name(kind, survey=SURVEY):
    return {entry["name"]: entry for entry in take_inventory(survey)[kind]}


def test_a_model_that_no_device_can_hold_says_so():
    devices = [{"memory_bytes": 8e9}, {"memory_bytes": 16e9}]
    found = by_name("workloads", {**SURVEY, "devices": devices})
    small, large = (found[name]["cannot_run"] for name in ("gpt-350m", "gpt-1.3b"))
    assert small is None and "exceeds the largest device's 16 GB" in large and "21 GB" in large


def test_listing_executes_no_suite_of_this_folder(here, capfd):
    """Whoever may write ./suites would else run code as everybody who looks what there is."""
    (here / "suites").mkdir()
    ran = "open('ran', 'w')\n"
    whole = "from scalebench import Suite\nSUITE = Suite(name='x', question='Is it \x1b[31m?')\n"
    files = {
        "fsdp": ran + whole,
        "mine": ran + "from other import *",
        "none": ran + "# a training script without a SUITE",
        "wrong": ran + "SUITE = (",
        "zero": ran + "SUITE = 1 \0",
        "warns": ran + "SUITE = '\\q'",
        "deep": ran + "SUITE = " + "-" * 100_000 + "1",
        "large": ran + "#" * 2_000_000 + "\nSUITE = 1",
    }
    for name, text in files.items():
        (here / "suites" / f"{name}.py").write_text(text)
    (here / "suites" / "bytes.py").write_bytes(b"SUITE = '\xff'")
    os.mkfifo(here / "suites" / "pipe.py")
    suites = by_name("suites")
    assert not (here / "ran").exists() and capfd.readouterr() == ("", "")
    assert suites["fsdp"]["hides_bundled"] and not suites["mine"]["hides_bundled"]
    assert suites["fsdp"]["about"].startswith("Is it") and "cases" not in suites["fsdp"]
    assert {n for n in (*files, "bytes", "pipe") if suites[n]["cannot_run"]} == {
        *("none", "wrong", "zero", "deep", "large", "bytes", "pipe")
    }
    text = render_inventory({"suites": list(suites.values())})
    assert "suites/fsdp.py, not the suite of this name that comes with scalebench" in text


def test_every_case_is_described_in_one_line_that_no_other_case_of_its_suite_has():
    for name, suite in by_name("suites").items():
        lines = [case["about"] for case in suite.get("cases", ())]
        assert all(lines) and len(set(lines)) == len(lines), name
