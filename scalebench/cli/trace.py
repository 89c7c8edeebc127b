"""``scalebench trace``."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalebench.cli.view import emit, emit_for_terminal, say
from scalebench.errors import EnvironmentUnfit, ExitCode, UsageError

if TYPE_CHECKING:
    from scalebench.trace.job import JobFigures
    from scalebench.trace.reading import Window


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.option(
    "--window",
    type=click.Choice(["file", "steps"]),
    default="file",
    show_default=True,
    help="Analyse the whole file, or only complete profiler steps.",
)
@click.option(
    "--communication",
    metavar="REGEX",
    help="Count GPU kernels in whose name REGEX is found as communication.",
)
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write an HTML page to this file.",
)
def trace(
    files: Sequence[str],
    as_json: bool,
    window: "Window",
    communication: str | None,
    page: Path | None,
) -> int:
    """Show how much of the communication in Kineto traces is hidden behind computation.

    One FILE per rank of a job, as torch.profiler writes them (.json, .json.gz or .json.zst), or a
    folder of them.
    """
    from scalebench.trace.job import analyse_job
    from scalebench.trace.job import as_json as figures_as_json

    job = analyse_job(files, window, _pattern(communication))
    for line in job.refused:
        say(f"scalebench: {line}")
    if page is not None:
        _write_page(page, job)
    if as_json:
        emit(json.dumps(figures_as_json(job), indent=1, allow_nan=False))
    else:
        _print_table(job)
    return ExitCode.CELLS_FAILED if job.refused else ExitCode.OK


def _pattern(given: str | None) -> re.Pattern[str] | None:
    try:
        return None if given is None else re.compile(given)
    except re.error as error:
        raise UsageError(
            f"--communication {given} is no regular expression: {error}. Put a backslash before "
            "characters that stand for themselves."
        ) from error


def _print_table(job: "JobFigures") -> None:
    from scalebench.report.tables.trace_table import render_traces

    emit_for_terminal(lambda width, color, plain: render_traces(job, width, color, plain))


def _write_page(target: Path, job: "JobFigures") -> None:
    from scalebench.records.files import write_atomic
    from scalebench.report.page.trace_page import render_trace_page

    try:
        write_atomic(target, render_trace_page(job))
    except OSError as error:
        raise EnvironmentUnfit(
            f"The page cannot be written: {target}: {error.strerror}."
        ) from error
    say(f"Page    {target}")
