"""What a run stores while it goes on and when it ends, the picture of its page included.

It stores no secrets, and no names if it is anonymous.
"""

import gzip
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.analysis.run import StoredRun, load_run
from scalebench.analysis.summarise import summarise
from scalebench.analysis.validity import failed_rows, unmeasured_cases
from scalebench.costmodel.links.profile import LinkProfile
from scalebench.errors import EnvironmentUnfit, ExitCode, UsageError
from scalebench.launch.base import Launcher
from scalebench.records.files import write_atomic, write_checked, write_model
from scalebench.records.folder import Scratch
from scalebench.records.paths import RunPaths
from scalebench.records.run import CellResult, RunInfo
from scalebench.records.summary import Row, Summary
from scalebench.session.recovery.directory import directories_of
from scalebench.session.storing.anonymise import Cleaner, names_of_this_machine, script_of
from scalebench.spec import Cell
from scalebench.spec.base import Record

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH = 1400
ABOVE, EACH = 270, 330
"""Pixels of height: without suites, and for each line of two suites."""

PATIENCE_S = 120.0
UNSTORED_FORMAT = "scalebench.unstored/1"


def draw_overview(page: Path, picture: Path) -> None:
    """Write the overview of a page as PNG.

    Raises:
        UsageError: The name does not end in ``.png``, or its folder does not exist.
        EnvironmentUnfit: There is no browser, or it made no picture.
    """
    if picture.suffix != ".png":
        raise UsageError(
            f"--image makes a PNG, not {picture.name!r}. Name a file that ends in .png."
        )
    if not picture.parent.is_dir():
        raise UsageError(
            f"There is no folder {picture.parent} for --image. Make it, or name another."
        )
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise EnvironmentUnfit(
            f"--image needs Chromium or Chrome, and none of {', '.join(BROWSERS)} is on the path."
            ' Install one, or open the page and press "Copy picture".'
        )
    num_suites = page.read_text("utf-8").count('<section class="suitecard"')
    height = ABOVE + EACH * -(-max(num_suites, 1) // 2)
    with Scratch() as scratch:
        drawn = scratch / "overview.png"
        command = [
            browser, "--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            f"--user-data-dir={scratch}/profile", f"--window-size={WIDTH},{height}",
            f"--screenshot={drawn}", f"{page.resolve().as_uri()}?picture",
        ]  # fmt: skip
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # Chromium refuses to start as root with one
        _run(command)
        if not drawn.is_file():
            raise EnvironmentUnfit(f"{browser} made no picture of {page}. Open the page instead.")
        shutil.copyfile(drawn, picture)


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentUnfit(f"{command[0]} did not draw the overview: {error}.") from error


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run: where it is and what it measured. A notebook shows its tables."""

    paths: RunPaths
    summary: Summary

    def __repr__(self) -> str:
        return f"<Run {self.paths.root}: {len(self.summary.rows)} rows, {self.summary.status}>"

    def __str__(self) -> str:
        """The table that ``scalebench show`` prints."""
        from scalebench.report import render_table

        return render_table(self.summary)

    def _repr_html_(self) -> str:
        from scalebench.report.notebook import run_html

        return run_html(self.summary)

    @property
    def rows(self) -> list[Row]:
        """One for each case and number of ranks."""
        return self.summary.rows

    def frame(self) -> "pd.DataFrame":
        """Return one line for each row, in the columns of ``summary.csv``.

        They are the fields of ``summary.json``; an estimate is name, name_low, name_high, name_n.
        """
        from scalebench.report.export.frames import run_frame

        return run_frame(self.summary)

    def figure(self, name: str = "efficiency", suite: str | None = None) -> "go.Figure":
        """Return a figure of the page.

        Args:
            name: For example ``speedup``, ``efficiency``, ``budget``, ``timeline`` or ``memory``.
            suite: Whose figure; None: the only one that has it.

        Raises:
            UsageError: The page has no such figure; the message names those that it has.
        """
        from scalebench.analysis.page_data import gather
        from scalebench.report.notebook import page_figure

        page_data = gather(load_run(self.paths.root), self.summary)
        return page_figure(self.summary, page_data, name, suite)

    def report(self) -> Path:
        """Write the run's page; return its path."""
        return render_report([self.paths.root])

    @property
    def exit_code(self) -> ExitCode:
        """``CELLS_FAILED``: a row or a collective failed, or nothing of a case was measured."""
        collectives, rows = self.summary.collectives, self.summary.rows
        wrong = collectives is not None and collectives.failure is not None
        failed = wrong or failed_rows(rows) or unmeasured_cases(rows)
        return ExitCode.CELLS_FAILED if failed else ExitCode.OK


class UnsavedResults(Record):
    """What would be missing from the run's folder.

    Attributes:
        info: What was to be run: ``run.json``.
        results: Launches that are not in the folder, each as its file in ``cells/`` would be.
        summary: Of everything that was measured, stored or not.
    """

    format: str = UNSTORED_FORMAT
    info: RunInfo
    results: list[CellResult]
    summary: Summary


class ResultsNotSaved(EnvironmentUnfit):
    """The run's folder cannot be written any more; `rest` is what it does not hold."""

    def __init__(self, root: Path, rest: UnsavedResults, reason: str) -> None:
        super().__init__(
            f"{root} can no longer be written: {reason}. Results stored so far are kept; "
            f"{len(rest.results)} unsaved result(s) were written to standard output as JSON. Free "
            "some space, then continue with --resume."
        )
        self.rest = rest


def results_not_saved(stored: StoredRun, error: OSError) -> ResultsNotSaved:
    """Return what cannot be stored as an error that carries it, after storing what still can be."""
    with suppress(OSError):
        finish(stored, "interrupted")
    there = stored.paths.stored_cells().keys() - stored.unsaved
    lost = [result for cell_id, result in stored.results.items() if cell_id not in there]
    rest = UnsavedResults(info=stored.info, results=lost, summary=summarise(stored))
    return ResultsNotSaved(stored.paths.root, rest, error.strerror or str(error))


def finish(stored: StoredRun, status: str) -> Run:
    """Store how far the run came and what it shows; also after an interruption."""
    from scalebench.report import render_csv, render_markdown

    stored.info = stored.info.model_copy(update={"status": status})
    write_checked(stored.paths.run_json, stored.info)
    summary = summarise(stored)
    write_model(stored.paths.summary_json, summary)
    write_atomic(stored.paths.summary_csv, render_csv(summary))
    write_atomic(stored.paths.summary_md, render_markdown(summary))
    write_timeline(stored, summary)
    return Run(stored.paths, summary)


def write_timeline(stored: StoredRun, summary: Summary) -> None:
    """Write the traced steps as a file for Perfetto, where there are any."""
    from scalebench.report.export.chrome_trace import one_of_each_row

    content = one_of_each_row(stored, summary)
    if content is not None:
        packed = gzip.compress(content.encode(), compresslevel=3, mtime=0)
        write_atomic(stored.paths.perfetto_json, packed)


def render_report(roots: Sequence[Path]) -> Path:
    """Render the page of one or several runs into the first one's folder; return its path."""
    from scalebench.analysis.page_data import gather
    from scalebench.report import render_page

    runs = [load_run(root) for root in roots]
    target = runs[0].paths.report_html
    summaries = [summarise(stored) for stored in runs]
    page_data = [gather(*pair) for pair in zip(runs, summaries, strict=True)]
    page = render_page(summaries, page_data)
    try:
        write_atomic(target, page)
        for stored, summary in zip(runs, summaries, strict=True):
            if not stored.paths.perfetto_json.exists():
                write_timeline(stored, summary)
    except OSError as error:
        raise EnvironmentUnfit(
            f"The page cannot be written: {target}: {error.strerror}."
        ) from error
    return target


class RunStore:
    """Keeps a run in memory and on disk the same.

    What is launched is in memory alone as it was given; what is stored and shown is `as_stored`.

    ``cleaner`` takes out of it what is not stored; None: what looks like a secret. ``checkpoints``:
    suite → directory.
    """

    def __init__(
        self,
        run: StoredRun,
        cleaner: Cleaner | None = None,
        checkpoints: Mapping[str, Path] | None = None,
    ) -> None:
        self.run = run
        self.cleaner = cleaner or Cleaner()
        self.checkpoints = checkpoints or {}
        self._kept = dict(run.results)
        run.paths.cells.mkdir(exist_ok=True)

    @classmethod
    def create(
        cls,
        paths: RunPaths,
        info: RunInfo,
        link: LinkProfile | None,
        cleaner: Cleaner | None = None,
    ) -> "RunStore":
        """Store a new run, and the link profile that it was given."""
        store = cls(StoredRun(paths, info, {}, link=link), cleaner, directories_of(info.plan))
        write_checked(paths.run_json, store.cleaner.model(info))
        if link is not None:
            write_checked(paths.link_profile, store.cleaner.model(link))
        return store

    def as_stored(self) -> StoredRun:
        """Return the run as its folder holds it."""
        run, cleaner = self.run, self.cleaner
        for name in run.results.keys() - self._kept.keys():
            self._kept[name] = cleaner.model(run.results[name])
        return StoredRun(
            run.paths,
            cleaner.model(run.info),
            {name: self._kept[name] for name in run.results},
            {name: cleaner.text(why) for name, why in run.damaged.items()},
            run.unsaved,
            None if run.link is None else cleaner.model(run.link),
            cleaner.text(run.link_unavailable),
        )

    def extend_plan(self, cells: Sequence[Cell]) -> None:
        """Add cells to the plan, and store it."""
        info = self.run.info
        self.run.info = info.model_copy(update={"plan": [*info.plan, *cells]})
        write_checked(self.run.paths.run_json, self.cleaner.model(self.run.info))

    def add_notice(self, text: str) -> None:
        """Have the run say something, once; it is stored with the run's status."""
        notice = self.cleaner.text(text)
        info = self.run.info
        if notice not in info.notices:
            self.run.info = info.model_copy(update={"notices": [*info.notices, notice]})

    def keep_result(self, result: CellResult) -> CellResult:
        """Store the result of a launch; return it as it was stored."""
        return self.keep_results([result])[0]

    def keep_results(self, results: Sequence[CellResult]) -> list[CellResult]:
        """Store the results of a launch that cells shared; return them as they were stored.

        All of them are kept in memory first: where storing ends early, none is lost.
        """
        for result in results:
            self.run.unsaved.add(result.cell.id)
            self.run.results[result.cell.id] = result
        kept = [self.cleaner.model(result) for result in results]
        self._kept |= {result.cell.id: result for result in kept}
        for result in kept:
            self.cleaner.files(self.run.paths.logs(result.cell.id))
        self.keep_unsaved()
        return kept

    def keep_unsaved(self) -> None:
        """Store every result whose storing did not come to its end."""
        run = self.run
        for cell_id in sorted(run.unsaved & self._kept.keys()):
            path, old = run.paths.cell(cell_id), run.paths.old_cell(cell_id)
            write_checked(path, self._kept[cell_id], indent=None)
            old.unlink(missing_ok=True)
            for name in (path.name, old.name):
                run.damaged.pop(name, None)
            run.unsaved.discard(cell_id)

    def clean_calibration(self) -> None:
        """Take out of the run's own calibration what is not stored."""
        run = self.run
        if run.link is not None:
            cleaned = self.cleaner.model(run.link)
            if cleaned is not run.link:
                run.link = cleaned
                write_checked(run.paths.link_profile, run.link)
            self.cleaner.files(run.paths.logs("calibration"))


def cleaner_for(info: RunInfo, launcher: Launcher) -> Cleaner:
    """Return what takes secrets out of a run, and if it is anonymous the names of its machines."""
    nodes = launcher.world.nodes[1:] if launcher.world is not None else ()
    anonymous = info.spec.anonymise
    names = names_of_this_machine([node.host for node in nodes]) if anonymous else None
    return Cleaner(names, script_of(info), info.command)
