"""The machines of a world, from what its processes report: their cores, GPUs and clocks."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalebench.launch.base import R
from scalebench.records.base import Record
from scalebench.records.measured.rank import Block, RankRecord
from scalebench.records.measured.telemetry import NodeTrack
from scalebench.spec.world import Node, World, WorldLauncher


class Registration(Record):
    """What a process tells first.

    Attributes:
        host: Name of its machine; processes with the same one are taken to share it.
        affinity: Processors that it may run on.
        cores: The physical core of each; siblings (SMT) share one.
        cgroup_cpus: Limit of its cgroup in cores; None: none.
    """

    host: str
    pid: int
    affinity: tuple[int, ...]
    cores: tuple[int, ...]
    cgroup_cpus: float | None = None
    torch: str


def world_of(
    launcher: WorldLauncher,
    registrations: Mapping[int, Registration],
    surveys: Mapping[int, Mapping[str, Any]] | None = None,
) -> World:
    """Return the world that processes make up.

    A machine's cores, and GPUs, are those that any of its processes may use: launchers that bind
    ranks give each some of them.

    ``surveys``: process → what torch says there; None: not asked, and GPUs do not matter.
    """
    uuids = {rank: [one["uuid"] for one in s["devices"]] for rank, s in (surveys or {}).items()}
    nodes: dict[str, list[int]] = {}
    for rank in sorted(registrations):
        nodes.setdefault(registrations[rank].host, []).append(rank)
    return World(
        launcher=launcher,
        nodes=tuple(
            Node(
                host=host,
                ranks=tuple(ranks),
                num_cores=_num_cores([registrations[rank] for rank in ranks]),
                num_gpus=len({uuid for rank in ranks for uuid in uuids[rank]}) if uuids else 0,
            )
            for host, ranks in nodes.items()
        ),
    )


def rank_devices(
    world: World, surveys: Mapping[int, Mapping[str, Any]]
) -> dict[tuple[str, int], str]:
    """Return a rank's machine and number there → UUID of the GPU that it trains on."""
    found = {}
    for process, place in world.places().items():
        devices = surveys[process]["devices"]
        if devices:
            host, number = str(place["host"]), int(str(place["local_rank"]))
            found[host, number] = devices[number % len(devices)]["uuid"]
    return found


def watched_places(
    world: World,
    processes: Sequence[int],
    registrations: Mapping[int, Registration],
    devices: Mapping[tuple[str, int], str],
) -> dict[int, dict[str, object]]:
    """Return the places of processes; the first whose rank trains on a GPU is to watch it.

    A process there that descends from one of the world is of the job.
    """
    places = world.places()
    taken = set()
    for process in processes:
        place = places[process]
        uuid = devices.get((str(place["host"]), int(str(place["local_rank"]))))
        if uuid is not None and uuid not in taken:
            taken.add(uuid)
            family = [r.pid for r in registrations.values() if r.host == place["host"]]
            place["watch"] = {"uuids": [uuid], "family": family}
    return places


def _num_cores(registrations: list[Registration]) -> int:
    allowed = len({core for hello in registrations for core in hello.cores})
    quotas = [hello.cgroup_cpus for hello in registrations if hello.cgroup_cpus]
    return max(1, min([allowed, *(int(quota) for quota in quotas)]))


def track_here(track: NodeTrack, shift_ns: int) -> NodeTrack:
    """Return a track of a machine whose clock is so far behind, its times on the clock here."""
    for columns in (c for device in track.devices for c in (device.states, device.traffic)):
        columns.time_ns[:] = [time_ns + shift_ns for time_ns in columns.time_ns]
    return track


def record_here(record: R, shift_ns: int) -> R:
    """Return a record of a machine whose clock is so far behind, its times on the clock here."""
    changes: dict[str, Any] = {}
    if record.error is not None:
        error_ns = record.error.time_ns + shift_ns
        changes["error"] = record.error.model_copy(update={"time_ns": error_ns})
    if isinstance(record, RankRecord):
        changes |= _shifted({"first_step_ns": record.first_step_ns}, shift_ns)
        changes["blocks"] = [_block_here(block, shift_ns) for block in record.blocks]
    return record.model_copy(update=changes)


def _block_here(block: Block, shift_ns: int) -> Block:
    times = {"start_ns": block.start_ns, "end_ns": block.end_ns}
    return block.model_copy(update=_shifted(times, shift_ns))


def _shifted(times: Mapping[str, int | None], shift_ns: int) -> dict[str, int]:
    return {name: ns + shift_ns for name, ns in times.items() if ns is not None}
