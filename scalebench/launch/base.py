"""What a launcher offers to the session."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scalebench.records.probes import ProbeRecord
from scalebench.records.rank import RankRecord
from scalebench.records.run import Failure
from scalebench.records.telemetry import NodeTrack
from scalebench.spec import Cell, Device, SharedLaunch
from scalebench.spec.faults import InjectedFault
from scalebench.spec.presets import CustomTarget
from scalebench.spec.probes import ClockCheck, Rehearsal, Sweep
from scalebench.spec.virtual_hosts import VirtualHosts
from scalebench.spec.world import World


class ProbeFailed(Exception):
    """A probe has no answer; the text says which rank failed and why."""


@dataclass(frozen=True)
class Launched:
    """What a launch left behind.

    Attributes:
        records: Of the ranks that wrote one, by rank.
        failure: The first thing that went wrong, or None.
        launch_s: From the decision to the last rank's first training step, seconds; None when
            no step was timed.
        wall_s: From the decision to the end of the last rank, seconds.
        node: What the machine's GPUs and processors did meanwhile; None: not watched.
        lost: Ranks without which the others came to their end, and why they are gone.
        noticed_ns: When the launcher heard of the first rank that failed, on the monotonic clock;
            None: none did, or the launcher does not tell.
        stopped_ns: When no rank was left; None: the launcher does not tell.
    """

    records: list[RankRecord]
    failure: Failure | None
    launch_s: float | None
    wall_s: float
    node: NodeTrack | None = None
    lost: Sequence[Failure] = ()
    noticed_ns: int | None = None
    stopped_ns: int | None = None


class Launcher(Protocol):
    """Starts the ranks of one cell at a time and waits for them.

    Attributes:
        name: What a run calls it.
        shares: Whether it can launch cells that take turns.
        world: The world that the ranks are taken from; None: they are made for each launch, or
            it was not surveyed yet.
    """

    name: str
    shares: bool
    world: World | None

    def survey(self, rates: bool = False) -> dict[str, Any]:
        """Return what torch says of the machine where the ranks will run."""
        ...

    def describe(self, target: CustomTarget, device: Device) -> dict[str, Any]:
        """Return what the user's workload is; raises UsageError when it cannot be used."""
        ...

    def why_not_compiled(self, device: Device) -> str | None:
        """Try ``torch.compile``; return why it does not work and the remedy, or None: it does."""
        ...

    def move_to(self, hosts: VirtualHosts, num_ranks: int) -> None:
        """Put ranks on virtual hosts; raises EnvironmentUnfit when there can be none here."""
        ...

    def launch(self, cell: Cell, logs: Path) -> Launched:
        """Run one cell to its end, or to the end of its time."""
        ...

    def launch_shared(self, shared: SharedLaunch, logs: Sequence[Path]) -> list[Launched]:
        """Run cells that take turns to the end of all of them.

        Args:
            shared: What to run.
            logs: For each cell the folder for one log per rank; made here.

        Returns:
            What each cell left behind, without ``launch_s``: its first step waited for its turn.

        Raises:
            SharingFailed: One of them failed.
        """
        ...

    def probe(self, probe: Sweep | ClockCheck | Rehearsal, logs: Path) -> list[ProbeRecord]:
        """Run a probe; raises ProbeFailed when a rank does not come to its end."""
        ...

    def inject(self, what: InjectedFault | None) -> None:
        """Have ranks inject a fault from the next launch on; None: none."""
        ...

    def close(self) -> None:
        """End everything that was started."""
        ...
