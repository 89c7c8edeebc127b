"""Two versions of a project measured alternately: base, new, new, base, as often as asked.

What drifts on a machine, or differs between two jobs of a CI, hits both versions alike. Each launch
is a separate run in the version's own interpreter and folder.
"""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.errors import EnvironmentUnfit, ExitCode, UsageError
from scalebench.gate.merging import merged
from scalebench.gate.results import Results
from scalebench.records.summary import Summary
from scalebench.session.interleaved.results import read_results

OWN = ("--repeats", "--only", "--out", "--resume", "--dry-run", "--show-config")
"""Options of ``run`` that are not the user's to give here."""


@dataclass(frozen=True)
class Version:
    """One version of what is measured.

    Attributes:
        python: Its interpreter, in which scalebench is installed.
        folder: Where it is run: the project, or another checkout of it.
    """

    name: str
    python: str
    folder: Path


def abba_order(number: int) -> tuple[int, int]:
    """Return the order of the versions in a round: 0 1, then 1 0, then 0 1, … (ABBA)."""
    return (0, 1) if number % 2 == 0 else (1, 0)


class InterleavedRuns:
    """Two versions measured alternately, round after round, and what that came to so far.

    Args:
        versions: The baseline and the new one.
        arguments: Of ``scalebench run``, the same for both; after ``--`` a script of the user's
            with its own.
        out: Folder for the runs.
        on_progress: Called with what is about to run.

    Attributes:
        round_s: How long each round took, seconds.

    Raises:
        UsageError: The arguments have an option that is set here.
    """

    def __init__(
        self,
        versions: tuple[Version, Version],
        arguments: Sequence[str],
        out: Path,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        options, _ = _split(arguments)
        for argument in options:
            if argument.partition("=")[0] in OWN:
                raise UsageError(
                    f"{argument} cannot be given with --interleave: each launch is a separate run. "
                    "Set the number of launches with --rounds."
                )
        self.versions = versions
        self.arguments = tuple(arguments)
        self.round_s: list[float] = []
        self._out = out.resolve()
        self._on_progress = on_progress
        self._found: tuple[list[Summary], list[Summary]] = ([], [])

    def measure(self, upto: int, narrowed: Sequence[str] = ()) -> None:
        """Make one further round of both.

        Args:
            upto: Rounds that are planned in all, for the progress message.
            narrowed: Further arguments of ``run``, for both.

        Raises:
            UsageError: ``run`` refuses the arguments.
            EnvironmentUnfit: A run could not be made.
        """
        number = len(self.round_s)
        began = time.monotonic()
        found: dict[int, Summary] = {}
        for which in abba_order(number):
            version = self.versions[which]
            self._on_progress(f"round {number + 1} of {upto}: {version.name}")
            folder = self._out / f"{version.name}-{number}"
            options, script = _split(self.arguments)
            _run(version, [*options, *narrowed], script, folder)
            (found[which],) = read_results(folder).summaries
        for which, summary in found.items():  # both or none, so that rounds stay pairs
            self._found[which].append(summary)
        self.round_s.append(time.monotonic() - began)

    def results(self) -> tuple[Results, Results]:
        """Return the launches so far, as one result for each version."""
        base, new = (
            Results(f"{version.name} ({version.folder})", (merged(runs),))
            for version, runs in zip(self.versions, self._found, strict=True)
        )
        return base, new


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of ``run``, and the user's script with the dashes before it."""
    words = list(arguments)
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place:]


def _run(version: Version, options: Sequence[str], script: Sequence[str], out: Path) -> None:
    """Make one run; failed cells are stored and judged, anything else ends the comparison."""
    fixed = ["--repeats", "1", "--no-report", "--out", str(out)]
    command = [version.python, "-m", "scalebench", "run", *options, *fixed, *script]
    try:
        done = subprocess.run(command, cwd=version.folder, capture_output=True, text=True)
    except OSError as error:
        raise UsageError(
            f"{version.name}: {version.python} in {version.folder} cannot be started: "
            f"{error.strerror}. Check --base-python and --base-dir."
        ) from error
    if done.returncode in (ExitCode.OK, ExitCode.CELLS_FAILED):
        return
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:400]
    kind = UsageError if done.returncode == ExitCode.USAGE else EnvironmentUnfit
    raise kind(f"{version.name}: scalebench run ended with {done.returncode}: {last}")
