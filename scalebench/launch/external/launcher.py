"""Launches in a world that somebody else has started: each on the first of its processes."""

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.external.nodes import rank_devices, world_of
from scalebench.launch.external.relay_client import RelayClient
from scalebench.launch.external.worker_group import WorkerGroup
from scalebench.launch.forking import ForkingLauncher
from scalebench.launch.interpreter import interpreter
from scalebench.launch.loopback import check_loopback
from scalebench.launch.monitor.node import NodeWatch
from scalebench.launch.ranks import Ended, R
from scalebench.records.secret import WorldSecret
from scalebench.spec import Device, Job
from scalebench.spec.virtual_hosts import VirtualHosts
from scalebench.spec.world import WorldMember

WORKER = "scalebench.worker.agent.agent"


def run_agent(member: WorldMember) -> NoReturn:
    """Become the worker that takes part in what the first process decides; never returns.

    The process keeps its number: its parent goes on watching it.
    """
    sys.stdout.flush()
    os.execv(sys.executable, [*interpreter(), "-m", WORKER, member.model_dump_json()])


class ExternalLauncher(ForkingLauncher):
    """Tells the processes of a world what to start; their results come over the world's store.

    Each process forks a fresh rank for every launch that it takes part in, so that a rank that
    dies costs its cell and not the world. No file is shared between machines.

    Args:
        member: This process's place in the world; it has to be the first.
    """

    def __init__(self, member: WorldMember) -> None:
        super().__init__()
        self.member = member
        self.rank_devices: dict[tuple[str, int], str] = {}
        if member.rendezvous.one_node:
            check_loopback()
        self.secret = WorldSecret(member.rendezvous, os.environ)
        relay = RelayClient(member.rendezvous, member, self.scratch, self.secret.value)
        self.group = WorkerGroup(relay, member.launcher, range(member.world_size))

    def close(self) -> None:
        """Tell every process of the world that this was all."""
        try:
            self.group.disconnect()
        finally:
            self.secret.remove_files()
            self.group.relay.close()
            super().close()

    def move_to(self, hosts: VirtualHosts, num_ranks: int) -> None:
        """Refuse: ranks are where they are."""
        raise EnvironmentUnfit(
            f"{self.member.launcher} has placed the ranks; they cannot be put on virtual hosts."
        )

    def survey(self, rates: bool = False) -> dict[str, Any]:
        """Wait for the whole world; return what torch says of the first machine.

        Raises:
            EnvironmentUnfit: A process does not come.
        """
        request = {"job": "survey", "rates": rates}
        answers = self.group.ask(self._next_launch(), self.group.everyone, request)
        self.secret.remove_files()  # every process has answered: it has the secret
        self.world = world_of(self.member.launcher, self.group.registrations, answers)
        self.rank_devices = rank_devices(self.world, answers)
        unusable = (
            told | {"devices": f"{self.group.registrations[process].host}: {told['devices']}"}
            for process, answer in answers.items()
            if (told := answer.get("unusable")) is not None
        )
        return answers[0] | {"unusable": next(unusable, None)}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have the first process answer a question."""
        return self.group.ask(self._next_launch(), [0], request)[0]

    def watch(self, device: Device) -> NodeWatch:
        """Watch the processors; each process of the world watches the GPU of its rank."""
        return NodeWatch("cpu", None, self.parents())

    def ask_everywhere(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Have every process answer a question: their machines need not be alike."""
        return list(self.group.ask(self._next_launch(), self.group.everyone, request).values())

    def parents(self) -> list[int]:
        """Return the world's processes on the first machine."""
        self.group.connect()
        registrations = self.group.registrations
        return [
            hello.pid for hello in registrations.values() if hello.host == registrations[0].host
        ]

    def run_job(self, name: str, job: Job, kind: type[R], logs: Path) -> Ended[R]:
        """Run a job on the first processes of the world, node by node."""
        assert self.world is not None, "survey the world before launching"
        reason = self.world.too_small_for(job.world_size)
        if reason is not None:
            raise EnvironmentUnfit(f"{reason}.")
        processes = self.world.order[: job.world_size]
        return self.group.run_job(
            self._next_launch(),
            processes,
            {"job": name, **self.fault},
            job,
            kind,
            logs,
            self.world,
            self.rank_devices,
        )
