"""Render a folder of runs as a gallery: ``python -m scalebench.cli.gallery reports/gallery``."""

import sys
from pathlib import Path

import click

from scalebench.analysis.page_data import gather
from scalebench.analysis.run import load_run
from scalebench.analysis.summarise import summarise
from scalebench.cli.view import emit, say
from scalebench.errors import ScalebenchError, UsageError
from scalebench.records.files import write_atomic
from scalebench.records.folder import find_runs
from scalebench.report.page.other_pages import INDEX, Exhibit, render_gallery
from scalebench.session.suites import read_question, suite_files

READABLE = 0o644
"""A gallery is made to be shown."""


def make_gallery(folder: Path) -> Path:
    """Write the pages of all runs in a folder and their index; return the index.

    Raises:
        UsageError: There is no run in it.
    """
    roots = find_runs(folder)
    if not roots:
        raise UsageError(f"There is no run in {folder}/. Give a folder that holds run folders.")
    questions = {name: read_question(path) for name, path in suite_files().items()}
    exhibits = []
    for root in roots:
        run = load_run(root)
        summary = summarise(run)
        exhibits.append(Exhibit(root.name, summary, gather(run, summary), questions))
    for name, text in render_gallery(exhibits).items():
        write_atomic(folder / name, text)
        (folder / name).chmod(READABLE)
    return folder / INDEX


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Render the runs in FOLDER as a gallery; print the path of its index."""
    try:
        emit(str(make_gallery(folder)))
    except ScalebenchError as error:
        say(f"Error: {error}")
        sys.exit(int(error.exit_code))


if __name__ == "__main__":
    main()
