"""The experiment: train the best configurations, a random one and one that does not fit."""

import math
import random
from collections.abc import Sequence

from scipy.stats import spearmanr

from scalebench.analysis.search.result import Experiment, MeasuredChoice, RankedChoice, SearchResult
from scalebench.costmodel.search.certainty import typical_error
from scalebench.errors import EnvironmentUnfit
from scalebench.records.summary import Row
from scalebench.session.storing.finish import Run
from scalebench.spec import Case, Plain, StepPlan, Suite

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
