"""What a gate is given: summaries, run folders or CI results, read alike."""

from pathlib import Path

from scalebench.analysis.run import load_run
from scalebench.errors import UsageError
from scalebench.gate.baselines import checked, read_summary
from scalebench.gate.results import Results
from scalebench.records.files import read_model
from scalebench.records.folder import is_run_folder
from scalebench.records.paths import RunPaths, further_baselines
from scalebench.records.run import RunInfo
from scalebench.records.summary import Summary


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
