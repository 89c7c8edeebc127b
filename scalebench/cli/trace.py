"""``scalebench trace``."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalebench.cli.view import emit, emit_for_terminal, say, writing
from scalebench.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from scalebench.trace.dumps.calls import Source
    from scalebench.trace.files.reading import Window


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
@click.option(
    "--against",
    multiple=True,
    metavar="FILE|LINK",
    help="Show what got slower than in this earlier trace (may be repeated, once a rank); with "
    "dumps, compare bus bandwidths with a link: nvlink4, infiniband-ndr, …",
)
def trace(
    files: Sequence[str],
    as_json: bool,
    window: "Window",
    communication: str | None,
    page: Path | None,
    against: Sequence[str],
) -> int:
    """Show how much of the communication in Kineto traces is hidden behind computation.

    One FILE per rank of a job, as torch.profiler writes them (.json, .json.gz or .json.zst), or a
    folder of them. Dumps of torch.distributed's flight recorder and of NCCL Inspector are read as
    well: which ranks did not enter the last collective, what does not fit, and bus bandwidths.
    """
    from scalebench.trace.comparison import compare
    from scalebench.trace.dumps.examination import find_dumps
    from scalebench.trace.job import analyse_job
    from scalebench.trace.job import as_json as figures_as_json

    if dumps := find_dumps(files):
        if page is not None:
            raise UsageError("--html draws traces; dumps of collectives have no page.")
        _show_dumps(dumps, against, as_json)
        return ExitCode.OK
    for path in against:
        if not Path(path).exists():
            raise UsageError(
                f"--against {path}: there is no such file. With traces, give an earlier trace; a "
                "link by name goes with dumps of collectives."
            )
    pattern = _pattern(communication)
    job = analyse_job(files, window, pattern)
    before = analyse_job(against, window, pattern) if against else None
    comparison = compare(job, before) if before else None
    for line in (*job.refused, *(before.refused if before else ())):
        say(f"scalebench: {line}")
    if page is not None:
        from scalebench.records.storage.files import write_atomic
        from scalebench.report.page.trace_page import render_trace_page

        with writing("page", page):
            write_atomic(page, render_trace_page(job))
        say(f"Page    {page}")
    if as_json:
        content = figures_as_json(job)
        if comparison is not None:
            content["against"] = asdict(comparison)
        emit(json.dumps(content, indent=1, allow_nan=False))
    else:
        from scalebench.report.tables.traces import render_traces

        emit_for_terminal(lambda screen: render_traces(job, screen, comparison))
    bad = job.refused or (before is not None and before.refused)
    return ExitCode.CELLS_FAILED if bad else ExitCode.OK


def _pattern(given: str | None) -> re.Pattern[str] | None:
    try:
        return None if given is None else re.compile(given)
    except re.error as error:
        raise UsageError(
            f"--communication {given} is no regular expression: {error}. Put a backslash before "
            "characters that stand for themselves."
        ) from error


def _show_dumps(dumps: Mapping[Path, "Source"], against: Sequence[str], as_json: bool) -> None:
    from scalebench.costmodel.links.against_nominal import named_link
    from scalebench.report.tables.traces import render_dumps
    from scalebench.trace.dumps.examination import as_json as dumps_as_json
    from scalebench.trace.dumps.examination import examine

    if len(against) > 1:
        raise UsageError("With dumps of collectives, --against takes one link.")
    link = (against[0], named_link(against[0])) if against else None
    examinations = examine(dumps)
    if as_json:
        content = dumps_as_json(examinations)
        content["link"] = {"name": link[0], **link[1].model_dump()} if link else None
        emit(json.dumps(content, indent=1, allow_nan=False))
    else:
        emit_for_terminal(lambda screen: render_dumps(examinations, link, screen))
