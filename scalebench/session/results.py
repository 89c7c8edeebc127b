"""The Python door to what was measured: runs, comparisons and traces, as a notebook shows them.

`load`, `compare`, `gate` and `trace` are ``scalebench show``, ``compare``, ``gate`` and ``trace``
for programs: each returns what the command prints, and shows itself as the command prints it.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from scalebench.errors import UsageError
from scalebench.gate.gate import compare as compare_results
from scalebench.gate.metrics import GateSettings, gate_settings
from scalebench.gate.result import EXIT_CODES, GateResult
from scalebench.gate.results import Results
from scalebench.records.paths import baselines_folder, config_file, resolve_run
from scalebench.session.interleaved.ab_runs import read_results

if TYPE_CHECKING:
    import pandas as pd

    from scalebench.session.storing.finish import Run
    from scalebench.trace.files.reading import Window
    from scalebench.trace.job import JobFigures

Named: TypeAlias = "str | Path | Run"
"""A run as programs name it: a run folder, a run below reports/, or the run itself."""


class Shown:
    """What prints, and is shown in a notebook, as its command prints it."""

    def _render(self, width: int, color: bool, ascii_only: bool) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return self._render(100, False, False)

    def __repr__(self) -> str:
        lines = filter(None, map(str.strip, str(self).splitlines()))
        return f"<{type(self).__name__}: {next(lines)}>"

    def _repr_html_(self) -> str:
        from scalebench.report.notebook import terminal_html

        return terminal_html(self._render(100, True, False))


@dataclass(frozen=True, repr=False)
class Verdicts(Shown, GateResult):
    """What `compare` and `gate` return: the verdicts of ``scalebench gate``."""

    def __repr__(self) -> str:
        return f"<Verdicts {self.base} → {self.new}: {self.verdict}, {len(self.rows)} compared>"

    def _render(self, width: int, color: bool, ascii_only: bool) -> str:
        from scalebench.report.gate_table import render_verdict
        from scalebench.report.tables.layout import Screen

        return render_verdict(self, Screen(width, color, ascii_only))

    def frame(self) -> "pd.DataFrame":
        """Return one line for each case, size and metric; columns as in ``gate --json``."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])


@dataclass(frozen=True, repr=False)
class Traces(Shown):
    """What `trace` returns.

    Attributes:
        job: The figures of all ranks.
    """

    job: "JobFigures"

    def _render(self, width: int, color: bool, ascii_only: bool) -> str:
        from scalebench.report.tables.layout import Screen
        from scalebench.report.tables.traces import render_traces

        return render_traces(self.job, Screen(width, color, ascii_only))

    def as_json(self) -> dict[str, Any]:
        """Return what ``scalebench trace --json`` prints."""
        from scalebench.trace.job import as_json

        return as_json(self.job)

    def frame(self) -> "pd.DataFrame":
        """Return one line for each file; columns as in ``scalebench trace --json``, seconds."""
        import pandas as pd

        return pd.DataFrame(self.as_json()["files"])

    def report(self, path: str | Path) -> Path:
        """Write the page of ``scalebench trace --html``; return its path."""
        from scalebench.records.files import write_atomic
        from scalebench.report.page.other_pages import render_trace_page

        write_atomic(Path(path), render_trace_page(self.job))
        return Path(path)


def load(run: "Named | None" = None) -> "Run":
    """Return a run that is stored.

    Args:
        run: A run folder, or the name of one below ``reports/``; None: the newest.

    Raises:
        UsageError: There is none, or it is damaged.
    """
    from scalebench.analysis.run import load_run
    from scalebench.analysis.summarise import summarise
    from scalebench.session.storing.finish import Run

    if isinstance(run, Run):
        return run
    stored = load_run(resolve_run(None if run is None else str(run)))
    return Run(stored.paths, summarise(stored))


def results_of(name: "Named | None") -> Results:
    """Return what a user named: a path, a run or a baseline below reports/; None: the newest run.

    Raises:
        UsageError: There is nothing of that name, or it is damaged.
    """
    if name is not None and not isinstance(name, str | Path):
        return Results(str(name.paths.root), (name.summary,))
    path = resolve_run(None if name is None else str(name))
    if name is not None and not path.exists() and (baselines_folder() / name).exists():
        path = baselines_folder() / name
    return read_results(path)


def settings_here(exact_only: bool = False) -> GateSettings:
    """Return the settings of the gate in this folder's configuration.

    Raises:
        UsageError: They are not valid.
    """
    found = config_file()
    table: Any = found[1].get("gate", {}) if found else {}
    settings = gate_settings(table, str(found[0])) if found else GateSettings()
    return settings.only_exact() if exact_only else settings


def baseline_for(name: "Named | None", new: Results) -> Results:
    """Return the baseline of this name; None: the one accepted for the machine of a run.

    Raises:
        UsageError: There is none.
    """
    from scalebench.gate.baselines import machine_name

    if name is not None:
        return results_of(name)
    folder = baselines_folder() / machine_name(new.summaries[0].environment)
    if not folder.is_dir():
        raise UsageError(
            f"There is no baseline for this machine: no {folder}. Name one with --baseline, or "
            "make one with `scalebench baseline accept RUN`."
        )
    return results_of(str(folder))


def compare(
    base: "Named",
    new: "Named | None" = None,
    *,
    exact_only: bool = False,
    allow_mismatch: Sequence[str] = (),
) -> Verdicts:
    """Compare a run with an earlier one, as ``scalebench compare``: its exit code is always 0.

    Args:
        base: The earlier run, a ``summary.json``, or a folder of accepted baselines.
        new: The run; None: the newest.
        exact_only: Judge only counts, bytes and predictions.
        allow_mismatch: Properties that may differ, for example ``torch``.

    Raises:
        UsageError: There is no such run, or it is damaged.
    """
    result = _compared(results_of(base), results_of(new), exact_only, allow_mismatch)
    return _verdicts(result, let_pass=tuple(EXIT_CODES))


def gate(
    new: "Named | None" = None,
    baseline: "Named | None" = None,
    *,
    need: float | None = None,
    exact_only: bool = False,
    allow_mismatch: Sequence[str] = (),
) -> Verdicts:
    """Judge a run by a baseline, as ``scalebench gate``: see ``verdict`` and ``exit_code``.

    Args:
        new: The run; None: the newest.
        baseline: What it is judged by; None: the baseline accepted for its machine.
        need: The slowdown that has to be found where there is one, a ratio; None: none.
        exact_only: Judge only counts, bytes and predictions.
        allow_mismatch: Properties that may differ, for example ``torch``.

    Raises:
        UsageError: There is no such run or baseline, or it is damaged.
    """
    measured = results_of(new)
    result = _compared(baseline_for(baseline, measured), measured, exact_only, allow_mismatch)
    return _verdicts(result, need=need)


def _compared(base: Results, new: Results, exact_only: bool, allowed: Sequence[str]) -> GateResult:
    return compare_results(base, new, settings_here(exact_only), allowed)


def _verdicts(result: GateResult, **changes: Any) -> Verdicts:
    return Verdicts(**vars(result) | changes)


def trace(
    files: str | Path | Sequence[str | Path],
    *,
    window: "Window" = "file",
    communication: str | None = None,
) -> Traces:
    """Analyse the Kineto traces of one job, as ``scalebench trace``.

    Args:
        files: A trace, a folder of them, or several of both: one file for each rank.
        window: The whole ``file``, or only complete profiler ``steps``.
        communication: Expression; GPU kernels in whose name it is found communicate.

    Raises:
        UsageError: None of the files can be used.
    """
    from scalebench.trace.job import analyse_job

    given = [files] if isinstance(files, str | Path) else files
    pattern = None if communication is None else re.compile(communication)
    return Traces(analyse_job(given, window, pattern))
