"""The launchers that ``--launcher`` takes: `LAUNCHERS` lists them.

Nothing heavy is imported before a launcher is started: the command line reads this table to write
its help.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalebench.launch.base import Launcher


@dataclass(frozen=True)
class Offer:
    """A launcher that you can ask for.

    Attributes:
        about: One line for ``scalebench list``.
        start: Makes the launcher; raises EnvironmentUnfit where it cannot run.
        why_not: Says why it cannot run here; None: it can.
    """

    about: str
    start: Callable[[], "Launcher"]
    why_not: Callable[[], str | None] = lambda: None


def _start_local() -> "Launcher":
    from scalebench.launch.local import LocalLauncher

    return LocalLauncher()


def _why_no_lab() -> str | None:
    from scalebench.launch.lab import try_lab

    return try_lab().network


LAUNCHERS: dict[str, Offer] = {
    "local": Offer(
        "processes on this machine, forked from one that has torch imported", _start_local
    ),
    "lab": Offer(
        "virtual hosts on this machine: links of a known rate, shares of the CPU",
        _start_local,  # which the plan then moves to the virtual hosts
        _why_no_lab,
    ),
}
