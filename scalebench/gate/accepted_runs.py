"""Which of several accepted runs count together: same machine, same software, same row."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from scalebench.gate.fingerprint import environment_mismatches, row_mismatches
from scalebench.gate.results import Results
from scalebench.records.baseline import key_of
from scalebench.records.summary import Row, Summary


def usable(base: Results, new: Results) -> tuple[Results, list[str]]:
    """Return the baseline with the accepted runs that count, and a note on each that does not.

    A further run counts where its machine and software are those of the suite's first one, and
    where it is not the new run itself.
    """
    kept, notes = [], []
    judged = {summary.run_id for summary in new.summaries}
    for run in base.repeats:
        why = "it is the new run" if run.run_id in judged else _differs(run, base.summaries)
        if why:
            notes.append(f"accepted run {run.run_id} is left out: {why}")
        else:
            kept.append(run)
    return replace(base, repeats=tuple(kept)), notes


def _differs(run: Summary, firsts: Sequence[Summary]) -> str:
    """Say in what a run differs from the first one of its suites; empty: in nothing."""
    suites = {row.suite for row in run.rows}
    for first in firsts:
        if suites & {row.suite for row in first.rows}:
            found = environment_mismatches(first.environment, run.environment, ())
            if found:
                return f"{found[0].name} was {found[0].base} and is {found[0].new}"
    return ""


def further_runs(row: Row, base: Results) -> Iterator[tuple[Row, list[Row]]]:
    """Yield a row of the baseline as further accepted runs have it, each with its run's rows.

    A run in which the row failed, or was specified differently, is passed over.
    """
    for run in base.repeats:
        found = next((other for other in run.rows if key_of(other) == key_of(row)), None)
        if found is not None and found.status == "ok" and not row_mismatches(row, found, ()):
            yield found, run.rows
