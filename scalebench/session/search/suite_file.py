"""A suite of the best configurations, as a file that ``run`` takes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalebench.analysis.search.result import RankedChoice, SearchResult
from scalebench.errors import EnvironmentUnfit
from scalebench.report.words.plain_text import plain
from scalebench.spec import STRATEGIES
from scalebench.units import bytes_, seconds


def write_suite(target: Path, result: SearchResult) -> list[str]:
    """Write the best that scalebench trains as a suite; return which better ones it passes over.

    Raises:
        EnvironmentUnfit: None can be trained, or the file cannot be written.
    """
    left_out = [
        f"{one.case} is not in {target}: {one.cannot_run}{_instead(one, result.trained)}"
        for one in result.best
        if one.strategy is None
    ]
    if not result.trained:
        raise EnvironmentUnfit(f"No suite was written. {left_out[0]}.")
    try:
        target.write_text(_text(result), encoding="utf-8")
    except OSError as error:
        raise EnvironmentUnfit(
            f"The suite cannot be written: {target}: {error.strerror}."
        ) from error
    return left_out


def _instead(passed: RankedChoice, trained: Sequence[RankedChoice]) -> str:
    """Say which case of the suite has the same mesh and ZeRO stage."""
    same = next((one for one in trained if one.mesh == passed.mesh), None)
    return f"; {same.case} stands for its mesh" if same is not None else ""


def _text(result: SearchResult) -> str:
    runs = result.trained
    classes = sorted({"Plain", *(STRATEGIES[_kind(one)].__name__ for one in runs)})
    imports = ", ".join(sorted(["Case", "Suite", *classes]))
    cases = "".join(
        f"        # predicted {seconds(one.step_s)} a step, {bytes_(one.memory_bytes)} a rank\n"
        f"        Case(name={one.case!r}, strategy={_call(one)}),\n"
        for one in runs
    )
    return (
        f"# The best of a search: {plain(result.workload)}, {result.world_size} ranks.\n\n"
        f"from scalebench import {imports}\n\n"
        "SUITE = Suite(\n"
        '    name="search",\n'
        '    question="Is the configuration that the search put first the fastest?",\n'
        "    cases=(\n"
        '        Case(name="plain", strategy=Plain()),\n'
        f"{cases}"
        "    ),\n"
        f"    workload={result.workload!r},\n"
        f"    batch_size={result.global_batch},\n"
        ")\n"
    )


def _kind(one: RankedChoice) -> str:
    return str((one.strategy or {})["kind"])


def _call(one: RankedChoice) -> str:
    given: dict[str, Any] = {k: v for k, v in (one.strategy or {}).items() if k != "kind"}
    inside = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return f"{STRATEGIES[_kind(one)].__name__}({inside})"
