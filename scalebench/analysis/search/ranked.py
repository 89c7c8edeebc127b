"""From a ranking to a result: intervals, probability, the sentence, and what can be run."""

from typing import Any

from scalebench.analysis.search.result import RankedChoice, SearchResult
from scalebench.analysis.search.scores import Scores
from scalebench.costmodel.search.certainty import interval, probability_fastest
from scalebench.costmodel.search.choice import Choice, choices
from scalebench.costmodel.search.job import Job
from scalebench.costmodel.search.ranking import Ranking
from scalebench.costmodel.search.reasons import why_faster
from scalebench.costmodel.search.space import refused_meshes
from scalebench.costmodel.search.strategies import strategy_of
from scalebench.spec import Execution

PUBLISHED_ERROR = 0.147
"""Worst of the errors that the papers of such models state end to end (Bang et al. 2024, vTrain:
8.4 to 14.7 %); it stands in where nothing here could be compared with a measurement."""


def result_of(
    job: Job,
    ranking: Ranking,
    scores: Scores,
    margin_told: str,
    assumptions: tuple[str, ...],
    took_s: float,
) -> SearchResult:
    """Return a ranking as a result.

    Args:
        job: What was searched.
        ranking: At least one configuration fits.
        scores: Of the models on this machine.
        margin_told: Where the margin of memory is from.
        assumptions: What else is taken for granted.
        took_s: The search, seconds.
    """
    error = scores.error if scores.error is not None else PUBLISHED_ERROR
    best = [_ranked(job, one, error) for one in choices(job, ranking.best)]
    steps = _of_meshes(choices(job, ranking.ways))
    told = (
        f"of {scores.num_steps} measured rows of several ranks on this machine"
        if scores.error is not None
        else "nothing here was compared with a measurement: the worst that the paper of a similar "
        "model states (vTrain, 2024)"
    )
    rejected = [_ranked(job, one, error) for one in choices(job, ranking.rejected)]
    return SearchResult(
        workload=job.model.name,
        num_parameters=job.model.num_parameters,
        world_size=job.world_size,
        global_batch=job.batch,
        device=job.device,
        memory_limit_bytes=job.memory_limit_bytes,
        margin=job.margin,
        margin_told=margin_told,
        assumptions=assumptions,
        num_candidates=ranking.num_candidates,
        num_meshes=ranking.num_meshes,
        refused_meshes=refused_meshes(job),
        num_fitting=ranking.num_fitting,
        num_evaluated=ranking.num_evaluated,
        error=error,
        error_told=told,
        probability=probability_fastest(steps, error),
        why=why_faster(best[0], best[1]) if len(best) > 1 else "There is no other that fits.",
        best=tuple(best),
        trained=tuple(_ranked(job, one, error) for one in choices(job, ranking.trained)),
        front=tuple(_ranked(job, one, error) for one in choices(job, ranking.front)),
        rejected=next((one for one in rejected if one.strategy is not None), None)
        or next(iter(rejected), None),
        scores=scores,
        took_s=took_s,
    )


def _of_meshes(ways: list[Choice]) -> list[float]:
    """Return the best step of each mesh, whatever its stage, the fastest first."""
    found: dict[tuple[int, ...], float] = {}
    for one in ways:
        found.setdefault(one.mesh[:-1], one.step_s)
    return list(found.values())


def _ranked(job: Job, one: Choice, error: float) -> RankedChoice:
    reach = interval(one.step_s, error)
    strategy = strategy_of(one, job.device, job.world_size, job.batch, job.model.experts)
    runs = None if isinstance(strategy, str) else _settings(strategy)
    return RankedChoice(
        **one.model_dump(),
        case=one.name,
        low_s=reach[0] if reach else None,
        high_s=reach[1] if reach else None,
        strategy=runs,
        cannot_run=strategy if isinstance(strategy, str) else None,
    )


def _settings(strategy: Execution) -> dict[str, Any]:
    """Return a strategy's kind, and its fields that are not the default."""
    return {"kind": strategy.model_dump()["kind"]} | strategy.model_dump(exclude_defaults=True)
