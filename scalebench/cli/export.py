"""``scalebench export``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalebench.cli import completion
from scalebench.cli.view import emit, resolve_run, say
from scalebench.errors import EnvironmentUnfit, UsageError, unknown_name

if TYPE_CHECKING:
    from scalebench.analysis.run import StoredRun
    from scalebench.records.summary import Summary

IN_TWO = "github-action-benchmark"
"""The format that is two files: numbers that are better when bigger, and when smaller."""


@click.command()
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option(
    "--format",
    "name",
    required=True,
    metavar="FORMAT",
    shell_complete=completion.formats,
    help="pytest-benchmark, github-action-benchmark (two files, or -bigger and -smaller apart), "
    "bencher, openmetrics, junit, csv, parquet or chrome-trace.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file instead of standard output.",
)
def export(run: str | None, name: str, out: Path | None) -> None:
    """Write RUN (default: the newest run) in the format of another tool.

    Nothing is measured. Missing values stay null, with a reason if the format has room for one.
    """
    from scalebench.report.export import FORMATS

    wanted = {f"{IN_TWO}-{better}": better for better in ("bigger", "smaller")}
    if name != IN_TWO and name not in FORMATS:
        raise unknown_name("format", name, [*FORMATS, IN_TWO])
    if name == IN_TWO and out is None:
        raise UsageError(
            f"--format {IN_TWO} writes two files, because the action takes one direction per file: "
            f"add --out FILE.json, or print one of them with {' or '.join(wanted)}."
        )
    if name == "parquet" and out is None:
        raise UsageError("--format parquet is not text: add --out FILE.parquet.")

    from scalebench.analysis.run import load_run
    from scalebench.analysis.summarise import summarise

    stored = load_run(resolve_run(run))
    summary = summarise(stored)
    if name != IN_TWO:
        _deliver(name, stored, summary, out)
    elif out is not None:
        for one, better in wanted.items():
            _deliver(one, stored, summary, out.with_name(f"{out.stem}.{better}{out.suffix}"))


def _deliver(name: str, stored: "StoredRun", summary: "Summary", out: Path | None) -> None:
    """Write one format to a file, or print it; say on standard error what it has no place for."""
    from scalebench.report.export import FORMATS
    from scalebench.report.export.measures import split, why_left_out

    wanted = FORMATS[name]
    content = wanted.export(stored, summary)
    if wanted.only_good:
        for row in split(summary.rows)[1]:
            say(f"scalebench: left out: {why_left_out(row)}")
    if out is None:
        emit(str(content).removesuffix("\n"))
        return
    _write(out, content)
    emit(str(out))


def _write(out: Path, content: str | bytes) -> None:
    """Write a file that others may read, as far as the umask lets them."""
    from scalebench.records.files import write_atomic

    umask = os.umask(0)
    os.umask(umask)
    try:
        write_atomic(out, content)
        out.chmod(0o666 & ~umask)
    except OSError as error:
        raise EnvironmentUnfit(f"The export cannot be written: {out}: {error.strerror}.") from error
