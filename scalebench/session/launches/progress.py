"""Who hears how a session goes."""

from collections.abc import Sequence

from scalebench.records.run import CellResult, RunInfo
from scalebench.spec import Cell


class ProgressListener:
    """Hears how a session goes, and shows nothing; the command line's listener shows it."""

    def preparing(self) -> None:
        """Torch is being imported in the worker."""

    def planned(self, info: RunInfo, num_done: int) -> None:
        """Everything is known and stored; ``num_done`` cells are there already (resume)."""

    def calibrating(self, what: str, _: object) -> None:
        """The links are being calibrated; ``what`` is under way."""

    def started(self, cell: Cell) -> None:
        """A cell is about to be launched."""

    def started_together(self, cells: Sequence[Cell]) -> None:
        """Cells of a suite are about to be launched that take turns."""

    def ended(self, result: CellResult) -> None:
        """A cell has ended and is stored."""
