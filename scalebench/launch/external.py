"""Launches in a world that torchrun, srun, mpirun or the like has started."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from scalebench.errors import EnvironmentUnfit
from scalebench.grouping import by_key
from scalebench.launch.base import (
    ASK_LIMIT_S,
    Launched,
    Launcher,
    R,
    cannot_answer,
    fresh_logs,
    until_first_step,
)
from scalebench.launch.environment import find_member
from scalebench.launch.failures import what_went_wrong
from scalebench.launch.monitor.node import NodeWatch, of_gpus
from scalebench.launch.processes import check_loopback, interpreter
from scalebench.launch.ranks import Ranks, ZygoteClient
from scalebench.records.measured.rank import Block, RankRecord
from scalebench.records.measured.trace import NodeTrack
from scalebench.records.secret import VARIABLE, WorldSecret
from scalebench.spec import Device, Job
from scalebench.spec.base import Record
from scalebench.spec.world import Node, VirtualHosts, World, WorldLauncher, WorldMember

BRIDGE = "scalebench.worker.agent.bridge"
__all__ = ["ExternalLauncher", "find_member", "run_agent"]


class BridgeClient(ZygoteClient):
    """Writes to processes of a world, and reads what they tell, in one order.

    Clocks of different machines have nothing in common. What a process reports has its own clock's
    time; the shortest delay seen so far from it says how that stands to the clock here, never too
    early, and late by what that message took.

    Attributes:
        members: Process of the world → rank in the launch that is under way, from 0.
        shifts_ns: Process of the world → what its clock is behind the one here.
        forged: What is wrong with a message; empty: nothing was.
    """

    def __init__(self, member: WorldMember, scratch: Path, secret: str) -> None:
        self.rendezvous = member.rendezvous
        self.members: Sequence[int] = ()
        self.shifts_ns: dict[int, int] = {}
        self.forged = ""
        own = scratch / "rank0"
        own.mkdir()
        super().__init__(
            scratch / "bridge.log",
            {"KINETO_LOG_LEVEL": "5", VARIABLE: secret},
            BRIDGE,
            [member.model_dump_json(), str(own)],
        )

    def write(self, ranks: Sequence[int], message: dict[str, Any]) -> None:
        """Write to processes of the world.

        Raises:
            EnvironmentUnfit: The world is gone.
        """
        self.send({"to": list(ranks), "message": message})

    def signal(self, launch: int, number: int) -> None:
        """Send a signal to every process of a launch that has not ended."""
        self.write(self.members, {"kill": launch, "signal": int(number)})

    def next_message(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next message, its time on the clock here; None: the time is over.

        Raises:
            EnvironmentUnfit: The world is gone, or another program writes to its store.
        """
        message = None if self.forged else super().next_message(timeout_s)
        if message is not None and "forged" in message:
            self.forged = message["forged"]
        if self.forged:
            place = f"{self.rendezvous.host}:{self.rendezvous.port}"
            raise EnvironmentUnfit(
                f"Another program writes to the store of the ranks, {place}: {self.forged}. "
                "Nothing of it was carried out, and the run ends; results so far are kept."
            )
        if message is None or "from" not in message:
            if message is not None and "lost" in message:
                raise EnvironmentUnfit(
                    "Lost the ranks: their launcher has exited, or their store no longer answers. "
                    "Results so far are kept."
                )
            return message
        sender, shift = message["from"], time.monotonic_ns() - message["now_ns"]
        self.shifts_ns[sender] = min(shift, self.shifts_ns.get(sender, shift))
        if "time_ns" in message:
            message["time_ns"] += self.shifts_ns[sender]
        return message

    def collect(self, kind: str, ranks: Sequence[int], limit_s: float) -> dict[int, Any]:
        """Wait until processes have reported something; return it by process.

        Messages of another ``kind`` are dropped.
        """
        told: dict[int, Any] = {}
        deadline = time.monotonic() + limit_s
        while not told.keys() >= set(ranks):
            message = self.next_message(deadline - time.monotonic())
            if message is None:
                break
            if kind in message:
                told[message["from"]] = message[kind]
        return told


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
    nodes = by_key((registrations[rank].host, rank) for rank in sorted(registrations))
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


WORKER = "scalebench.worker.agent.agent"
CONNECT_LIMIT_S = 330.0
ANSWER_LIMIT_S = 30.0
DISCONNECT_LIMIT_S = 1.0


def run_agent(member: WorldMember) -> NoReturn:
    """Become the worker that takes part in what the first process decides; never returns.

    The process keeps its number: its parent goes on watching it.
    """
    sys.stdout.flush()
    os.execv(sys.executable, [*interpreter(), "-m", WORKER, member.model_dump_json()])


class ExternalLauncher(Launcher):
    """Tells the processes of a world what to start; their results come over the world's store.

    Each process forks a fresh rank for every launch that it takes part in, so that a rank that
    dies costs its cell and not the world. No file is shared between machines.

    Args:
        member: This process's place in the world; it has to be the first.

    Attributes:
        everyone: The numbers of the world's processes.
        registrations: Process → what it told of itself; empty until all have met.
    """

    def __init__(self, member: WorldMember) -> None:
        super().__init__()
        self.member = member
        self.everyone = range(member.world_size)
        self.registrations: dict[int, Registration] = {}
        self.rank_devices: dict[tuple[str, int], str] = {}
        if member.rendezvous.one_node:
            check_loopback()
        self.secret = WorldSecret(member.rendezvous, os.environ)
        self.bridge = BridgeClient(member, self.scratch, self.secret.value)

    def close(self) -> None:
        """Tell every process of the world that this was all."""
        try:
            with suppress(EnvironmentUnfit):
                self.bridge.wait_until_ready()
                self.bridge.write(self.everyone, {"end": True})
                limit_s = DISCONNECT_LIMIT_S if self.registrations else ASK_LIMIT_S
                self.bridge.collect("bye", self.everyone, limit_s)
        finally:
            self.secret.remove_files()
            self.bridge.close()
            super().close()

    def move_to(self, hosts: VirtualHosts, num_ranks: int) -> None:
        """Refuse: ranks are where they are."""
        raise EnvironmentUnfit(
            f"{self.member.launcher} has placed the ranks; they cannot be put on virtual hosts."
        )

    def connect(self) -> None:
        """Wait until every process is there; raises EnvironmentUnfit: one does not come."""
        if self.registrations:
            return
        self.bridge.wait_until_ready()
        told = self.bridge.collect("hello", self.everyone, CONNECT_LIMIT_S)
        missing = sorted(set(self.everyone) - told.keys())
        if missing:
            where = self.member.rendezvous
            raise EnvironmentUnfit(
                f"Of {len(self.everyone)} ranks that {self.member.launcher} should have started, "
                f"{', '.join(map(str, missing))} did not connect within {CONNECT_LIMIT_S:.0f} s. "
                f"Check their output, and whether they can reach {where.host}:{where.port}."
            )
        self.registrations = {
            rank: Registration.model_validate(hello) for rank, hello in told.items()
        }

    def survey(self, rates: bool = False) -> dict[str, Any]:
        """Wait for the whole world; return what torch says of the first machine.

        Raises:
            EnvironmentUnfit: A process does not come.
        """
        answers = self._ask(self.everyone, {"job": "survey", "rates": rates})
        self.secret.remove_files()  # every process has answered: it has the secret
        self.world = world_of(self.member.launcher, self.registrations, answers)
        self.rank_devices = rank_devices(self.world, answers)
        unusable = (
            told | {"devices": f"{self.registrations[process].host}: {told['devices']}"}
            for process, answer in answers.items()
            if (told := answer.get("unusable")) is not None
        )
        return answers[0] | {"unusable": next(unusable, None)}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have the first process answer a question."""
        return self._ask([0], request)[0]

    def ask_everywhere(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Have every process answer a question: their machines need not be alike."""
        return list(self._ask(self.everyone, request).values())

    def _ask(self, processes: Sequence[int], request: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Return the answers of processes; raises EnvironmentUnfit: one could not answer."""
        self.connect()
        asked = self._start(processes, request, ASK_LIMIT_S, {})
        asked.wait()
        answers = {}
        for index, process in enumerate(processes):
            message = asked.messages.get(index, {})
            if "answer" not in message:
                raise cannot_answer(request, str(message.get("log", "")).strip()[-2000:])
            answers[process] = dict(json.loads(message["answer"]))
        return answers

    def watch(self, device: Device) -> NodeWatch:
        """Watch the processors; each process of the world watches the GPU of its rank."""
        return NodeWatch("cpu", None, self.parents())

    def parents(self) -> list[int]:
        """Return the world's processes on the first machine."""
        self.connect()
        everybody = self.registrations.values()
        return [hello.pid for hello in everybody if hello.host == self.registrations[0].host]

    def _start(
        self,
        processes: Sequence[int],
        request: dict[str, Any],
        limit_s: float,
        places: Mapping[int, Mapping[str, Any]],
    ) -> Ranks:
        """Have processes start a rank each, numbered from 0 in their order.

        All are told ``request``; ``places``: process → what it alone is told.

        Raises:
            EnvironmentUnfit: One of them is no longer there.
        """
        launch = self._next_launch()
        self.bridge.members = processes
        self._prove_presence(launch, processes)
        for rank, process in enumerate(processes):
            seat = {"rank": rank, "tag": [launch, rank], **places.get(process, {})}
            self.bridge.write([process], {"start": {**request, **seat}})
        return Ranks(self.bridge, launch, len(processes), time.monotonic() + limit_s)

    def _prove_presence(self, launch: int, processes: Sequence[int]) -> None:
        """Have processes answer, before any rank of theirs waits for the others."""
        self.bridge.write(processes, {"ping": launch})
        answered = self.bridge.collect("pong", processes, ANSWER_LIMIT_S)
        gone = sorted(set(processes) - answered.keys())
        if gone:
            names = ", ".join(f"{rank} ({self.registrations[rank].host})" for rank in gone)
            raise EnvironmentUnfit(
                f"Of the ranks that {self.member.launcher} started, {names} no longer answer. "
                "Results so far are kept: start the job again with --resume."
            )

    def run_job(self, name: str, job: Job, kind: type[R], logs: Path) -> Launched[R]:
        """Run a job on the first processes of the world, node by node."""
        assert self.world is not None, "survey the world before launching"
        reason = self.world.too_small_for(job.world_size)
        if reason is not None:
            raise EnvironmentUnfit(f"{reason}.")
        processes = self.world.order[: job.world_size]
        decided_ns = time.monotonic_ns()
        rank_logs = fresh_logs(logs, job.world_size)
        told = {"job": name, **self.fault, "description": job.model_dump_json()}
        on_gpus = kind is RankRecord and job.device == "cuda"
        known = self.rank_devices if on_gpus else {}
        places = watched_places(self.world, processes, self.registrations, known)
        ranks = self._start(processes, told, job.limit_s, places)
        in_time = ranks.wait()
        wall_s = (time.monotonic_ns() - decided_ns) / 1e9
        records: list[R] = []
        watched: list[NodeTrack] = []
        positions: dict[int, str] = {}
        for rank, left in sorted(ranks.messages.items()):
            shift_ns = self.bridge.shifts_ns[processes[rank]]
            if left.get("log"):
                rank_logs[rank].write_text(left["log"])
            if "record" in left:
                records.append(record_here(kind.model_validate_json(left["record"]), shift_ns))
            if "position" in left:
                positions[rank] = left["position"]
            if left.get("watched"):
                track = NodeTrack.model_validate_json(left["watched"])
                watched.append(track_here(track, shift_ns))
        failure = what_went_wrong(job, ranks, in_time, records, rank_logs, positions)
        gpus = of_gpus(watched) if on_gpus else None
        return Launched(records, failure, until_first_step(records, decided_ns), wall_s, gpus)
