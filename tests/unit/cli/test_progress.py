"""Off a terminal a line says now and then how far a run is."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from scalebench.cli.progress import EVERY_S, Log, TerminalProgress
from scalebench.records.run import RunInfo
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from tests.builders.runs import make_cell, make_result, make_run


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def shown_on(terminal: bool, clock: Clock) -> tuple[io.StringIO, TerminalProgress]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=60)
    bar = Progress(console=console, disable=True)
    return stream, TerminalProgress(console, bar, Log(console, clock))


def info() -> RunInfo:
    return make_run([make_result(make_cell(repeat=i)) for i in range(3)]).info


def test_a_line_is_printed_when_a_launch_ends_and_the_last_line_is_ten_seconds_old(clock):
    stream, progress = shown_on(False, clock)
    progress.preparing()
    progress.planned(info(), 0)
    clock.now += EVERY_S - 0.1
    progress.ended(make_result(make_cell()))
    assert stream.getvalue() == ""
    clock.now += 0.1
    progress.ended(make_result(make_cell("ddp-bucket-1mb")))
    assert stream.getvalue() == "scalebench: 10 s: 2 of 3 launches, last ddp-bucket-1mb at N=2\n"
    progress.ended(make_result(make_cell()))
    assert stream.getvalue().count("\n") == 1


def test_the_time_that_is_left_follows_from_the_launches_so_far(clock):
    stream, progress = shown_on(False, clock)
    progress.planned(make_run([make_result(make_cell(repeat=i)) for i in range(9)]).info, 2)
    for _ in range(4):
        clock.now += EVERY_S
        progress.ended(make_result(make_cell()))
    told = [
        line.partition(": ")[2].partition(", last")[0] for line in stream.getvalue().split("\n")
    ]
    assert told == [
        "10 s: 3 of 9 launches",
        "20 s: 4 of 9 launches",
        "30 s: 5 of 9 launches, about 40 s left",
        "40 s: 6 of 9 launches, about 30 s left",
        "",
    ]


def test_after_the_first_launch_of_a_script_the_rest_is_estimated(clock):
    target = ScriptTarget(name="train", program="train.py")
    cells = [make_cell("script", n, r, Script(), workload=target) for r in (0, 1) for n in (1, 2)]
    stream, progress = shown_on(False, clock)
    progress.planned(make_run([make_result(cell) for cell in cells]).info, 0)
    for cell in cells[:2]:
        progress.ended(make_result(cell, wall_s=24.0))
    assert stream.getvalue() == (
        "scalebench: a launch of train.py takes 24 s: at least 72 s for the other 3\n"
    )


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    ("num_done", "told"), [(0, "10 launches on GPUs, about 3 min"), (8, "2 launches on GPUs, ")]
)
def test_before_the_first_launch_on_gpus_the_whole_is_estimated(clock, terminal, num_done, told):
    """A cup of coffee, or the night: on GPUs a launch compiles."""
    on_gpu = {"device": "cuda", "backend": "nccl"}
    cells = [make_cell(repeat=i, **on_gpu) for i in range(8)]
    cells += [make_cell("ddp", n, purpose="inspect", **on_gpu) for n in (1, 2)]
    cells += [make_cell("ddp", 4, skip_reason="3 GPUs", **on_gpu)]
    stream, progress = shown_on(terminal, clock)
    progress.planned(make_run([make_result(cell) for cell in cells]).info, num_done)
    assert told in stream.getvalue()


def test_rows_that_take_turns_are_announced_as_one(clock):
    stream, progress = shown_on(False, clock)
    progress.planned(info(), 1)
    clock.now += 12
    crowd = make_cell("plain", 2, 1, purpose="independent", rank_batch=16)
    progress.started_together([make_cell("plain", 1, 1), make_cell(repeat=1), crowd])
    wanted = "scalebench: 12 s: 1 of 3 launches, measuring 2 rows of ddp by turns, round 2\n"
    assert stream.getvalue() == wanted
    (task,) = progress.bar.tasks
    assert task.description == "measuring 2 rows of ddp by turns, round 2"
