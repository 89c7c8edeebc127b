"""``scalebench import``."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalebench.cli.options import DURATION, POSITIVE, with_settings
from scalebench.cli.view import emit, emit_json, print_table, print_where_the_rest_is, say
from scalebench.errors import ExitCode, ScalebenchError, UsageError, unknown_name
from scalebench.records.paths import config_file

if TYPE_CHECKING:
    from scalebench.importing.formats import Format
    from scalebench.importing.job import Stated

SETTINGS = ("gpus", "batch-per-gpu", "seq", "gpu")


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
    from scalebench.records.imported import ImportedRun
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
