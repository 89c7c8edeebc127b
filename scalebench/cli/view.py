"""Commands that look at what is there: ``show``, ``report``, ``list``, ``doctor``."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalebench.cli import options
from scalebench.cli.options import Count
from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records.paths import resolve_run
from scalebench.report.words.terms import escaped_json, printable

if TYPE_CHECKING:
    from pydantic import BaseModel

    from scalebench.records.summary import Summary
    from scalebench.report.tables.layout import Screen


def print_table(summary: "Summary", verbose: bool) -> None:
    """Print tables and verdict on standard output, as wide and as colourful as it allows."""
    from scalebench.report.table import render_table

    emit_for_terminal(lambda screen: render_table(summary, screen, verbose))


def print_where_the_rest_is(run: str | None) -> None:
    """Say which command prints what the short form leaves out.

    Args:
        run: As the command has to name it; None: the newest run.
    """
    named = shlex.quote(run) if run else ""
    emit(f"More    scalebench show --verbose {named}".rstrip())


def how_to_go_on(status: str, folder: Path) -> str:
    """Return the line with the command that finishes a run which ended early; of others nothing."""
    early = status in ("interrupted", "over budget")
    return f"Go on   scalebench run --resume {shlex.quote(str(folder))}" if early else ""


def emit_for_terminal(render: Callable[["Screen"], str]) -> None:
    """Print what ``render`` makes of an empty screen like this standard output."""
    from scalebench.report.tables.layout import Screen

    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((100, 24)).columns
    color = terminal and "NO_COLOR" not in os.environ
    encoding = (sys.stdout.encoding or "ascii").lower()
    emit(render(Screen(width, color, "utf" not in encoding)), color)


def emit_json(model: "BaseModel") -> None:
    """Print a record as JSON on standard output."""
    emit(escaped_json(model.model_dump_json(indent=1)))


def say(text: str) -> None:
    """Print one line on standard error."""
    click.echo(printable(text.replace("\n", " ")), err=True)


def emit(text: str, color: bool | None = None) -> None:
    """Print on standard output; a reader that has seen enough (``| head``) is no failure.

    What steers a terminal is left out, but for colours where there are any.
    """
    try:
        click.echo(printable(text, colour=bool(color)), color=color)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def writing(what: str, target: Path) -> Iterator[None]:
    """Raise EnvironmentUnfit where a file that the user named cannot be written."""
    try:
        yield
    except OSError as error:
        raise EnvironmentUnfit(
            f"The {what} cannot be written: {target}: {error.strerror}."
        ) from error


@click.command()
@click.argument("run", required=False, shell_complete=options.runs)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option(
    "--verbose",
    is_flag=True,
    help="Also loss budgets, compression and predictions, and every case in sentences.",
)
@click.option("--pop", is_flag=True, help="The POP centre's efficiencies instead.")
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Compare throughput with published or own results.",
)
@click.option("--schedule", metavar="NAME", help="Draw this pipeline schedule instead of a run.")
@click.option("-p", "ranks", type=Count(1, 4096), help="Ranks of the schedule (default 4).")
@click.option(
    "-m", "microbatches", type=Count(1, 65536), help="Microbatches of the schedule (default 8)."
)
@click.option(
    "-v", "chunks", type=Count(1, 64), help="Chunks per rank of the schedule (default: the fewest)."
)
def show(
    run: str | None,
    as_json: bool,
    verbose: bool,
    pop: bool,
    reference: Path | None,
    schedule: str | None,
    **size: int | None,
) -> None:
    """Print table and verdict of RUN (default: the newest run), or draw a pipeline's schedule."""
    if schedule is not None:
        if run is not None:
            raise UsageError("--schedule draws without a run. Leave out RUN, or --schedule.")
        draw_schedule(schedule, size, as_json)
        return
    if any(size.values()):
        raise UsageError("-p, -m and -v are for --schedule. Name a schedule, or leave them out.")
    from scalebench.analysis.run import load_run
    from scalebench.analysis.summarise import summarise

    if reference is not None:
        show_reference(run, reference, as_json)
        return
    stored = load_run(resolve_run(run))
    summary = summarise(stored)
    if as_json:
        emit_json(summary)
        return
    if pop:
        from scalebench.report.table import render_pop

        emit_for_terminal(lambda screen: render_pop(summary, screen))
        return
    print_table(summary, verbose)
    if not verbose:
        print_where_the_rest_is(run)
    if further := how_to_go_on(summary.status, stored.paths.root):
        emit(further)


def show_reference(run: str | None, file: Path, as_json: bool) -> None:
    """Print how a run's rows stand against a table of results; or as JSON.

    Raises:
        UsageError: The table cannot be used; the text says why.
    """
    from scalebench.analysis.run import load_run
    from scalebench.analysis.summarise import summarise
    from scalebench.report.search import render_against
    from scalebench.search.devices.sources import compare, read_references

    results = read_references(file)
    found = compare(summarise(load_run(resolve_run(run))), results)
    if as_json:
        emit(json.dumps([one.model_dump(mode="json") for one in found], indent=1))
    else:
        emit_for_terminal(lambda screen: render_against(found, screen))


def draw_schedule(name: str, size: Mapping[str, int | None], as_json: bool) -> None:
    """Print what the ranks of a pipeline do when, all stages alike; or as JSON.

    ``size``: ``ranks``, ``microbatches`` and ``chunks``, as far as they are given.

    Raises:
        UsageError: There is no such schedule, or torch refuses these numbers.
    """
    from scalebench.costmodel.pipeline_step import dry_run, equal_times
    from scalebench.report.tables.axes import render_schedule
    from scalebench.session.plan.max_batch import schedule_as_json, schedule_by_name

    schedule = schedule_by_name(name, size["ranks"] or 4, size["microbatches"] or 8, size["chunks"])
    timeline = dry_run(schedule, equal_times(schedule.num_stages))
    if as_json:
        emit(json.dumps(schedule_as_json(timeline)))
        return
    emit_for_terminal(lambda screen: render_schedule(timeline, screen))


@click.command()
@click.argument("runs", nargs=-1, metavar="RUN...", shell_complete=options.runs)
@click.option(
    "--image",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.png",
    help="Also write the overview as a picture (needs Chromium or Chrome).",
)
def report(runs: Sequence[str], image: Path | None) -> None:
    """Render the page of one or several runs (default: the newest); print its path."""
    from scalebench.session.storing.finish import render_report

    page = render_report([resolve_run(name) for name in runs or (None,)])
    emit(str(page))
    if image is not None:
        from scalebench.session.storing.finish import draw_overview

        draw_overview(Path(page), image)
        emit(str(image))


KINDS = ("suites", "strategies", "workloads", "launchers", "runs")
"""What there is to list, in this order."""


@click.command("list")
@click.argument("kinds", nargs=-1, type=click.Choice(KINDS), metavar="[KIND]...")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_(kinds: tuple[str, ...], as_json: bool) -> None:
    """List suites, strategies, workloads, launchers and runs, and what cannot run here and why.

    With KIND, for example `scalebench list suites`, only these.
    """
    from scalebench.cli.text_tables import render_inventory
    from scalebench.launch.environment import why_no_world
    from scalebench.launch.submission import LAUNCHERS
    from scalebench.session.machine.inventory import take_inventory
    from scalebench.session.machine.survey import survey_machine

    cannot_run = {
        **{name: offer.why_not() for name, offer in LAUNCHERS.items()},
        "external": why_no_world(os.environ),
    }
    asks_torch = not kinds or {"strategies", "workloads"} & {*kinds}
    inventory = take_inventory(survey_machine() if asks_torch else {}, cannot_run, kinds)
    emit(json.dumps(inventory, indent=1) if as_json else render_inventory(inventory))


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print facts and findings as JSON.")
@click.option("--links", is_flag=True, help="Which wires NCCL takes between this machine's GPUs.")
@click.option(
    "--nccl-log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Which wires NCCL took, from its own log of any job; may be repeated.",
)
def doctor(as_json: bool, links: bool, logs: tuple[Path, ...]) -> None:
    """Show what this machine has, what would disturb a measurement, and how to fix it.

    With --links or --nccl-log, show the wires alone, and what to set for faster ones.
    """
    if links and logs:
        raise UsageError("--links looks at this machine, --nccl-log at a log: give one of them.")
    if links or logs:
        from scalebench.report.tables.communication import render_wires
        from scalebench.session.machine.diagnosis import wires_here, wires_of_logs

        wires = wires_here() if links else wires_of_logs(logs)
        if as_json:
            emit_json(wires)
        else:
            emit_for_terminal(lambda screen: render_wires(wires, screen))
        return
    from scalebench import machine
    from scalebench.cli.text_tables import render_diagnosis
    from scalebench.launch.lab import try_lab
    from scalebench.session.machine.diagnosis import diagnose, read_conditions
    from scalebench.session.machine.survey import survey_machine

    survey = survey_machine(fresh=True, rates=True)
    facts = machine.fingerprint(survey)
    conditions = read_conditions() | {"virtual_hosts": vars(try_lab())}
    findings = diagnose(facts, conditions)
    if as_json:
        answer = {"facts": facts, "conditions": conditions, "findings": [vars(f) for f in findings]}
        emit(json.dumps(answer, indent=1))
    else:
        emit(render_diagnosis(facts, conditions, findings))
