"""Who is told how a session goes."""

from collections.abc import Sequence
from typing import Protocol

from scalebench.records.run import CellResult, RunInfo
from scalebench.spec import Cell


class ProgressListener(Protocol):
    """Is told how a session goes; the command line shows it."""

    def preparing(self) -> None:
        """Torch is being imported in the worker."""
        ...

    def planned(self, info: RunInfo, num_done: int) -> None:
        """Everything is known and stored; ``num_done`` cells are there already (resume)."""
        ...

    def calibrating(self, what: str, _: object) -> None:
        """The links are being calibrated; ``what`` is under way."""
        ...

    def started(self, cell: Cell) -> None:
        """A cell is about to be launched."""
        ...

    def started_together(self, cells: Sequence[Cell]) -> None:
        """Cells of a suite are about to be launched that take turns."""
        ...

    def ended(self, result: CellResult) -> None:
        """A cell has ended and is stored."""
        ...


class Silent:
    """A listener that shows nothing."""

    def preparing(self) -> None:
        """Show nothing."""

    def planned(self, info: RunInfo, num_done: int) -> None:
        """Show nothing."""

    def calibrating(self, what: str, _: object) -> None:
        """Show nothing."""

    def started(self, cell: Cell) -> None:
        """Show nothing."""

    def started_together(self, cells: Sequence[Cell]) -> None:
        """Show nothing."""

    def ended(self, result: CellResult) -> None:
        """Show nothing."""
