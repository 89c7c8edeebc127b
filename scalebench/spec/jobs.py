"""Jobs and cells: what is launched, complete, so that a rank needs nothing else."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field

from scalebench.spec.base import Device, Name, Scaling, Spec
from scalebench.spec.presets import WorkloadSpec
from scalebench.spec.recovery import Race, Recipe, Recovery
from scalebench.spec.strategies import Strategy
from scalebench.spec.suites import Loader, StepPlan
from scalebench.spec.world import VirtualHosts

Purpose = Literal["inspect", "measure", "independent", "fit", "shard", "save", "restore", "fail"]


class Job(Spec):
    """Ranks that are launched together: what each of them needs to join the others.

    Attributes:
        backend: Of the process group; None where there is none (``plain``).
        threads: Intra-op threads of each rank, the same at every N.
        pinned: Each rank keeps to as many processors as it has threads, and is in SCHED_BATCH on
            CPU; False: it is left where its launcher has put it, and scheduled as usual.
        virtual_hosts: Where the ranks run; None: on the machine as it is.
        limit_s: Wall clock after which the launch is ended.
        collective_timeout_s: Time-out of the process group.
    """

    world_size: int = Field(ge=1)
    device: Device
    backend: str | None
    threads: int = Field(ge=1)
    pinned: bool = True
    virtual_hosts: VirtualHosts | None = None
    limit_s: float = 900.0
    collective_timeout_s: float = 120.0

    @property
    def num_processes(self) -> int:
        """How many ranks are really started."""
        return self.world_size


class Cell(Job):
    """One launch: a case at one world size, once. Complete: a rank needs nothing else.

    Attributes:
        purpose: ``inspect``: check gradients and losses against the single-process reference
            and count the memory, with instruments on and nothing timed; ``measure``: time steps
            with no instrument on; ``independent``: the same of plain ranks that train at once and
            know nothing of one another, for what sharing a machine costs; ``fit``: find out
            whether the batch fits; ``shard``: rank 0 alone does its share of a job of
            ``world_size`` ranks, and no other rank answers; ``save``: time checkpoints;
            ``restore``: load them again in fresh processes and compare every bit; ``fail``: have a
            rank fail, start all again, and time how training continues.
        repeat: Number of the launch, from 0.
        rank_batch: Samples that a rank is fed per step: ``global_batch`` over all ranks, or over
            all pipelines, whose ranks share them.
        oversubscribed: More ranks than devices (CPU: than cores).
        loader: How the ranks are fed; None: from batches that live on the device.
        memory_limit_bytes: A fitting launch whose peak is above it is out of memory.
        skip_reason: Not None: this cell cannot run, and why.
        part_batches: Parts of the rank's batch whose steps are timed as well, in samples: what a
            rank has of it at the other sizes of the case.
        recipe: Optimizer and learning rate; None: those of the workload.
        race: A launch that measures trains this race; None: as many steps as ``steps`` says.
        recovery: How a launch that saves or restores does it; None: any other launch.
        restore_from: Numbers of ranks whose checkpoints a restoring launch loads: of its own all
            methods, of others those that are sharded.
    """

    suite: Name
    case: Name
    strategy: Strategy
    workload: WorkloadSpec
    scaling: Scaling
    global_batch: int = Field(ge=1)
    rank_batch: int = Field(ge=0)
    loader: Loader | None = None
    oversubscribed: bool = False
    purpose: Purpose
    repeat: int = Field(0, ge=0)
    steps: StepPlan
    seed: int = 0
    memory_limit_bytes: int | None = None
    skip_reason: str | None = None
    part_batches: tuple[int, ...] = ()
    recipe: Recipe | None = None
    race: Race | None = None
    recovery: Recovery | None = None
    restore_from: tuple[int, ...] = ()

    @property
    def num_processes(self) -> int:
        """How many ranks are really started."""
        return 1 if self.purpose == "shard" else self.world_size

    @property
    def num_shards(self) -> int:
        """Among how many ranks, or groups of ranks, the global batch is divided."""
        return self.strategy.num_shards(self.world_size)

    @property
    def reference_batch(self) -> int:
        """The batch that stays the same over N: global when strong, per rank when weak."""
        return self.global_batch // (1 if self.scaling == "strong" else self.world_size)

    @property
    def id(self) -> str:
        """File name stem of this cell's result; unique within a run."""
        tails = {
            "inspect": "inspect",
            "independent": f"independent{self.rank_batch}.r{self.repeat}",
            "fit": f"fit{self.rank_batch}",
            "shard": f"shard.r{self.repeat}",
            "save": "save",
            "restore": "restore",
            "fail": "fail",
        }
        tail = tails.get(self.purpose, f"r{self.repeat}")
        return f"{self.suite}.{self.case}.n{self.world_size}.{tail}"

    @property
    def row_key(self) -> tuple[str, str, int]:
        """Cells with the same key are launches of the same row of the summary."""
        return (self.suite, self.case, self.world_size)

    def shortened(self, window_s: float) -> Self:
        """Return this cell with a clean window, and rounds, of at most ``window_s`` seconds.

        An energy window that does not fit is left out: a shorter one tells nothing.
        """
        energy_s = self.steps.energy_s
        plan = self.steps.model_copy(
            update={
                "energy_s": None if energy_s is None or energy_s > window_s else energy_s,
                "window_s": min(self.steps.window_s, window_s),
                "rounds_s": min(self.steps.rounds_s, window_s),
            }
        )
        return self.model_copy(update={"steps": plan})


class SharedLaunch(Job):
    """Cells that are launched at the same time and take turns: one trains, the others wait.

    Every cell has its own processes, process groups and seed, as if it was launched alone; only
    when it works is agreed with the others. The processes are numbered through: those of the
    first cell by rank, then those of the second, and so on.

    Attributes:
        cells: At least two, of one device.
        seed: Of the order of turns.
    """

    cells: tuple[Cell, ...] = Field(min_length=2)
    seed: int = 0

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> Self:
        """Return the launch of cells, with the time limits of all of them together."""
        first = cells[0]
        return cls(
            cells=tuple(cells),
            world_size=sum(cell.num_processes for cell in cells),
            device=first.device,
            backend=None,
            threads=first.threads,
            pinned=first.pinned,
            virtual_hosts=first.virtual_hosts,
            limit_s=sum(cell.limit_s for cell in cells),
            seed=first.seed + first.repeat,
        )

    def places(self) -> list[tuple[int, int]]:
        """Return, for each process, the index of its cell and its rank there."""
        return [
            (place, rank)
            for place, cell in enumerate(self.cells)
            for rank in range(cell.num_processes)
        ]
