"""What a user asked for, the machine that it was asked of, and the plan that comes of both."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalebench.records.largest_batch import LargestBatch
from scalebench.records.run import RunSpec
from scalebench.spec import Cell, Device, Scaling
from scalebench.spec.presets import CustomTarget
from scalebench.spec.virtual_hosts import VirtualHosts
from scalebench.spec.world import World


@dataclass(frozen=True)
class Request:
    """What the user asked for; None means: as the suite, or the machine, says.

    Attributes:
        selection: Expression that chooses cases; see `scalebench.spec.selection`.
        shared: Launch the rows of a suite together and let them take turns; None: on the CPU.
        pinned: See `scalebench.spec.Job`; None: but for a user's script.
        threads: Intra-op threads of each rank; None: the cores divided by the largest size.
        notices: What is known already that the reader of the run has to know.
        only: Rows, as `scalebench.session.plan.cells.row_name` writes them; none: all.
    """

    world_sizes: tuple[int, ...] | None = None
    device: Device | None = None
    oversubscribe: bool = False
    workload: str | None = None
    autocast: bool | Literal["float16"] | None = None
    compile: bool | None = None
    scaling: Scaling | None = None
    batch_size: int | None = None
    steps: int | None = None
    repeats: int | None = None
    precision: float | None = None
    target_loss: float | None = None
    time_limit_s: float | None = None
    budget_s: float | None = None
    quick: bool = False
    shared: bool | None = None
    pinned: bool | None = None
    threads: int | None = None
    trace: bool = True
    selection: str | None = None
    only: tuple[str, ...] = ()
    virtual_hosts: VirtualHosts | None = None
    link_profile: Path | None = None
    max_batch: bool = False
    memory_limit_bytes: int | None = None
    keep_going: bool = False
    anonymise: bool = False
    allow_busy: bool = False
    checkpoint_dir: Path | None = None
    notices: tuple[str, ...] = ()


_OPTIONS = {
    "world_sizes": "--gpus",
    "selection": "-k",
    "time_limit_s": "--time-limit",
    "budget_s": "--budget",
    "memory_limit_bytes": "--memory-limit",
}


def option_of(field: str) -> str:
    """Return the option of ``scalebench run`` that a field of a request has, if it has one."""
    return _OPTIONS.get(field, f"--{field.replace('_', '-')}")


@dataclass(frozen=True)
class Plan:
    """What will be run: the resolved specification, the cells in order, what to tell first.

    Attributes:
        largest_batches: What ``--max-batch`` found; empty: it was not asked for.
    """

    spec: RunSpec
    cells: tuple[Cell, ...]
    notices: tuple[str, ...]
    largest_batches: tuple[LargestBatch, ...] = ()

    @property
    def custom_workloads(self) -> list[CustomTarget]:
        """The users' own workloads among the cells, each once."""
        found = {c.workload.name: c.workload for c in self.cells}
        return [w for w in found.values() if isinstance(w, CustomTarget)]


@dataclass(frozen=True)
class Machine:
    """What the plan has to know of the machine, or of the world that ranks are taken from.

    Attributes:
        unusable: Why ranks cannot train on devices that are there, and the remedy; None: there
            are none.
        launcher_name: Of the launcher that starts the ranks, where no world has started them.
        launcher_shares: Whether it can start rows together that take turns.
        emulates_bfloat16: Name of a GPU on which torch emulates bfloat16; None: on none.
    """

    num_gpus: int
    num_cores: int
    world: World | None = None
    launcher_name: str = "local"
    launcher_shares: bool = True
    emulates_bfloat16: str | None = None
    unusable: str | None = None

    @property
    def launcher(self) -> str:
        """Who starts the ranks."""
        return self.launcher_name if self.world is None else self.world.launcher

    @property
    def shares(self) -> bool:
        """Whether the launcher can start rows together that take turns."""
        return self.world is None and self.launcher_shares
