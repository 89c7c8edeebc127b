"""Launches as steps of a Slurm allocation: srun starts the ranks of each, and ends them."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.base import Launched
from scalebench.launch.external.nodes import rank_devices, world_of
from scalebench.launch.external.worker_group import WorkerGroup
from scalebench.launch.forking import ForkingLauncher, launched_of
from scalebench.launch.monitor.node import NOT_TOLD, ON_CPU
from scalebench.launch.ranks import Ended, R
from scalebench.launch.slurm.allocation import Allocation, find_allocation
from scalebench.launch.slurm.step import Step, StepEnded, StepsRelay, step_command
from scalebench.records.rank import RankRecord
from scalebench.records.secret import new_secret
from scalebench.records.telemetry import NodeTrack
from scalebench.spec import Cell, Job
from scalebench.spec.virtual_hosts import VirtualHosts
from scalebench.spec.world import Rendezvous

UNWATCHED = "the ranks ran as a Slurm step, whose processes end with the launch"


class SlurmLauncher(ForkingLauncher):
    """One step per launch, one task per rank; nodes are filled one after the other.

    Raises:
        EnvironmentUnfit: This process is in no allocation.
    """

    def __init__(self) -> None:
        self.allocation: Allocation = find_allocation(os.environ)
        super().__init__()
        self.rendezvous = Rendezvous(
            host="127.0.0.1",  # between machines, tasks are told by Slurm where srun was called
            port=self.allocation.port,
            one_node=self.allocation.one_node,
        )
        self.secret = new_secret()
        self.relay = StepsRelay(self.rendezvous, None, self.scratch, self.secret)
        self.num_processes = 0
        self.rank_devices: dict[tuple[str, int], str] = {}
        self.asking = ExitStack()
        self.asked: WorkerGroup | None = None

    def close(self) -> None:
        """End the step that is under way, and everything else."""
        try:
            self.asking.close()
        finally:
            self.relay.close()
            super().close()

    def move_to(self, hosts: VirtualHosts, num_ranks: int) -> None:
        """Refuse: ranks are where Slurm puts them."""
        raise EnvironmentUnfit("Slurm places the ranks; they cannot be put on virtual hosts.")

    @contextmanager
    def _step(self, num_ranks: int) -> Iterator[WorkerGroup]:
        """Start a step for the duration of the block; yield its processes, once they have met."""
        first = self.num_processes
        self.num_processes += num_ranks
        command = step_command(self.allocation, num_ranks, self.rendezvous, first)
        step = self.relay.step = Step(command, self.scratch / f"srun{first}.log", self.secret)
        group = WorkerGroup(self.relay, "srun", range(first, first + num_ranks))
        try:
            group.connect()
            yield group
        finally:
            group.disconnect()
            self.relay.step = None
            step.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have the first task answer a question.

        The step is kept for further questions, until something is launched.
        """
        group = self._kept_step()
        return group.ask(self._next_launch(), group.everyone[:1], request)[group.everyone[0]]

    def _kept_step(self) -> WorkerGroup:
        """Return the processes of a step of the whole allocation, for questions."""
        if self.asked is None:
            self.asked = self.asking.enter_context(self._step(self.allocation.num_tasks))
        return self.asked

    def survey(self, rates: bool = False) -> dict[str, Any]:
        """Have every task of the allocation say what is there; return what the first one says."""
        group = self._kept_step()
        request = {"job": "survey", "rates": rates}
        answers = group.ask(self._next_launch(), group.everyone, request)
        self.world = world_of("slurm", group.registrations, answers)
        self.rank_devices = rank_devices(self.world, answers)
        return answers[group.everyone[0]]

    def parents(self) -> list[int]:
        """Return nothing: the processes that fork ranks are new in every step."""
        return []

    def launch(self, cell: Cell, logs: Path) -> Launched:
        """Run one cell as a step; its tasks watch their GPUs; the processors are not watched."""
        ended = self.run_job("cell", cell, RankRecord, logs)
        no_device = ON_CPU if cell.device == "cpu" else NOT_TOLD
        track = NodeTrack(unavailable={"devices": no_device, "host": UNWATCHED})
        return launched_of(ended, track)

    def run_job(self, name: str, job: Job, kind: type[R], logs: Path) -> Ended[R]:
        """Run a job as a step, to its end or to the end of its time."""
        self.asking.close()
        self.asked = None
        decided_ns = time.monotonic_ns()
        try:
            with self._step(job.world_size) as group:
                world = world_of("slurm", group.registrations)
                request = {"job": name, **self.fault}
                number, devices = self._next_launch(), self.rank_devices
                ended = group.run_job(number, world.order, request, job, kind, logs, world, devices)
                return replace(ended, decided_ns=decided_ns)
        except StepEnded as step:
            wall_s = (time.monotonic_ns() - decided_ns) / 1e9
            return Ended([], step.failure, decided_ns, wall_s)
