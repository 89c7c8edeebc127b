"""Who watches which GPU in a world, and on which clock it is told."""

from typing import Any

import pytest

from scalebench.launch.external.nodes import Registration, rank_devices, world_of
from scalebench.launch.external.worker_group import WorkerGroup
from scalebench.launch.forking import launched_of
from scalebench.records.rank import Block, RankRecord
from scalebench.records.telemetry import DeviceStates, DeviceTrack, NodeTrack
from tests.builders.runs import make_cell, make_record

SHIFT_NS = 10**15


class World:
    """Processes that answer at once; the clock of number n is n times `SHIFT_NS` behind."""

    def __init__(self, records: dict[int, dict[str, str]]) -> None:
        self.shifts_ns = {process: process * SHIFT_NS for process in records}
        self.told: dict[int, dict[str, Any]] = {}
        self.records = records
        self.members: Any = ()

    def write(self, processes, message) -> None:
        if "start" in message:
            self.told[processes[0]] = message["start"]

    def collect(self, kind, processes, limit_s) -> dict[int, Any]:
        return dict.fromkeys(processes, 1)

    def next_message(self, timeout_s) -> dict[str, Any] | None:
        process = list(self.told)[len(self.told) - len(self.records)]
        record = self.records.pop(process)
        tag = self.told[process]["tag"]
        return {"exited": tag, "code": 0, "time_ns": 0, "from": process, **record}

    def signal(self, launch, number) -> None:
        raise AssertionError("nobody is to be ended")


def registered(host: str, pid: int) -> Registration:
    return Registration(host=host, pid=pid, affinity=(0,), cores=(0,), torch="2")


def launch(tmp_path, hosts, devices, first=0, device="cuda"):
    """Launch in a world surveyed before under other numbers, as every step of Slurm's has."""
    here = [registered(host, 100 + i) for i, host in enumerate(hosts)]
    surveyed = world_of(
        "srun", dict(enumerate(here)), {i: {"devices": []} for i in range(len(here))}
    )
    surveys = {i: {"devices": [{"uuid": u} for u in seen]} for i, seen in enumerate(devices)}
    uuid_of = rank_devices(surveyed, surveys)
    step = {first + i: hello for i, hello in enumerate(here)}
    left = {}
    for process in step:
        track = DeviceTrack(uuid=f"of {process}", states=DeviceStates(time_ns=[5]))
        block = Block(phase="clean", first=0, count=1, start_ns=1, end_ns=2)
        record = make_record(process - first, step_s=[0.1], loss=[1.0], blocks=[block])
        left[process] = {
            "record": record.model_dump_json(),
            "watched": NodeTrack(devices=[track]).model_dump_json(),
        }
    relay = World(left)
    group = WorkerGroup(relay, "srun", list(step))
    group.registrations = step
    world, cell = world_of("srun", step), make_cell("ddp", len(here), device=device)
    ended = group.run_job(
        1, world.order, {"job": "cell"}, cell, RankRecord, tmp_path, world, uuid_of
    )
    return relay, launched_of(ended, NodeTrack(unavailable={"devices": "the ranks ran on the CPU"}))


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
@pytest.mark.parametrize("first", [0, 3])
def test_each_rank_watches_the_gpu_that_it_trains_on(tmp_path, hosts, devices, watched, first):
    relay, _ = launch(tmp_path, hosts, devices, first)
    seats = [relay.told[first + i].get("watch") for i in range(len(hosts))]
    assert [seat and seat["uuids"][0] for seat in seats] == list(watched)
    for host, seat in zip(hosts, seats, strict=True):
        family = [100 + i for i, other in enumerate(hosts) if other == host]
        assert seat is None or seat["family"] == family


def test_tracks_and_steps_are_on_the_clock_of_the_session(tmp_path):
    _, launched = launch(tmp_path, ("a", "b"), (("x",), ("y",)))
    first, second = launched.node.devices
    assert (first.states.time_ns, second.states.time_ns) == ([5], [5 + SHIFT_NS])
    (block,) = launched.records[1].blocks
    assert (block.start_ns, block.end_ns) == (1 + SHIFT_NS, 2 + SHIFT_NS)
    assert launched.node.unavailable == {}


def test_on_the_cpu_nobody_watches(tmp_path):
    relay, launched = launch(tmp_path, ("a", "a"), (("x",), ("y",)), device="cpu")
    assert not any("watch" in told for told in relay.told.values())
    assert launched.node.unavailable == {"devices": "the ranks ran on the CPU"}
