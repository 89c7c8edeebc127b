"""What there is: suites, strategies, workloads, launchers, runs; and what cannot run, and why."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalebench.analysis.run import load_run
from scalebench.errors import UsageError
from scalebench.launch.submission import LAUNCHERS
from scalebench.records.folder import find_runs
from scalebench.records.paths import default_runs_folder
from scalebench.report.words.wording import settings_label
from scalebench.session.plan.prepare import why_missing
from scalebench.session.suites import (
    hides_bundled,
    load_suite,
    own_suites,
    read_question,
    suite_files,
)
from scalebench.spec import STRATEGIES, Case, FromFramework, Suite
from scalebench.spec.presets import PRESETS

ADAM_BYTES_PER_PARAMETER = 16


def take_inventory(
    survey: Mapping[str, Any],
    cannot_run: Mapping[str, str | None] | None = None,
    kinds: Sequence[str] = (),
) -> dict[str, list[dict[str, Any]]]:
    """Return the lists by kind; each entry has ``name``, ``about``, and ``cannot_run`` or None.

    ``survey``: what torch says of the machine; of suites, launchers and runs alone: anything.
    ``cannot_run``: launcher → why it cannot run here. No ``kinds``: all.
    """
    takes: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "suites": lambda: [_suite(name) for name in sorted(suite_files())],
        "strategies": lambda: _strategies(survey),
        "workloads": lambda: [_workload(name, survey) for name in PRESETS],
        "launchers": lambda: _launchers(cannot_run or {}),
        "runs": lambda: [_run(path.name) for path in find_runs(default_runs_folder())],
    }
    return {kind: takes[kind]() for kind in kinds or takes}


def _launchers(cannot_run: Mapping[str, str | None]) -> list[dict[str, Any]]:
    others = "the processes that torchrun, srun or mpirun has started, on any machines"
    return [
        *(_entry(name, offer.about, cannot_run.get(name)) for name, offer in LAUNCHERS.items()),
        _entry("external", others, cannot_run.get("external")),
    ]


def _entry(name: str, about: str, cannot_run: str | None = None) -> dict[str, Any]:
    return {"name": name, "about": about, "cannot_run": cannot_run}


def _suite(name: str) -> dict[str, Any]:
    """Describe a suite; one of ./suites without executing it: no one has asked to run its code."""
    own = own_suites().get(name)
    if own is not None:
        return _own_suite(name, own) | {"file": str(own), "hides_bundled": hides_bundled(name)}
    try:
        suite = load_suite(name)
    except UsageError as error:
        return _entry(name, "", str(error))
    return _entry(name, suite.question) | {"cases": _cases(suite)}


def _own_suite(name: str, path: Path) -> dict[str, Any]:
    try:
        return _entry(name, read_question(path))
    except UsageError as error:
        return _entry(name, "", str(error))


def _cases(suite: Suite) -> list[dict[str, Any]]:
    return [
        {"name": case.name, "optional": case.optional, "about": describe(case)}
        for case in suite.cases
    ]


def describe(case: Case) -> str:
    """Describe a case in one line: its strategy, and what differs from the suite's defaults."""
    strategy = case.strategy.model_dump(exclude={"kind"})
    parts = [settings_label(case.strategy.kind, strategy)]
    if case.workload is not None:
        parts.append(f"workload {case.workload}")
    if case.batch_size is not None:
        parts.append(f"batch {case.batch_size}")
    if case.recipe is not None:
        parts.append(f"{case.recipe.optimizer} at {case.recipe.learning_rate:g}")
    if case.loader is not None:
        workers = case.loader.num_workers
        where = f"{workers} worker process{'es' * (workers > 1)}" if workers else "the rank itself"
        parts.append(f"batches loaded by {where}")
    return ", ".join(parts)


def _strategies(survey: Mapping[str, Any]) -> list[dict[str, Any]]:
    about = {kind: strategy.about for kind, strategy in STRATEGIES.items()}
    return [_entry(name, about.get(name, ""), _why_not_here(name)) for name in survey["strategies"]]


def _why_not_here(kind: str) -> str | None:
    """Say which framework a strategy lacks here, and how to install it; None: none."""
    strategy = STRATEGIES.get(kind)
    if strategy is None or not issubclass(strategy, FromFramework):
        return None
    return why_missing(strategy())


def _workload(name: str, survey: Mapping[str, Any]) -> dict[str, Any]:
    shape = PRESETS[name]
    needed = shape.num_parameters * ADAM_BYTES_PER_PARAMETER
    there = [device["memory_bytes"] for device in survey["devices"]]
    too_large = there and max(there) < needed
    reason = (
        f"training state of {needed / 1e9:.0f} GB exceeds the largest device's "
        f"{max(there) / 1e9:.0f} GB"
        if too_large
        else None
    )
    entry = _entry(name, f"{shape.kind}, default batch {shape.batch_size}", reason)
    return entry | {"num_parameters": shape.num_parameters}


def _run(name: str) -> dict[str, Any]:
    try:
        stored = load_run(default_runs_folder() / name)
    except UsageError as error:
        return _entry(name, "", str(error))
    done, planned = len(stored.results), len(stored.info.plan)
    return _entry(name, f"{stored.info.status}, {done} of {planned} launches")
