"""Off a terminal a line says now and then how far a run is."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from scalebench.cli.progress import EVERY_S, Log, TerminalProgress
from tests.builders.runs import make_cell, make_result, make_run


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def shown_on(terminal, clock):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=60)
    bar = Progress(console=console, disable=True)
    return stream, TerminalProgress(console, bar, Log(console, clock))


def info():
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
