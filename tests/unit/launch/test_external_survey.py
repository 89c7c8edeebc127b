"""A world of machines that differ: what one of them lacks is told, and of which it is."""

from types import SimpleNamespace

from scalebench.launch.external.launcher import ExternalLauncher
from scalebench.launch.external.nodes import Registration
from scalebench.session.unusable import refusal

GOOD = {"torch": "2.13.0+cu130", "cuda": "13.0", "devices": [{"uuid": "a"}], "unusable": None}
TOLD = {"devices": "NVML shows 8 GPUs, and torch sees none", "reason": "too old"}


def launcher_of(*answers):
    hosts = [
        Registration(host=f"n{number}", pid=1, affinity=(0,), cores=(0,), torch="2.13.0")
        for number in range(len(answers))
    ]
    made = object.__new__(ExternalLauncher)
    made.num_launches = 0
    made.member = SimpleNamespace(launcher="srun")
    made.secret = SimpleNamespace(remove_files=lambda: None)
    made.group = SimpleNamespace(
        everyone=range(len(answers)),
        registrations=dict(enumerate(hosts)),
        ask=lambda launch, processes, request: {n: dict(answers[n]) for n in processes},
    )
    return made


def test_a_machine_of_the_world_whose_devices_cannot_be_used_is_named():
    bad = GOOD | {"devices": [], "unusable": TOLD}
    found = launcher_of(GOOD, GOOD, bad).survey()
    assert found["devices"] == GOOD["devices"]
    assert refusal(found).startswith("n2: NVML shows 8 GPUs, and torch sees none: too old.")
    assert launcher_of(GOOD, GOOD).survey()["unusable"] is None


def test_compiling_is_tried_on_every_machine():
    missing = {"problem": "no C compiler", "remedy": "apt install gcc"}
    works, fails = {"uncompiled": None}, {"uncompiled": missing}
    assert launcher_of(works, fails).why_not_compiled("cuda") == "no C compiler (apt install gcc)"
    assert launcher_of(works, works).why_not_compiled("cuda") is None
