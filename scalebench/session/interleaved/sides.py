"""One of two versions that measure by turns: a run that makes round after round, or a run for each.

A run that waits between its rounds starts, checks and calibrates once. Some runs cannot make
further rounds (a race, virtual hosts, an earlier scalebench): then each round is a run.

What a gate is given: summaries, run folders or CI results, read alike.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from scalebench.analysis.run import load_run
from scalebench.errors import ScalebenchError, UsageError
from scalebench.gate.baselines import checked, read_summary
from scalebench.gate.merging import merged
from scalebench.gate.results import Results
from scalebench.records.paths import RunPaths, further_baselines
from scalebench.records.run import RunInfo
from scalebench.records.storage.files import read_model
from scalebench.records.storage.folder import is_run_folder
from scalebench.records.summary import Summary
from scalebench.session.interleaved.run_process import END_LIMIT_S, RunProcess, Version


def read_results(path: Path) -> Results:
    """Return what a path stands for.

    A run folder's ``summary.json`` is taken if it is of the run as it stands; otherwise, for
    example after an interruption, the summary is worked out again from the cells.

    Raises:
        UsageError: There is nothing, or it is damaged; the text names the field at fault.
    """
    name = str(path)
    if path.is_dir() and is_run_folder(path):
        return Results(name, (_summary_of_run(path),))
    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise UsageError(
                f"There is no run and no baseline in {path}. Give a run folder, a summary.json, or "
                "a folder of reports/baselines/ (`scalebench baseline list`)."
            )
        further = [path for file in files for path in further_baselines(file)]
        return Results(
            name,
            tuple(read_summary(file) for file in files),
            partial=True,
            repeats=tuple(read_summary(path) for path in further),
        )
    if not path.exists():
        raise UsageError(
            f"There is no {path}. Give a run folder, a summary.json, or a folder of "
            "reports/baselines/; `scalebench list` lists the runs, `scalebench baseline list` the "
            "baselines."
        )
    return Results(name, (read_summary(path),))


def _summary_of_run(root: Path) -> Summary:
    paths = RunPaths(root)
    if paths.summary_json.is_file():
        info = read_model(paths.run_json, RunInfo)
        summary = read_summary(paths.summary_json)
        if (summary.run_id, summary.status) == (info.run_id, info.status):
            return summary
    from scalebench.analysis.summarise import (
        summarise,
    )  # only where it is needed: costs a third of the start

    return checked(summarise(load_run(root)), str(root))


class Side:
    """The launches of one version so far.

    ``script``: the user's, with the dashes before it; empty: there is none.

    Attributes:
        why_separate: Why each round is a run; None: it is not.
    """

    def __init__(
        self, version: Version, options: Sequence[str], script: Sequence[str], out: Path
    ) -> None:
        self.version = version
        self.why_separate: str | None = None
        self._options, self._script, self._out = options, script, out
        self._run: RunProcess | None = None
        self._found: dict[int, Summary] = {}

    def make_round(self, number: int, only: Collection[str]) -> None:
        """Measure a round.

        ``number`` is from 0. ``only``: rows, as `row_name` writes them; none: all.

        Raises:
            UsageError: ``run`` refuses the arguments.
            EnvironmentUnfit: The run could not be made.
        """
        try:
            if self._run is not None:
                self._run.make_round(only)
            else:
                self._start(number, only)
        except ScalebenchError:
            self._run = None  # it has ended
            raise

    def _start(self, number: int, only: Collection[str]) -> None:
        """Start a run, and wait until it has made its first round."""
        folder = self._folder(number)
        waits, log = self.why_separate is None, folder.with_suffix(".log")
        self._run = RunProcess(self.version, self._command(folder, only), log, waits)
        if waits:
            self.why_separate = self._run.wait_for_round()
        if self.why_separate is not None:
            self._run.end()
            self._run = None
            (self._found[number],) = read_results(folder).summaries

    def separate(self, reason: str) -> None:
        """Make each further round a run; one that waits ends, with the round that it has.

        Raises:
            EnvironmentUnfit: It ends badly.
        """
        if self.why_separate is not None:
            return
        self.why_separate = reason
        if self._run is not None:
            self.close()
            (self._found[0],) = read_results(self._folder(0)).summaries

    def close(self) -> None:
        """Have the run end that waits.

        Raises:
            EnvironmentUnfit: It ends badly; what it measured is stored.
        """
        run, self._run = self._run, None
        if run is not None:
            run.end(END_LIMIT_S)

    def stop(self) -> None:
        """End the run, whatever it is doing."""
        run, self._run = self._run, None
        if run is not None:
            run.stop()

    def summary(self, numbers: Collection[int]) -> Summary:
        """Return all launches as one summary.

        Args:
            numbers: Rounds that both versions have.
        """
        if self.why_separate is None:
            (found,) = read_results(self._folder(0)).summaries
            return found.model_copy(update={"status": "complete"})  # it waits: nothing is missing
        return merged([self._found[number] for number in sorted(numbers)])

    def _folder(self, number: int) -> Path:
        return self._out / f"{self.version.name}-{number}"

    def _command(self, folder: Path, only: Collection[str]) -> list[str]:
        fixed = ["--repeats", "1", "--no-report", "--out", str(folder)]
        rows = [word for row in only for word in ("--only", row)]
        return ["-m", "scalebench", "run", *self._options, *rows, *fixed, *self._script]
