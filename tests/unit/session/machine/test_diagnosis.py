import pytest

from scalebench.machine import relevant_variables
from scalebench.session.machine.diagnosis import diagnose, read_conditions
from tests.builders.machines import CONDITIONS, FACTS


def rates(*flop_per_s):
    return [
        {"device": f"cuda:{i}", "matrix_flop_per_s": rate, "copy_byte_per_s": 3e12}
        for i, rate in enumerate(flop_per_s)
    ]


def texts(facts=(), conditions=()):
    found = diagnose({**FACTS, **dict(facts)}, {**CONDITIONS, **dict(conditions)})
    return [f"{finding.level}: {finding.text}" for finding in found]


def test_a_good_machine_has_nothing_to_tell():
    assert texts() == []
    assert texts({"rates": rates(900e12, 905e12)}) == []


DESERVED = [
    ({"torch": "2.10.1"}, {}, "warning: torch 2.10.1 is older than 2.11"),
    ({"torch": "1.13.0"}, {}, "warning: torch 1.13.0 is older"),
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
    ({}, {"cpu_busy_share": 0.5}, "warning: other programs keep the processors 50% busy"),
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


@pytest.mark.parametrize(
    ("facts", "conditions"),
    [
        ({"torch": "2.11.0"}, {}),
        ({"torch": "3.0.0a0+git1234"}, {}),
        ({"rates": rates(900e12, 811e12)}, {}),
        ({"cgroup_cpus": 1.0}, {}),
        ({"variables": {"CUDA_LAUNCH_BLOCKING": "0", "TORCH_DISTRIBUTED_DEBUG": "INFO"}}, {}),
        ({}, {"cpu_busy_share": 0.19}),
        ({}, {"shm_bytes": 1 << 30}),
        ({}, {"open_files_limit": 1024}),
        ({}, {"shm_bytes": None, "cpu_governor": None}),  # the platform does not tell
    ],
)
def test_what_is_just_good_enough_is_not_complained_about(facts, conditions):
    assert texts(facts, conditions) == []


def test_a_slow_copy_is_found_as_well_and_only_the_slow_device_is_named():
    slow = rates(900e12, 900e12, 900e12)
    slow[2]["copy_byte_per_s"] = 1e12
    found = texts({"rates": slow})
    assert len(found) == 1
    assert found[0].startswith("warning: cuda:2 reaches 33% of the fastest device's copy rate")


def test_what_changes_times_on_gpus_is_recorded():
    names = (
        *("NVIDIA_TF32_OVERRIDE", "CUDA_DEVICE_MAX_CONNECTIONS", "CUBLAS_WORKSPACE_CONFIG"),
        *("HIP_VISIBLE_DEVICES", "RCCL_MSCCL_ENABLE", "FI_PROVIDER", "UCX_TLS", "NCCL_ALGO"),
    )
    given = dict.fromkeys((*names, "WIFI_KEY", "CUDA_HOME", "NVIDIA_TF32_OVERRIDE_OLD"), "1")
    assert set(relevant_variables(given)) == set(names)


def test_the_conditions_of_this_machine_can_be_read_and_judged():
    conditions = read_conditions()
    assert set(conditions) == set(CONDITIONS)
    diagnose(FACTS, conditions)


def test_no_secret_is_recorded():
    given = {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "4",
        "NCCL_AUTH_TOKEN": "x",
        "TORCH_API_KEY": "x",
        "HOME": "/root",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    assert relevant_variables(given) == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}


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
