"""Two versions of a project measured alternately: base, new, new, base, as often as asked.

What drifts on a machine, or differs between two jobs of a CI, hits both versions alike. Each runs
in its own interpreter and folder.
"""

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from scalebench.errors import ScalebenchError, UsageError
from scalebench.gate.results import Results
from scalebench.records.baseline import key_of
from scalebench.records.summary import Row, RowKey, Summary
from scalebench.session.interleaved.run_process import Version as Version
from scalebench.session.interleaved.sides import Side

OWN = (
    *("--repeats", "--precision", "--only", "--out", "--resume"),
    *("--dry-run", "--show-config", "--help"),
)
"""Options of ``run`` that are not the user's to give here."""


def abba_order(number: int) -> tuple[int, int]:
    """Return the order of the versions in a round: 0 1, then 1 0, then 0 1, … (ABBA)."""
    return (0, 1) if number % 2 == 0 else (1, 0)


class InterleavedRuns:
    """Two versions measured alternately, round after round, and what that came to so far.

    ``versions`` are the baseline and the new one, ``arguments`` those of ``scalebench run``, the
    same for both; after ``--`` a script of the user's with its own. ``separate`` makes each launch
    a separate run, with its own checks and traces.

    Raises:
        UsageError: The arguments have an option that is set here.
    """

    def __init__(
        self,
        versions: tuple[Version, Version],
        arguments: Sequence[str],
        out: Path,
        on_progress: Callable[[str], None] = lambda _: None,
        separate: bool = False,
    ) -> None:
        options, script = _split(arguments)
        for argument in options:
            if argument.partition("=")[0] in OWN:
                raise UsageError(
                    f"{argument} cannot be given with --interleave: each round is one launch. "
                    "Set the number of rounds with --rounds."
                )
        self.round_s: list[float] = []
        base, new = (Side(version, options, script, out.resolve()) for version in versions)
        self._sides = (base, new)
        self._on_progress = on_progress
        if separate:
            for side in self._sides:
                side.separate("--separate-runs")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None or issubclass(kind, ScalebenchError):
            self.close()
            return
        for side in self._sides:  # the gate was interrupted
            side.stop()

    def close(self) -> None:
        """Have the runs end that wait for further rounds; what they measured is stored already."""
        for side in self._sides:
            try:
                side.close()
            except ScalebenchError as error:
                self._on_progress(str(error))

    def measure(self, upto: int, only: Collection[str] = ()) -> None:
        """Make one further round of both.

        ``upto``: rounds that are planned in all, for the progress message. ``only``: rows, as
        `row_name` writes them; none: all.

        Raises:
            UsageError: ``run`` refuses the arguments.
            EnvironmentUnfit: A run could not be made.
        """
        number = len(self.round_s)
        began = time.monotonic()
        for which in abba_order(number):
            side = self._sides[which]
            self._on_progress(f"round {number + 1} of {upto}: {side.version.name}")
            side.make_round(number, only)
            if side.why_separate is not None:  # what is compared is measured alike
                self._make_separate(side.why_separate)
        self.round_s.append(time.monotonic() - began)

    def _make_separate(self, reason: str) -> None:
        """Make each further round a run, and say so once."""
        if all(side.why_separate is not None for side in self._sides):
            return
        self._on_progress(f"each round is a separate run: {reason}")
        for side in self._sides:
            side.separate(reason)

    def results(self) -> tuple[Results, Results]:
        """Return the launches of the rounds that both have, as one result for each version."""
        numbers = range(len(self.round_s))
        base, new = (side.summary(numbers) for side in self._sides)
        base, new = in_rounds_of_both(base, new)
        names = [f"{side.version.name} ({side.version.folder})" for side in self._sides]
        return Results(names[0], (base,)), Results(names[1], (new,))


def in_rounds_of_both(base: Summary, new: Summary) -> tuple[Summary, Summary]:
    """Return two summaries with the launches only whose round the same row of the other has."""
    rounds = [_rounds_of(summary.rows) for summary in (base, new)]
    both = {key: rounds[0][key] & rounds[1][key] for key in rounds[0].keys() & rounds[1].keys()}

    def kept(row: Row) -> Row:
        if key_of(row) not in both:
            return row
        samples = [one for one in row.samples if one.repeat in both[key_of(row)]]
        return row.model_copy(update={"samples": samples})

    kept_base, kept_new = (
        summary.model_copy(update={"rows": [kept(row) for row in summary.rows]})
        for summary in (base, new)
    )
    return kept_base, kept_new


def _rounds_of(rows: Sequence[Row]) -> dict[RowKey, set[int]]:
    return {key_of(row): {one.repeat for one in row.samples if one.step_s} for row in rows}


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of ``run``, and the user's script with the dashes before it."""
    words = list(arguments)
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place:]
