"""What a search does on this machine: train what it chose, and write it down as a suite."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalebench.errors import EnvironmentUnfit
from scalebench.machine import fingerprint
from scalebench.records.summary import Row
from scalebench.report.words.terms import plain
from scalebench.search.result import Experiment, MeasuredChoice, RankedChoice, SearchResult
from scalebench.search.scores import typical_error
from scalebench.session.machine.survey import refusal, survey_machine
from scalebench.session.storing.finish import Run
from scalebench.spec import STRATEGIES, Case, Device, Plain, StepPlan, Suite
from scalebench.units import bytes_, seconds

STEPS = StepPlan(window_s=0.4, min_steps=4, max_warmup_s=10.0, long_step_s=1.0, trace=False)
SEED = 0


def picked(result: SearchResult, wanted: int) -> list[tuple[str, RankedChoice]]:
    """Return what is trained and why: the best that can run here, one by lot, one that is rejected.

    Raises:
        EnvironmentUnfit: None of the best can run here.
    """
    runs = result.trained
    best = [("best", one) for one in runs[:wanted]]
    if not best:
        why = "; ".join(dict.fromkeys(one.cannot_run or "" for one in result.best))
        raise EnvironmentUnfit(f"--measure: none of the best can be trained here: {why}.")
    others = [one for one in (*runs[wanted:], *result.front) if one.strategy is not None]
    others = [one for one in others if one.case not in {c.case for _, c in best}]
    if others:
        best.append(("random", random.Random(SEED).choice(others)))
    if result.rejected is not None and result.rejected.strategy is not None:
        best.append(("rejected", result.rejected))
    return best


def suite_of(result: SearchResult, chosen: Sequence[RankedChoice], steps: StepPlan) -> Suite:
    """Return the suite that trains choices, with the plain model as the baseline."""
    from pydantic import TypeAdapter

    from scalebench.spec import Strategy

    adapter: TypeAdapter[Strategy] = TypeAdapter(Strategy)
    cases = {
        one.case: Case(name=one.case, strategy=adapter.validate_python(one.strategy))
        for one in chosen
        if one.strategy is not None
    }
    return Suite(
        name="search",
        question=f"Is the search's choice for {result.workload} on {result.world_size} ranks the "
        "fastest?",
        cases=(Case(name="plain", strategy=Plain()), *cases.values()),
        workload=result.workload,
        batch_size=result.global_batch,
        steps=steps,
        repeats=1,
    )


def experiment(
    result: SearchResult, chosen: Sequence[tuple[str, RankedChoice]], run: Run
) -> Experiment:
    """Return what the measurement says of the search."""
    rows = {r.case: r for r in run.summary.rows if r.world_size == result.world_size}
    limit = result.memory_limit_bytes
    told = tuple(_measured(why, one, rows.get(one.case), limit) for why, one in chosen)
    done = [row for row in told if row.measured_s is not None and row.picked != "rejected"]
    measured = [row.measured_s or 0.0 for row in done]
    first = told[0].measured_s
    rank = None
    if len(done) >= 3:
        from scipy.stats import spearmanr

        found = float(spearmanr([row.predicted_s for row in done], measured).statistic)
        rank = None if math.isnan(found) else found
    return Experiment(
        run=str(run.paths.root),
        rows=told,
        rank_correlation=rank,
        regret=first / min(measured) if first is not None and measured else None,
        error=typical_error([row.predicted_s for row in done], measured),
    )


def _measured(why: str, one: RankedChoice, row: Row | None, limit: int | None) -> MeasuredChoice:
    step = row.step_s.value if row is not None and row.status == "ok" and row.step_s else None
    reason = None
    if step is None:
        reason = "it was not run" if row is None else row.reason or row.status
    peak = row.peak_memory_bytes if row is not None else None
    fits = None if peak is None or limit is None else peak <= limit
    if row is not None and row.status == "oom":
        fits = False
    return MeasuredChoice(
        case=one.case,
        picked=why,
        predicted_s=one.step_s,
        measured_s=step,
        predicted_bytes=one.memory_bytes,
        measured_bytes=peak,
        reason=reason,
        fits=fits,
    )


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


def device_here() -> Device:
    """Return cuda where there is such a device, as `survey_machine` has it.

    Raises:
        EnvironmentUnfit: There are devices that cannot be used, and the user has not hidden them.
    """
    facts = fingerprint(survey_machine())
    unusable = refusal(facts, "CUDA_VISIBLE_DEVICES= in the environment")
    if unusable is not None:
        raise EnvironmentUnfit(unusable)
    return "cuda" if facts["devices"] else "cpu"
