"""Progress on standard error: a bar on a terminal, elsewhere a short line now and then.

A log of CI has to show that something is still going on: some end a job that is silent.
"""

import time
from collections.abc import Callable, Iterator, Sequence
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
from scalebench.report.words.terms import plain, printable
from scalebench.session.cell_runner import ProgressListener
from scalebench.session.plan.max_batch import usual_time
from scalebench.spec import Cell
from scalebench.spec.script import ScriptTarget
from scalebench.units import rough_time

EVERY_S = 10.0
"""Off a terminal a line is printed at most this often, and none by what ends sooner."""

LEAST_LAUNCHES = 3
"""So many have ended before the time that is left is told by them."""


def print_on(console: Console, text: str, style: str = "") -> None:
    """Print text on a console, and nothing else that a rank or a file has written into it."""
    console.print(printable(text), style=style, markup=False, highlight=False, soft_wrap=True)


class Log:
    """Prints on a console that is no terminal how far something is; on a terminal nothing.

    Args:
        clock: Seconds, from any beginning.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self.clock = clock
        self.began = self.printed = clock()

    def tell(self, text: str) -> None:
        """Print a line, if the last one is long enough ago."""
        now = self.clock()
        if self.console.is_terminal or now - self.printed < EVERY_S:
            return
        self.printed = now
        told = f"scalebench: {now - self.began:.0f} s: {text}"
        print_on(self.console, told)


class TerminalProgress(ProgressListener):
    """Shows a session on a console."""

    def __init__(self, console: Console, bar: Progress, log: Log | None = None) -> None:
        self.console = console
        self.bar = bar
        self.log = log or Log(console)
        self.task = bar.add_task("starting", total=None)
        self._told_time = False
        self._began, self._num_done = self.log.clock(), 0

    def preparing(self) -> None:
        """Say that torch is being imported."""
        self.bar.update(self.task, description="importing torch")

    def planned(self, info: RunInfo, num_done: int) -> None:
        """Show what every reader of the numbers has to know, and size the bar."""
        if self.console.is_terminal:
            for notice in info.notices:
                print_on(self.console, plain(notice), style="dim")
        launches = [c for c in info.plan if c.device == "cuda" and c.skip_reason is None]
        whole_s, _ = usual_time(launches, info.spec.budget_s)
        left = len(launches) - num_done
        if whole_s is not None and left > 0:
            usual = rough_time(whole_s * left / len(launches))
            text = f"scalebench: {left} launches on GPUs, about {usual}; large models take longer"
            print_on(self.console, text)
        self.bar.update(self.task, total=len(info.plan), completed=num_done)
        self._began, self._num_done = self.log.clock(), num_done

    def calibrating(self, what: str, _: object) -> None:
        """Say which links are being calibrated."""
        self.bar.update(self.task, description=f"calibrating {what}")
        self.log.tell(f"calibrating {what}")

    def started(self, cell: Cell) -> None:
        """Name the cell that is being launched."""
        names = {
            "shard": "measuring one rank's shard of",
            "inspect": "checking",
            "save": "saving",
            "restore": "restoring",
            "fail": "failing and restarting",
            "fit": f"trying {cell.rank_batch} samples per rank of",
            "independent": f"measuring {cell.rank_batch} samples per independent rank of",
        }
        what = names.get(cell.purpose, "measuring")
        self.bar.update(self.task, description=f"{what} {cell.case} at N={cell.world_size}")

    def started_together(self, cells: Sequence[Cell]) -> None:
        """Say whose turns begin; they end together, which may take a minute."""
        num_rows = sum(cell.purpose == "measure" for cell in cells)
        first = cells[0]
        what = f"measuring {num_rows} rows of {first.suite} by turns, round {first.repeat + 1}"
        self.bar.update(self.task, description=what)
        self.log.tell(f"{self._so_far()}, {what}")

    def ended(self, result: CellResult) -> None:
        """Count the cell; print what went wrong, with the end of the first failed rank's log."""
        self.bar.advance(self.task)
        cell = result.cell
        self.log.tell(f"{self._so_far()}, last {cell.case} at N={cell.world_size}")
        self._tell_time(result)
        if result.status in ("failed", "oom"):
            text = f"{result.cell.id} {result.status}: {result.reason}"
            print_on(self.console, plain(text), style="red")
            if result.failure is not None and result.failure.log_tail:
                indented = "\n".join(f"  {line}" for line in result.failure.log_tail.splitlines())
                print_on(self.console, indented)

    def _tell_time(self, result: CellResult) -> None:
        """Say, after the first launch of a user's script, how long the others will take.

        How long a script takes to start is known only then.
        """
        script = result.cell.workload
        if self._told_time or not isinstance(script, ScriptTarget) or not result.wall_s:
            return
        self._told_time = True
        task = next(task for task in self.bar.tasks if task.id == self.task)
        left = int((task.total or 0) - task.completed)
        seconds = left * result.wall_s
        if seconds >= EVERY_S:
            told = f"a launch of {script.shown} takes {result.wall_s:.0f} s"
            text = f"scalebench: {told}: at least {rough_time(seconds)} for the other {left}"
            print_on(self.console, text)

    def _so_far(self) -> str:
        """Say how many launches ended, and when the others will, if they take as long as these.

        Rounds for precision come on top of what was planned.
        """
        task = next(task for task in self.bar.tasks if task.id == self.task)
        if task.total is None:
            return f"{task.completed:.0f} launches"
        if task.completed > task.total:
            return f"{task.completed:.0f} launches, {task.total:.0f} were planned"
        told = f"{task.completed:.0f} of {task.total:.0f} launches"
        ended, left = task.completed - self._num_done, task.total - task.completed
        if ended < LEAST_LAUNCHES or not left:
            return told
        left_s = (self.log.clock() - self._began) * left / ended
        return f"{told}, about {rough_time(left_s)} left"


@contextmanager
def parts_on(stream: TextIO) -> Iterator[Callable[[str, object], None]]:
    """Show which part of something is under way: on a terminal at once, elsewhere in a log."""
    console = Console(file=stream)
    log = Log(console)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("starting")
    with bar:

        def on_part(part: str, _: object) -> None:
            bar.update(task, description=part)
            log.tell(part)

        yield on_part


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
