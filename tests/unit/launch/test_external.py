"""A world of machines: who watches which GPU, on which clock, and what one of them lacks."""

import json
from typing import Any

import pytest

from scalebench.launch.external import launcher as module
from scalebench.launch.external.launcher import ExternalLauncher
from scalebench.launch.external.nodes import Registration
from scalebench.records.rank import Block
from scalebench.records.secret import VARIABLE, new_secret
from scalebench.records.telemetry import DeviceStates, DeviceTrack, NodeTrack
from scalebench.session.machine.unusable import refusal
from scalebench.spec.world import Rendezvous, WorldMember
from tests.builders.runs import make_cell, make_record

SHIFT_NS = 10**15
RENDEZVOUS = Rendezvous(host="127.0.0.1", port=1, served=True, one_node=False, prefix="x")


class Bridge:
    """Processes that answer at once; the clock of number n is n times `SHIFT_NS` behind."""

    members: Any = ()

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self.answers = answers
        self.shifts_ns = {process: process * SHIFT_NS for process in range(len(answers))}
        self.told: dict[int, dict[str, Any]] = {}
        self.seats: dict[int, dict[str, Any]] = {}

    def write(self, processes, message) -> None:
        if "start" in message:
            self.told[processes[0]] = message["start"]

    def collect(self, kind, processes, limit_s) -> dict[int, Any]:
        return dict.fromkeys(processes, 1)

    def next_message(self, timeout_s) -> dict[str, Any] | None:
        process = next(iter(self.told))
        seat = self.seats[process] = self.told.pop(process)
        left = self.answers[process]
        return {"exited": seat["tag"], "code": 0, "time_ns": 0, "from": process, **left}


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Makes a launcher of a world with a process for each answer."""
    bridge: list[Bridge] = []
    monkeypatch.setattr(module, "BridgeClient", lambda *_: bridge[0])
    monkeypatch.setenv(VARIABLE, new_secret())  # else it is written to files

    def make(hosts, answers):
        bridge[:] = [Bridge(answers)]
        launcher = ExternalLauncher(
            WorldMember(
                launcher="srun",
                rank=0,
                world_size=len(hosts),
                local_rank=0,
                rendezvous=RENDEZVOUS,
            )
        )
        launcher.registrations = {
            i: Registration(host=host, pid=100 + i, affinity=(0,), cores=(0,), torch="2")
            for i, host in enumerate(hosts)
        }
        return launcher

    return make


def surveyed(devices, unusable=None):
    survey = {"torch": "2.13.0+cu130", "cuda": "13.0", "unusable": unusable}
    return {"answer": json.dumps(survey | {"devices": [{"uuid": uuid} for uuid in devices]})}


def launch(world, tmp_path, hosts, devices, device="cuda"):
    """Survey the world, then launch on all of it: seats of the ranks, and what was left."""
    launcher = world(hosts, [surveyed(seen) for seen in devices])
    launcher.survey()
    left = []
    for process in range(len(hosts)):
        track = DeviceTrack(uuid=f"of {process}", states=DeviceStates(time_ns=[5]))
        block = Block(phase="clean", first=0, count=1, start_ns=1, end_ns=2)
        record = make_record(process, step_s=[0.1], loss=[1.0], blocks=[block])
        watched = NodeTrack(devices=[track]).model_dump_json()
        left.append({"record": record.model_dump_json(), "watched": watched})
    launcher.bridge.answers = left
    done = launcher.launch(make_cell("ddp", len(hosts), device=device), tmp_path)
    return launcher.bridge.seats, done


@pytest.mark.parametrize(
    ("hosts", "devices", "watched"),
    [
        (("a", "a"), (("x",), ("y",)), ("x", "y")),
        (("a", "a"), (("x", "y"), ("x", "y")), ("x", "y")),
        (("a", "b"), (("x", "y"), ("z", "w")), ("x", "z")),
        (("a", "a", "b"), (("x",), ("x",), ("z",)), ("x", None, "z")),
        (("a", "b"), ((), ("z",)), (None, "z")),
    ],
)
def test_each_rank_watches_the_gpu_that_it_trains_on(world, tmp_path, hosts, devices, watched):
    seats, _ = launch(world, tmp_path, hosts, devices)
    watches = [seats[i].get("watch") for i in range(len(hosts))]
    assert [watch and watch["uuids"][0] for watch in watches] == list(watched)
    for host, watch in zip(hosts, watches, strict=True):
        family = [100 + i for i, other in enumerate(hosts) if other == host]
        assert watch is None or watch["family"] == family


def test_tracks_and_steps_are_on_the_clock_of_the_session(world, tmp_path):
    _, launched = launch(world, tmp_path, ("a", "b"), (("x",), ("y",)))
    first, second = launched.node.devices
    assert (first.states.time_ns, second.states.time_ns) == ([5], [5 + SHIFT_NS])
    (block,) = launched.records[1].blocks
    assert (block.start_ns, block.end_ns) == (1 + SHIFT_NS, 2 + SHIFT_NS)
    assert launched.node.unavailable == {} and launched.node.host is not None


def test_a_machine_of_the_world_whose_devices_cannot_be_used_is_named(world):
    told = {"devices": "NVML shows 8 GPUs, and torch sees none", "reason": "too old"}
    answers = [surveyed(["a"]), surveyed(["a"]), surveyed([], told)]
    found = world(("n0", "n1", "n2"), answers).survey()
    assert found["devices"] == [{"uuid": "a"}]
    assert refusal(found).startswith("n2: NVML shows 8 GPUs, and torch sees none: too old.")
    assert world(("n0", "n1"), answers[:2]).survey()["unusable"] is None


def test_compiling_is_tried_on_every_machine(world):
    missing = {"problem": "no C compiler", "remedy": "apt install gcc"}
    works, fails = ({"answer": json.dumps({"uncompiled": said})} for said in (None, missing))
    assert world("ab", [works, fails]).why_not_compiled("cuda") == "no C compiler (apt install gcc)"
    assert world("ab", [works, works]).why_not_compiled("cuda") is None
