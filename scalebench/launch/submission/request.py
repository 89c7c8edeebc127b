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
                f"--name {self.name!r} is not a valid job name. Give at most 52 lower-case "
                "letters, digits and dashes; start with a letter and do not end with a dash."
            )
        if self.command[:1] != ("run",):
            raise UsageError(
                f"Only a run can be submitted, not {' '.join(self.command) or 'nothing'!r}. Write "
                "the command after two dashes: scalebench submit ... -- run ddp --gpus 2,4."
            )
        unprintable = [part for part in self.command if not part.isprintable()]
        if unprintable:
            raise UsageError(
                f"{unprintable[0]!r} contains characters that a script cannot show. Use printable "
                "characters."
            )
        if any(part.partition("=")[0] == "--launcher" for part in self.split()[0]):
            raise UsageError("The cluster places the ranks. Leave --launcher out of the command.")

    def split(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return scalebench's own words, and the user's script with the dashes before it."""
        place = self.command.index("--") if "--" in self.command else len(self.command)
        return self.command[:place], self.command[place:]
