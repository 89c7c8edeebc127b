"""Progress on standard error: a bar on a terminal, only what went wrong elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from scalebench.records.run import CellResult, RunInfo
from scalebench.spec import Cell


class TerminalProgress:
    """Shows a session on a console."""

    def __init__(self, console: Console, bar: Progress) -> None:
        self.console = console
        self.bar = bar
        self.task = bar.add_task("starting", total=None)

    def preparing(self) -> None:
        """Say that torch is being imported."""
        self.bar.update(self.task, description="importing torch")

    def planned(self, info: RunInfo, num_done: int) -> None:
        """Show what every reader of the numbers has to know, and size the bar."""
        if self.console.is_terminal:
            for notice in info.notices:
                self.console.print(notice, style="dim", markup=False, highlight=False)
        self.bar.update(self.task, total=len(info.plan), completed=num_done)

    def calibrating(self, what: str, _: object) -> None:
        """Say which links are being calibrated."""
        self.bar.update(self.task, description=f"calibrating {what}")

    def started(self, cell: Cell) -> None:
        """Name the cell that is being launched."""
        names = {"inspect": "checking", "fit": f"trying {cell.rank_batch} samples per rank of"}
        what = names.get(cell.purpose, "measuring")
        self.bar.update(self.task, description=f"{what} {cell.case} at N={cell.world_size}")

    def ended(self, result: CellResult) -> None:
        """Count the cell; print what went wrong, with the end of the first failed rank's log."""
        self.bar.advance(self.task)
        if result.status in ("failed", "oom"):
            text = f"{result.cell.id} {result.status}: {result.reason}"
            self.console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
            if result.failure is not None and result.failure.log_tail:
                indented = "\n".join(f"  {line}" for line in result.failure.log_tail.splitlines())
                self.console.print(indented, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def parts_on(stream: TextIO) -> Iterator[Callable[[str, object], None]]:
    """Show on a terminal which part of something is under way; elsewhere nothing."""
    console = Console(file=stream)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("starting")
    with bar:
        yield lambda part, _: bar.update(task, description=part)


@contextmanager
def progress_on(stream: TextIO) -> Iterator[TerminalProgress]:
    """Show progress on ``stream`` for the duration of the block."""
    console = Console(file=stream)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar:
        yield TerminalProgress(console, bar)
