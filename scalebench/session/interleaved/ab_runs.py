"""Two versions measured alternately, for a number of rounds or until every row is decided.

Two versions of a project measured alternately: base, new, new, base, as often as asked.

What drifts on a machine, or differs between two jobs of a CI, hits both versions alike. Each runs
in its own interpreter and folder.

A run that waits between its rounds starts, checks and calibrates once. Some runs cannot make
further rounds (a race, virtual hosts, an earlier scalebench): then each round is a run.

Rounds until every row is decided, or the time is up: more launches for what is still open.

Repeated testing until something is significant inflates false positives; repeated testing until
nothing is passes everything. So each interim analysis has half the error budget of the one before,
the first half of what a single one has: levels shrink and intervals grow. Together they err no more
often than that one (Boole's inequality), however many there are and whenever they end. What an
analysis has decided stays decided, unless a launch fails later: then the row has failed, if it had
not regressed.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from scalebench.analysis.run import load_run
from scalebench.errors import ScalebenchError, UsageError
from scalebench.gate.baselines import checked, read_summary
from scalebench.gate.observation import merged
from scalebench.gate.result import GateResult, RowVerdict
from scalebench.gate.results import Results
from scalebench.records.files import read_model
from scalebench.records.folder import claim_folder, is_run_folder
from scalebench.records.paths import RunPaths, further_baselines
from scalebench.records.run import RunInfo
from scalebench.records.summary import Row, Summary, key_of
from scalebench.session.interleaved.run_process import END_LIMIT_S, RunProcess, Version
from scalebench.session.plan.cells import row_name

Judge = Callable[[Results, Results, float], GateResult]
"""Base, new and the part of all errors that the analysis may make → the verdicts."""

_Place = tuple[str, str, int, str]


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
            f"There is nothing at {path}. Give a run folder, a summary.json, or a folder of "
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
    a separate run, with its own checks and traces. Their folder is ``out``, or one of a similar
    name where that exists.

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
        folder = claim_folder(out).resolve()
        base, new = (Side(version, options, script, folder) for version in versions)
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
    rounds = [
        {key_of(row): {one.repeat for one in row.samples if one.step_s} for row in summary.rows}
        for summary in (base, new)
    ]
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


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of ``run``, and the user's script with the dashes before it."""
    words = list(arguments)
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place:]


@dataclass
class _InterimAnalyses:
    """The interim analyses so far.

    Attributes:
        after: Rounds that there were at each analysis.
        decided: Metric of a row → its verdict, from the first analysis that had one.
        ended: Why there are no further ones; ``""``: no reason but time.
    """

    after: list[int] = field(default_factory=list)
    decided: dict[_Place, RowVerdict] = field(default_factory=dict)
    ended: str = ""

    def error_budget(self) -> float:
        """Return the part of all errors that the next analysis may make."""
        return 0.5 ** (len(self.after) + 1)

    def take(self, result: GateResult, rounds: int) -> GateResult:
        """Return an analysis's result with what earlier ones decided, and keep what it decides."""
        rows = {_place(row): row for row in result.rows}
        lost = {row.place for row in result.rows if row.failed}
        for place, earlier in self.decided.items():
            still_there = place in rows and earlier.place not in lost
            if still_there or earlier.verdict == "regressed":
                rows[place] = earlier
        self.decided.update({p: row for p, row in rows.items() if not result.is_open(row)})
        self.after.append(rounds)
        return replace(result, rows=tuple(rows.values()))


def until_decided(
    interleaved: InterleavedRuns,
    rounds: int,
    judge: Judge,
    budget_s: float,
    fewest: int | None = None,
) -> GateResult:
    """Measure, judge, and measure again what is open, twice as often, while there is time.

    ``rounds`` come before the first analysis; ``fewest`` of them are made whatever the budget,
    None: all. A round that would likely end after ``budget_s`` seconds does not begin.

    Returns:
        The last analysis's verdicts, with the earlier ones on what was decided earlier. A run that
        cannot be made ends it; the first analysis's rounds raise what they raise.
    """
    analyses = _InterimAnalyses()
    for number in range(rounds):
        if number < (fewest or rounds) or _has_time(interleaved, budget_s):
            interleaved.measure(rounds)
    rounds = len(interleaved.round_s)
    result = analyses.take(judge(*interleaved.results(), analyses.error_budget()), rounds)
    while _open_rows(result) and _measure_more(
        interleaved, _only_open(result, interleaved), budget_s, analyses
    ):
        result = analyses.take(
            judge(*interleaved.results(), analyses.error_budget()), len(interleaved.round_s)
        )
    return replace(result, notes=(*result.notes, _note(analyses, result, budget_s)))


def _measure_more(
    interleaved: InterleavedRuns, only: Sequence[str], budget_s: float, analyses: _InterimAnalyses
) -> bool:
    """Make as many rounds again as there are, as far as the time reaches; tell whether any."""
    before = len(interleaved.round_s)
    while (
        not analyses.ended
        and len(interleaved.round_s) < 2 * before
        and _has_time(interleaved, budget_s)
    ):
        try:
            interleaved.measure(2 * before, only)
        except ScalebenchError as error:
            analyses.ended = str(error)
    return len(interleaved.round_s) > before


def _has_time(interleaved: InterleavedRuns, budget_s: float) -> bool:
    """Tell whether a round as long as the last one ends within the budget."""
    return sum(interleaved.round_s) + interleaved.round_s[-1] <= budget_s


def _place(row: RowVerdict) -> _Place:
    return (*row.place, row.metric)


def _open_rows(result: GateResult) -> list[RowVerdict]:
    return [row for row in result.rows if result.is_open(row)]


def _only_open(result: GateResult, interleaved: InterleavedRuns) -> list[str]:
    """Return the names of the rows in which something is open.

    The plain models on one rank stay where something of their suite is open: efficiency is formed
    with them, and within a round.
    """
    wanted = dict.fromkeys(row.place for row in _open_rows(result))
    suites = {suite for suite, _, _ in wanted}
    for row in interleaved.results()[1].rows:
        if row.suite in suites and row.strategy == "plain" and row.world_size == 1:
            wanted[row.suite, row.case, row.world_size] = None
    return [row_name(*place) for place in wanted]


def _note(analyses: _InterimAnalyses, result: GateResult, budget_s: float) -> str:
    num = len(analyses.after)
    after = ", ".join(map(str, analyses.after))
    times = f"{num} interim {'analysis' if num == 1 else 'analyses'}, after {after} rounds"
    note = f"{times}; each has half the error rate of the one before"
    left = len(_open_rows(result))
    if not left:
        return note
    why = analyses.ended or f"{budget_s / 60:.3g} min had passed"
    return f"{note}; {left} row{'' if left == 1 else 's'} undecided at the end: {why}"
