"""The launchers that ``--launcher`` takes: `LAUNCHERS` lists them.

Nothing heavy is imported before a launcher is started: the command line reads this table to write
its help.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalebench.launch.forking import ForkingLauncher


@dataclass(frozen=True)
class Offer:
    """A launcher that you can ask for.

    Attributes:
        about: One line for ``scalebench list``.
        start: Makes the launcher; raises EnvironmentUnfit where it cannot run.
        why_not: Says why it cannot run here; None: it can.
    """

    about: str
    start: Callable[[], "ForkingLauncher"]
    why_not: Callable[[], str | None] = lambda: None


def _start_local() -> "ForkingLauncher":
    from scalebench.launch.local import LocalLauncher

    return LocalLauncher()


def _why_no_lab() -> str | None:
    from scalebench.launch.lab import try_lab

    return try_lab().network


def _start_slurm() -> "ForkingLauncher":
    from scalebench.launch.slurm import SlurmLauncher

    return SlurmLauncher()


def _why_no_slurm() -> str | None:
    from scalebench.launch.slurm.allocation import why_no_steps

    return why_no_steps(os.environ)


LAUNCHERS: dict[str, Offer] = {
    "local": Offer(
        "processes on this machine, forked from one that has torch imported", _start_local
    ),
    "lab": Offer(
        "virtual hosts on this machine: links of a known rate, shares of the CPU",
        _start_local,  # which the plan then moves to the virtual hosts
        _why_no_lab,
    ),
    "slurm": Offer("a step of a Slurm allocation for each launch", _start_slurm, _why_no_slurm),
}
