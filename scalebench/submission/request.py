"""What a job on a cluster is asked for with."""

import re
from dataclasses import dataclass

from scalebench.errors import UsageError

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")
"""What Kubernetes takes for the name of a job whose pods get longer names, and Slurm as well."""


@dataclass(frozen=True)
class JobRequest:
    """A run of scalebench on a cluster.

    Attributes:
        name: Of the job.
        nodes: Machines.
        ranks_per_node: Ranks on each.
        gpus_per_node: On each; 0: none are asked for.
        command: What follows ``scalebench`` on the command line.
    """

    name: str
    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    command: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse what no cluster takes; raises UsageError."""
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"--name {self.name!r} is no name for a job. Give at most 52 lower-case letters, "
                "digits and dashes, a letter first and no dash last."
            )
        if self.command[:1] != ("run",):
            raise UsageError(
                f"What is submitted is a run, not {' '.join(self.command) or 'nothing'!r}. Write "
                "the command behind two dashes: scalebench submit ... -- run ddp --gpus 2,4."
            )
        unprintable = [part for part in self.command if not part.isprintable()]
        if unprintable:
            raise UsageError(f"{unprintable[0]!r} holds what a script cannot show. Write it out.")
        if any(part.partition("=")[0] == "--launcher" for part in self.command):
            raise UsageError("The cluster places the ranks. Leave --launcher out of the command.")
