"""What ranks note while one of them fails and all start again: a line for each event.

Ranks write while the session reads, so every line is written at once. The times are nanoseconds of
the machine's monotonic clock, which all its processes share.
"""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from scalebench.errors import UsageError
from scalebench.records.storage.files import read_model, write_model
from scalebench.spec import Cell
from scalebench.spec.recovery import FaultPlan

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
