"""Two versions of a project measured by turns: base, new, new, base, as often as asked.

What drifts on a machine, or differs between two jobs of a CI, hits both versions alike. Each launch
is a run of its own in the version's own interpreter and folder.
"""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalebench.errors import EnvironmentUnfit, ExitCode, UsageError
from scalebench.summary import Summary
from scalebench.verdict.merging import merged
from scalebench.verdict.reading import read_results
from scalebench.verdict.results import Results

OWN = ("--repeats", "--out", "--resume", "--dry-run", "--show-config")
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


def order(rounds: int) -> list[tuple[int, int]]:
    """Return (round, version) in the order of the launches: 0 1, 1 0, 0 1, … (ABBA)."""
    return [
        (number, version)
        for number in range(rounds)
        for version in ((0, 1) if number % 2 == 0 else (1, 0))
    ]


def interleave(
    versions: tuple[Version, Version],
    arguments: Sequence[str],
    rounds: int,
    out: Path,
    told: Callable[[str], None] = lambda _: None,
) -> tuple[Results, Results]:
    """Measure two versions by turns.

    Args:
        versions: The baseline and the new one.
        arguments: Of ``scalebench run``, the same for both.
        rounds: Launches of each.
        out: Folder for the runs.
        told: Is told what is about to run.

    Raises:
        UsageError: The arguments have an option that is set here, or ``run`` refuses them.
        EnvironmentUnfit: A run could not be made.
    """
    for argument in arguments:
        if argument.partition("=")[0] in OWN:
            raise UsageError(
                f"{argument} cannot be given with --interleave: each launch is a run of its own. "
                "The number of launches is --rounds."
            )
    found: tuple[list[Summary], list[Summary]] = ([], [])
    for number, which in order(rounds):
        version = versions[which]
        told(f"round {number + 1} of {rounds}: {version.name}")
        folder = out.resolve() / f"{version.name}-{number}"
        _run(version, arguments, folder)
        found[which].extend(read_results(folder).summaries)
    base, new = (
        Results(f"{version.name} ({version.folder})", (merged(runs),))
        for version, runs in zip(versions, found, strict=True)
    )
    return base, new


def _run(version: Version, arguments: Sequence[str], out: Path) -> None:
    """Make one run; failed cells are stored and judged, anything else ends the comparison."""
    fixed = ["--repeats", "1", "--no-report", "--out", str(out)]
    command = [version.python, "-m", "scalebench", "run", *arguments, *fixed]
    try:
        done = subprocess.run(command, cwd=version.folder, capture_output=True, text=True)
    except OSError as error:
        raise UsageError(
            f"{version.name}: {version.python} in {version.folder} cannot be started: "
            f"{error.strerror}. Check --base-python and --base-dir."
        ) from error
    if done.returncode in (ExitCode.OK, ExitCode.CELLS_FAILED):
        return
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:400]
    kind = UsageError if done.returncode == ExitCode.USAGE else EnvironmentUnfit
    raise kind(f"{version.name}: scalebench run ended with {done.returncode}: {last}")
