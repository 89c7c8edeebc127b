"""How long a launch of a user's script took in an earlier run: it tells how long a run takes."""

from collections.abc import Sequence
from pathlib import Path

from scalebench.analysis.run import load_run
from scalebench.errors import ScalebenchError
from scalebench.records.folder import find_runs
from scalebench.spec import Suite
from scalebench.spec.script import ScriptTarget

MOST_RUNS = 20
"""So many of the newest runs are looked at."""


def seconds_of_a_launch(suites: Sequence[Suite], runs: Path) -> float | None:
    """Return what a launch of the suites' script took in the newest run of it, seconds.

    Args:
        suites: Of the run that is planned.
        runs: The folder of earlier runs.

    Returns:
        None: there is no script, or no run of it.
    """
    wanted = next((suite.script for suite in suites if suite.script is not None), None)
    if wanted is None or not runs.is_dir():
        return None
    for root in list(reversed(find_runs(runs)))[:MOST_RUNS]:
        try:
            results = load_run(root).results.values()
        except (ScalebenchError, OSError):
            continue
        found = [r.wall_s for r in results if _is_of(r.cell.workload, wanted) and r.wall_s]
        if found:
            return sum(found) / len(found)
    return None


def _is_of(workload: object, wanted: ScriptTarget) -> bool:
    """Tell whether a launch was one of the same program, whatever its arguments."""
    if not isinstance(workload, ScriptTarget):
        return False
    return (workload.program, workload.module) == (wanted.program, wanted.module)
