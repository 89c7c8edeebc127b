"""What an allocation of Slurm's is, from the environment that Slurm gives to what runs in it."""

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.external.environment import port_of


@dataclass(frozen=True)
class Allocation:
    """Nodes that a job has, and how many tasks each is to have.

    Attributes:
        job: Number of the job.
        tasks: Of each node, in Slurm's order.
        cpus_per_task: As the job asked for them; None: it did not.
        from_within: This process runs on one of the nodes.
    """

    job: str
    tasks: tuple[int, ...]
    cpus_per_task: int | None
    from_within: bool

    @property
    def num_tasks(self) -> int:
        """All of them."""
        return sum(self.tasks)

    @property
    def one_node(self) -> bool:
        """Nothing leaves this machine."""
        return len(self.tasks) == 1 and self.from_within

    @property
    def port(self) -> int:
        """Where steps meet: no other job of this cluster is likely to have it."""
        given = os.environ.get("MASTER_PORT", "")
        return int(given) if given.isdigit() and 0 < int(given) < 65536 else port_of(self.job)

    def num_nodes(self, num_ranks: int) -> int:
        """Return how many nodes hold that many ranks when each is filled before the next."""
        filled = list(accumulate(self.tasks))
        return next(i for i, held in enumerate(filled, 1) if held >= num_ranks)


def find_allocation(environment: Mapping[str, str]) -> Allocation:
    """Return the allocation that this process is in.

    Raises:
        EnvironmentUnfit: It is in none, or Slurm does not say how many tasks it has.
    """
    job = environment.get("SLURM_JOB_ID")
    if not job:
        raise EnvironmentUnfit(
            "--launcher slurm works only inside a Slurm allocation, and SLURM_JOB_ID is not set "
            "here. Get one with salloc or sbatch, or have `scalebench submit --slurm` write the "
            "batch script."
        )
    per_node = environment.get("SLURM_TASKS_PER_NODE")
    if not per_node:
        raise EnvironmentUnfit(
            f"The allocation {job} does not say how many tasks it has. Give --ntasks, or --nodes "
            "and --ntasks-per-node, to salloc or sbatch: one task is one rank."
        )
    cpus = environment.get("SLURM_CPUS_PER_TASK", "")
    return Allocation(
        job=job,
        tasks=tasks_per_node(per_node),
        cpus_per_task=int(cpus) if cpus.isdigit() else None,
        from_within="SLURMD_NODENAME" in environment,
    )


def why_no_steps(environment: Mapping[str, str]) -> str | None:
    """Say why no steps can be started here, or None: they can."""
    if shutil.which("srun") is None:
        return "there is no srun on the PATH"
    try:
        find_allocation(environment)
    except EnvironmentUnfit as error:
        return str(error)
    return None


def tasks_per_node(text: str) -> tuple[int, ...]:
    """Return the tasks of each node, from Slurm's way to write them: ``4(x2),3`` → 4, 4, 3.

    Raises:
        EnvironmentUnfit: It is something else.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part, re.ASCII)
        if match is None or not int(match[1]):
            raise EnvironmentUnfit(f"SLURM_TASKS_PER_NODE={text!r} is not in Slurm's format.")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)
