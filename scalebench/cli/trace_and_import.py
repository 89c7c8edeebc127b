"""``scalebench trace`` and ``scalebench import``: what others have recorded."""

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalebench.cli.options import DURATION, POSITIVE, with_settings
from scalebench.cli.view import (
    emit,
    emit_for_terminal,
    emit_json,
    print_table,
    print_where_the_rest_is,
    say,
    writing,
)
from scalebench.errors import ExitCode, ScalebenchError, UsageError, unknown_name
from scalebench.records.paths import config_file

if TYPE_CHECKING:
    from scalebench.importing.formats import Format
    from scalebench.importing.job import Stated
    from scalebench.trace.dumps import Source
    from scalebench.trace.files.reading import Window

SETTINGS = ("gpus", "batch-per-gpu", "seq", "gpu")


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
    from scalebench.trace.dumps import find_dumps
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
        from scalebench.records.files import write_atomic
        from scalebench.report.page.other_pages import render_trace_page

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
    from scalebench.costmodel.links.profile import named_link
    from scalebench.report.tables.traces import render_dumps
    from scalebench.trace.dumps import as_json as dumps_as_json
    from scalebench.trace.dumps import examine

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


def _columns(_: click.Context, __: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if any(not name or not column for name, _, column in pairs):
        raise UsageError("--column takes VALUE=NAME, for example --column time=step_time_s.")
    return {name: column for name, _, column in pairs}


@click.command("import")
@click.argument("logs", nargs=-1, required=True, metavar="LOG[:gpus=N]...")
@click.option("--batch-per-gpu", type=POSITIVE, help="Samples of a step, divided by the GPUs.")
@click.option("--seq", type=POSITIVE, help="Tokens of a sample.")
@click.option("--gpu", metavar="NAME", help="The GPU, where a log does not name it: for MFU.")
@click.option(
    "--per",
    type=click.Choice(["sample", "token", "flop"]),
    help="Give efficiency per sample, token or FLOP, where batches or models differ.",
)
@click.option("--format", "format_", metavar="NAME", help="Read every log as this format prints.")
@click.option(
    "--column",
    "columns",
    multiple=True,
    callback=_columns,
    metavar="VALUE=NAME",
    help="The column of a table (CSV, JSON lines, TensorBoard) that has a value: step, time, clock,"
    " elapsed, rate, loss, … May be repeated.",
)
@click.option("--name", "case", default="job", show_default=True, help="What the job is called.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="The run folder. [a new one below reports/]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--no-report", is_flag=True, help="Do not render the page.")
@click.option("--follow", is_flag=True, help="Say how one LOG that still grows goes on.")
@click.option("--every", type=DURATION, default="1m", help="How often --follow does. [1m]")
def import_(logs: Sequence[str], **flags: Any) -> int:
    """Make a run of the logs of jobs that ran elsewhere: table, page, gate.

    Logs of one number of GPUs repeat one another. What a log does not say stands behind it:
    big.log:gpus=64, or in the options.
    """
    known = _known(flags["format_"])
    named = [_named(text, flags) for text in logs]
    if flags["follow"]:
        if len(named) > 1:
            raise UsageError("--follow takes one LOG.")
        return _follow(*named[0], known, flags["every"])
    return _import(named, known, flags)


def _known(name: str | None) -> "list[Format]":
    from scalebench.importing.formats import formats

    found = config_file()
    own = found[1].get("formats", {}) if found else {}
    if not isinstance(own, dict):
        raise UsageError(f"{found and found[0]}: formats must be a table.")
    known = list(formats(own, str(found[0]) if found else ""))
    if name is None:
        return known
    names = {form.name: form for form in known}
    if name not in names:
        raise unknown_name("format", name, names)
    return [names[name]]


def _named(text: str, flags: dict[str, Any]) -> "tuple[Path, Stated]":
    """Return a log and what is said of it."""
    from scalebench.importing.job import Stated

    path, own = with_settings(text)
    for name in own:
        if name not in SETTINGS:
            raise unknown_name("setting behind a LOG", name, SETTINGS)
    if (gpu := own.get("gpu", "")).isdecimal():
        raise UsageError(f"{text}: gpu= is the model of the device; did you mean gpus={gpu}?")
    return path, Stated(
        gpus=_count(own["gpus"]) if "gpus" in own else None,
        batch_per_gpu=_number(own, "batch-per-gpu") or flags["batch_per_gpu"],
        seq=_number(own, "seq") or flags["seq"],
        gpu=own.get("gpu") or flags["gpu"],
        columns=flags["columns"],
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise UsageError(f"gpus={text}: give a whole number of at least 1.")
    return int(text)


def _number(own: dict[str, str], name: str) -> float | None:
    try:
        return POSITIVE.parse(own[name]) if name in own else None
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def _import(
    named: "Sequence[tuple[Path, Stated]]", known: "list[Format]", flags: dict[str, Any]
) -> int:
    from scalebench.importing.job import import_log
    from scalebench.records.summary import ImportedRun
    from scalebench.session.imported import store_imported
    from scalebench.session.storing.finish import render_report

    read, wrong = [], []
    for path, stated in named:
        try:
            read.append(import_log(path, stated, known))
        except ScalebenchError as error:
            wrong.append(error)
    if not read:
        for other in wrong[1:]:
            say(f"scalebench: {other}")
        raise wrong[0]
    for other in wrong:
        say(f"scalebench: {other} It is left out.")
    imported = ImportedRun(case=flags["case"], per=flags["per"], logs=read)
    run = store_imported(imported, ["scalebench", *sys.argv[1:]], flags["out"])
    where = None if flags["no_report"] else render_report([run.paths.root])
    if flags["as_json"]:
        emit_json(run.summary)
    else:
        print_table(run.summary, verbose=False)
        emit("")
        emit(f"Report  {where}" if where else f"Run     {run.paths.root}")
        print_where_the_rest_is(str(run.paths.root))
    return ExitCode.CELLS_FAILED if wrong else run.exit_code


def _follow(path: Path, stated: "Stated", known: "list[Format]", every: float) -> int:
    """Print how a job goes on, a line now and then, until Ctrl-C."""
    from scalebench.importing.job import Follower

    follower = Follower(path, stated, known)
    while True:
        emit(follower.look())
        time.sleep(every)
