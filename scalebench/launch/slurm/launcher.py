"""Launches as steps of a Slurm allocation: srun starts the ranks of each, and ends them."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.base import Launched
from scalebench.launch.external.company import Company
from scalebench.launch.external.nodes import world_of
from scalebench.launch.forking import ForkingLauncher, launched_of
from scalebench.launch.ranks import Ended, R
from scalebench.launch.slurm.allocation import Allocation, find_allocation
from scalebench.launch.slurm.step import Step, StepEnded
from scalebench.records import RankRecord
from scalebench.samples import NodeTrack
from scalebench.spec import Cell, Job
from scalebench.virtual_hosts import VirtualHosts
from scalebench.world import Meeting

UNWATCHED = "the ranks were a step of Slurm's, whose processes come and go with the launch"


class SlurmLauncher(ForkingLauncher):
    """One step per launch, one task per rank; nodes are filled one after the other.

    Raises:
        EnvironmentUnfit: This process is in no allocation.
    """

    def __init__(self) -> None:
        self.allocation: Allocation = find_allocation(os.environ)
        super().__init__()

    def move_to(self, hosts: VirtualHosts, num_ranks: int) -> None:
        """Refuse: ranks are where Slurm puts them."""
        raise EnvironmentUnfit("Slurm places the ranks; they cannot be put on virtual hosts.")

    @contextmanager
    def _step(self, num_ranks: int) -> Iterator[tuple[int, Company]]:
        """Start a step; yield its number and its processes, which have not met yet."""
        self.num_launches += 1
        number = self.num_launches
        one_node = self.allocation.one_node
        meeting = Meeting(
            host="127.0.0.1",  # between machines, tasks are told by Slurm where srun was called
            port=self.allocation.port,
            one_node=one_node,
            prefix=f"scalebench/step{number}",
        )
        scratch = self.scratch / f"step{number}"
        scratch.mkdir()
        company = Company(Step(self.allocation, num_ranks, meeting, scratch), "srun", num_ranks)
        try:
            yield number, company
        finally:
            company.part()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have a step of one task answer a question."""
        return self._ask(1, request)[0]

    def _ask(self, num_ranks: int, request: dict[str, Any]) -> dict[int, dict[str, Any]]:
        with self._step(num_ranks) as (number, company):
            try:
                answers = company.ask(number, company.everyone, request)
            except StepEnded as ended:
                raise EnvironmentUnfit(
                    f"The step of Slurm's that was to answer {request['job']!r} ended: {ended}."
                ) from None
            self.world = self.world or world_of("slurm", company.hellos, answers)
            return answers

    def survey(self, rates: bool = False) -> dict[str, Any]:
        """Have every task of the allocation say what is there; return what the first one says."""
        answers = self._ask(self.allocation.num_tasks, {"job": "survey", "rates": rates})
        self.device_uuids = [device["uuid"] for device in answers[0]["devices"]]
        return answers[0]

    def parents(self) -> list[int]:
        """Return nothing: the processes that fork ranks are new in every step."""
        return []

    def launch(self, cell: Cell, logs: Path) -> Launched:
        """Run one cell as a step; the machine is not watched meanwhile."""
        ended = self.run_job("cell", cell, RankRecord, logs)
        track = NodeTrack(unavailable={"devices": UNWATCHED, "host": UNWATCHED})
        return launched_of(ended, track)

    def run_job(self, name: str, job: Job, kind: type[R], logs: Path) -> Ended[R]:
        """Run a job as a step, to its end or to the end of its time."""
        decided_ns = time.monotonic_ns()
        with self._step(job.world_size) as (number, company):
            try:
                company.meet()
                world = world_of("slurm", company.hellos)
                ended = company.run_job(
                    number,
                    world.order,
                    {"job": name, **self.planted},
                    job,
                    kind,
                    logs,
                    world.places(),
                )
                return Ended(ended.records, ended.failure, decided_ns, ended.wall_s)
            except StepEnded as step:
                wall_s = (time.monotonic_ns() - decided_ns) / 1e9
                return Ended([], step.failure, decided_ns, wall_s)
