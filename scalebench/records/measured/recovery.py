"""What ranks write about failures and about checkpoints: a line for each event, save and restore.

What ranks note while one of them fails and all start again: a line for each event.

Ranks write while the session reads, so every line is written at once. The times are nanoseconds of
the machine's monotonic clock, which all its processes share.
"""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, FiniteFloat

from scalebench.errors import UsageError
from scalebench.records.files import read_model, write_model
from scalebench.spec import Cell
from scalebench.spec.base import LARGE, Record
from scalebench.spec.recovery import FaultKind, FaultPlan, Restarter, SaveMethod

AGENT = "agent"
"""In whose name torchrun's agent notes events, where a rank has its number."""

CAUGHT_UP = "caught-up"
"""Event of a rank that has done the step again in which the job failed before."""


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
        number: That goes with it: the step, the process.
        time_ns: When it was.
        loss: Of the rank's batch, where a step was done; else None.
    """

    name: str
    number: int
    time_ns: int
    loss: float | None = None


@dataclass(frozen=True)
class FaultFolder:
    """The folder of a job that fails: its plans, the events of every rank, the checkpoints."""

    root: Path

    @property
    def checkpoints(self) -> Path:
        """Where the ranks save."""
        return self.root / "checkpoints"

    @property
    def job(self) -> Path:
        """The cell, for ranks that torchrun starts."""
        return self.root / "job.json"

    def begin(self) -> None:
        """Make the folder, without what a run left there that was stopped and is now resumed."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)

    def write_plan(self, plan: FaultPlan) -> None:
        """Say what the ranks of the plan's attempt are to do."""
        self.root.mkdir(parents=True, exist_ok=True)
        write_model(self.root / f"plan{plan.attempt}.json", plan)

    def read_plan(self, attempt: int | None = None) -> FaultPlan:
        """Return what the ranks of an attempt are to do; None: of the last that has a plan."""
        chosen = self._planned()[-1] if attempt is None else attempt
        return read_model(self.root / f"plan{chosen}.json", FaultPlan)

    def read_plans(self) -> list[FaultPlan]:
        """Return what the ranks of each attempt are to do, as far as there are plans."""
        return [self.read_plan(attempt) for attempt in self._planned()]

    def note(
        self, attempt: int, who: int | str, name: str, number: int = 0, loss: float | None = None
    ) -> None:
        """Note an event of a rank, or of the agent, now."""
        told = "" if loss is None else f" {loss!r}"
        line = f"{name} {number} {time.monotonic_ns()}{told}\n".encode()
        file = os.open(self._file(attempt, who), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def events(self, attempt: int, who: int | str) -> list[Event]:
        """Return the events of a rank, or of the agent, in order."""
        try:
            lines = self._file(attempt, who).read_text().splitlines()
        except FileNotFoundError:
            return []
        parts = [line.split() for line in lines]
        return [
            Event(name, int(number), int(time_ns), float(loss[0]) if loss else None)
            for name, number, time_ns, *loss in parts
        ]

    def last_step(self, attempt: int, world_size: int) -> int:
        """Return the most steps that a rank has done in an attempt; 0: none."""
        done = [e.number for r in range(world_size) for e in self.events(attempt, r)
                if e.name == "step"]  # fmt: skip
        return max(done, default=0)

    def _planned(self) -> list[int]:
        return sorted(int(path.stem[len("plan") :]) for path in self.root.glob("plan*.json"))

    def _file(self, attempt: int, who: int | str) -> Path:
        return self.root / f"attempt{attempt}.{who}.events"


def fault_folder(cell: Cell) -> FaultFolder:
    """Return the folder of the failing job that a cell's ranks are part of; ``repeat`` numbers it.

    Ranks that continue in another number than began find it by ``restore_from``.
    """
    if cell.recovery is None or cell.recovery.directory is None:
        raise UsageError(f"Cell {cell.id} has no directory for checkpoints. Give --checkpoint-dir.")
    began = cell.restore_from[0] if cell.restore_from else cell.world_size
    of_row = Path(cell.recovery.directory) / cell.suite / cell.case / f"n{began}"
    return FaultFolder(of_row / "faults" / str(cell.repeat))


class SaveSample(Record):
    """One save, as one rank saw it.

    Attributes:
        step: Steps trained before it.
        stall_s: Seconds during which this rank could not train.
        durable_s: From the start of the save until every byte of the checkpoint is on the disk
            (``fsync``), seconds.
        bytes: Size of the checkpoint, all ranks together.
        quiet_s: Steps before the save, seconds each, without the first.
        later_s: Steps after it, seconds each.
        num_beside: Of these, how many began before the checkpoint was durable.
        extra_host_bytes: Peak of the process's memory during the save, above what it had before;
            null: this system does not tell.
        extra_device_bytes: The same of the GPU's memory; null: on CPU.
    """

    method: SaveMethod
    step: int = Field(ge=0)
    stall_s: FiniteFloat = Field(ge=0)
    durable_s: FiniteFloat = Field(ge=0)
    bytes: int = Field(ge=0, lt=LARGE)
    quiet_s: list[FiniteFloat]
    later_s: list[FiniteFloat]
    num_beside: int = Field(ge=0)
    extra_host_bytes: int | None = None
    extra_device_bytes: int | None = None


class RestoreSample(Record):
    """One restore, as one rank saw it. A state that is not equal to what was saved is an error.

    Attributes:
        saved_world_size: Ranks of the job that saved.
        load_s: From the search for the newest checkpoint until every rank has its state, seconds.
        first_step_s: The first step after it, seconds.
        num_tensors: Tensors that were compared, bit for bit, with those at the save.
        continues_equal: Whether the same steps then led to the same bits as in the run that never
            stopped; null: not compared, as with another number of ranks.
    """

    method: SaveMethod
    saved_world_size: int = Field(ge=1)
    load_s: FiniteFloat = Field(ge=0)
    first_step_s: FiniteFloat = Field(ge=0)
    num_tensors: int = Field(ge=1)
    continues_equal: bool | None = None


class FaultTimeline(Record):
    """One failure, from outside, by one clock: the machine's monotonic one.

    Attributes:
        restarted_by: Who started the ranks again.
        restart: Number of the restart in its job: 1: the first. A job that fails several times is
            hit again only after it has caught up.
        rank: Which one failed.
        failed_after: Steps trained when it failed.
        saved_after: Steps trained when the checkpoint was saved that was loaded.
        phases_s: Phase → seconds, in the order of `scalebench.spec.recovery.PHASES`; they follow
            one another without a gap.
        total_s: From the failure until the step in which it came is done: their sum.
        data_s: Part of ``load``: bringing the data to its place, seconds; null: not noted.
    """

    kind: FaultKind
    restarted_by: Restarter
    restart: int = Field(1, ge=1)
    rank: int = Field(ge=0)
    failed_after: int = Field(ge=0)
    saved_after: int = Field(ge=0)
    phases_s: dict[str, FiniteFloat]
    total_s: FiniteFloat = Field(ge=0)
    data_s: FiniteFloat | None = Field(None, ge=0)


class ElasticStretch(Record):
    """Steps of a job with one number of ranks.

    Attributes:
        rank_batch: Samples of a rank and step; with ``world_size`` times it the global batch.
        accumulate: Parts in which a rank trains them.
        first: Number of the first step.
        loss: Of the global batch, step by step.
        step_s: From one step to the next, seconds: where no save lies between them.
    """

    world_size: int = Field(ge=1)
    rank_batch: int = Field(ge=1)
    accumulate: int = Field(1, ge=1)
    first: int = Field(ge=1)
    loss: list[FiniteFloat]
    step_s: list[FiniteFloat]


class ElasticRun(Record):
    """A job that lost a rank, went on with fewer, and had all again later.

    Attributes:
        stretches: With all ranks, with fewer, with all again.
        shrink_s: From the failure until fewer ranks have done a step, seconds.
        grow_s: From the last step of the fewer until all have done one, seconds.
        unbroken_loss: The same steps in a run that nothing stopped.
    """

    stretches: list[ElasticStretch]
    shrink_s: FiniteFloat = Field(ge=0)
    grow_s: FiniteFloat = Field(ge=0)
    unbroken_loss: list[FiniteFloat]


class RecoveryRecord(Record):
    """What one rank saw of checkpoints in one launch.

    Attributes:
        file_system: Kind of file system of the directory, as the system calls it; null: not known.
        unavailable: Method → why it was not tried.
    """

    saves: list[SaveSample] = []
    restores: list[RestoreSample] = []
    file_system: str | None = None
    unavailable: dict[str, str] = {}
