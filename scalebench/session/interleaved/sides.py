"""One of two versions that measure by turns: a run that makes round after round, or a run for each.

A run that waits between its rounds starts, checks and calibrates once. Some runs cannot make
further rounds (a race, virtual hosts, an earlier scalebench): then each round is a run.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from scalebench.gate.merging import merged
from scalebench.records.summary import Summary
from scalebench.session.interleaved.results import read_results
from scalebench.session.interleaved.run_process import RunProcess, Version


class Side:
    """The launches of one version so far.

    Args:
        version: Which.
        options: Of ``scalebench run``.
        script: The user's script, with the dashes before it; empty: there is none.
        out: Folder for the runs.

    Attributes:
        alone: Whether each round is a run.
    """

    def __init__(
        self, version: Version, options: Sequence[str], script: Sequence[str], out: Path
    ) -> None:
        self.version = version
        self.alone = False
        self._options, self._script, self._out = options, script, out
        self._waiting: RunProcess | None = None
        self._folders: dict[int, Path] = {}

    def make_round(self, number: int, only: Collection[str]) -> None:
        """Measure a round.

        Args:
            number: Of the round, from 0.
            only: Rows, as `row_name` writes them; none: all.

        Raises:
            UsageError: ``run`` refuses the arguments.
            EnvironmentUnfit: The run could not be made.
        """
        if self._waiting is not None:
            run, self._waiting = self._waiting, None
            run.make_round(only)
            self._waiting = run
            return
        folder = self._folders[number] = self._out / f"{self.version.name}-{number}"
        log = folder.with_suffix(".log")
        first = RunProcess(self.version, self._command(folder, only), log, waits=not self.alone)
        if first.can_go_on():
            self._waiting = first
        else:
            self.alone = True
            first.end()

    def close(self) -> None:
        """Have the run end that waits.

        Raises:
            EnvironmentUnfit: It ends badly; what it measured is stored.
        """
        run, self._waiting = self._waiting, None
        if run is not None:
            run.end()

    def summary(self, numbers: Collection[int]) -> Summary:
        """Return all launches as one summary.

        Args:
            numbers: Rounds that both versions have.
        """
        if not self.alone:
            (found,) = read_results(self._folders[0]).summaries
            return found.model_copy(update={"status": "complete"})  # it waits: nothing is missing
        runs = [read_results(self._folders[number]).summaries for number in sorted(numbers)]
        return merged([summary for (summary,) in runs])

    def _command(self, folder: Path, only: Collection[str]) -> list[str]:
        """Return the arguments of the version's interpreter."""
        fixed = ["--repeats", "1", "--no-report", "--out", str(folder)]
        rows = [word for row in only for word in ("--only", row)]
        return ["-m", "scalebench", "run", *self._options, *rows, *fixed, *self._script]
