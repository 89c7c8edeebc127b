"""One of two versions that measure by turns: a run that makes round after round, or a run for each.

A run that waits between its rounds starts, checks and calibrates once. Some runs cannot make
further rounds (a race, virtual hosts, an earlier scalebench): then each round is a run.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from scalebench.errors import ScalebenchError
from scalebench.gate.merging import merged
from scalebench.records.summary import Summary
from scalebench.session.interleaved.results import read_results
from scalebench.session.interleaved.run_process import END_LIMIT_S, RunProcess, Version


class Side:
    """The launches of one version so far.

    Args:
        version: Which.
        options: Of ``scalebench run``.
        script: The user's script, with the dashes before it; empty: there is none.
        out: Folder for the runs.

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

        Args:
            number: Of the round, from 0.
            only: Rows, as `row_name` writes them; none: all.

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
        """Return the arguments of the version's interpreter."""
        fixed = ["--repeats", "1", "--no-report", "--out", str(folder)]
        rows = [word for row in only for word in ("--only", row)]
        return ["-m", "scalebench", "run", *self._options, *rows, *fixed, *self._script]
