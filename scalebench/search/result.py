"""What a search came to, as a table, a page and JSON have it, with its reasons in sentences."""

import math
from typing import Any

from scalebench import units
from scalebench.search.choice import Choice, choices, strategy_of
from scalebench.search.devices.fit import ENOUGH, SHIPPED
from scalebench.search.prediction.step import PARTS
from scalebench.search.ranking import Ranking, first_to_try
from scalebench.search.scores import Z90, Scores, probability_fastest
from scalebench.search.space import Job, refused_meshes
from scalebench.spec import Execution
from scalebench.spec.base import Record

FORMAT = "scalebench.search/1"


class RankedChoice(Choice):
    """A choice with its interval, and how it can be run.

    Attributes:
        name: Of its case in a suite.
        low_s: Lower end of the 90 % interval of the step; null: no error of the model is known.
        high_s: Upper end.
        strategy: What runs it here, as suites have it; null: see ``cannot_run``.
        cannot_run: Why no strategy of scalebench trains it; null: one does.
    """

    case: str
    low_s: float | None = None
    high_s: float | None = None
    strategy: dict[str, Any] | None = None
    cannot_run: str | None = None


class MeasuredChoice(Record):
    """A choice that was trained.

    Attributes:
        picked: ``best``, ``random`` or ``rejected``: why it was trained.
        measured_s: Its step; null: see ``reason``.
        fits: Whether it stayed below the memory limit: its measured peak, or that it ran out of
            memory; null: there is no limit, or no peak was measured.
    """

    case: str
    picked: str
    predicted_s: float
    measured_s: float | None
    predicted_bytes: float
    measured_bytes: int | None
    reason: str | None = None
    fits: bool | None = None


class Experiment(Record):
    """The choices that were trained, and what that says of the search.

    Attributes:
        run: Folder of the run.
        rank_correlation: Spearman's, of predicted and measured steps; null: fewer than 3.
        regret: Measured step of the first choice over the fastest measured one; 1: it is that.
        error: Root mean square of ``ln(predicted/measured)`` of the steps.
    """

    run: str
    rows: tuple[MeasuredChoice, ...]
    rank_correlation: float | None
    regret: float | None
    error: float | None


class SearchResult(Record):
    """A search.

    Attributes:
        assumptions: What the prediction rests on, in words.
        num_candidates: Configurations of the space.
        num_meshes: Their meshes.
        refused_meshes: Why meshes are not in the space → how many.
        num_fitting: Whose memory, with the margin, is below the limit.
        num_evaluated: Whose step was predicted; of the other fitting ones a bound was enough.
        error: Root mean square of ``ln(predicted/measured)``; null: nothing was compared.
        error_told: Where that is from.
        probability: That the mesh of the first is the fastest; null: no error is known.
        why: Why the first beats the second, one sentence.
        best: The fastest of each mesh and ZeRO stage.
        first_to_try: Place in ``best`` of the simplest that is about as fast as the first.
        trained: As ``best``, of what a strategy of scalebench trains: the fastest such way of each
            mesh and ZeRO stage.
        front: Least memory first, least time last.
        rejected: Of what does not fit, the one that needs least memory and can be trained; null:
            all fit.
        scores: What the models were compared with on this machine.
        took_s: The search alone, seconds.
    """

    format: str = FORMAT
    workload: str
    num_parameters: int
    world_size: int
    global_batch: int
    device: str
    memory_limit_bytes: int | None
    margin: float
    margin_told: str
    assumptions: tuple[str, ...]
    num_candidates: int
    num_meshes: int
    refused_meshes: dict[str, int]
    num_fitting: int
    num_evaluated: int
    error: float | None
    error_told: str
    probability: float | None
    why: str
    best: tuple[RankedChoice, ...]
    first_to_try: int = 0
    trained: tuple[RankedChoice, ...] = ()
    front: tuple[RankedChoice, ...]
    rejected: RankedChoice | None
    scores: Scores
    took_s: float
    measured: Experiment | None = None


def result_of(
    job: Job,
    ranking: Ranking,
    scores: Scores,
    margin_text: str,
    assumptions: tuple[str, ...],
    took_s: float,
    spread: tuple[float, float] = SHIPPED[0],
    num_rows: int = 0,
) -> SearchResult:
    """Return a ranking as a result.

    Args:
        job: What was searched.
        ranking: At least one configuration fits.
        scores: Of the models on this machine.
        margin_text: Where the margin of memory is from.
        assumptions: What else is taken for granted.
        took_s: The search, seconds.
        spread: Ends of the 90 % interval of ln(measured/predicted) where nothing here was compared.
        num_rows: Measured rows that it is from; 0: published ones.
    """
    error = scores.error
    if error is None:
        error = (spread[1] - spread[0]) / 2 / Z90
    else:
        spread = (-Z90 * error, Z90 * error)
    best = [_ranked(job, one, spread) for one in choices(job, ranking.best)]
    steps = _of_meshes(choices(job, ranking.ways))
    told = "nothing here was compared with a measurement: as far as on published ones"
    if scores.error is not None:
        told = f"of {scores.num_steps} measured rows of several ranks on this machine"
    elif num_rows >= ENOUGH:
        told = f"of {num_rows} measured rows, each predicted from the others"
    elif num_rows:
        told = f"of published rows, as {num_rows} measured ones are too few"
    rejected = [_ranked(job, one, spread) for one in choices(job, ranking.rejected)]
    return SearchResult(
        workload=job.model.name,
        num_parameters=job.model.num_parameters,
        world_size=job.world_size,
        global_batch=job.batch,
        device=job.device,
        memory_limit_bytes=job.memory_limit_bytes,
        margin=job.margin,
        margin_told=margin_text,
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
        first_to_try=first_to_try(ranking.best.step_s, ranking.best.candidates.pipeline),
        trained=tuple(_ranked(job, one, spread) for one in choices(job, ranking.trained)),
        front=tuple(_ranked(job, one, spread) for one in choices(job, ranking.front)),
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


def _ranked(job: Job, one: Choice, spread: tuple[float, float]) -> RankedChoice:
    low_s, high_s = (one.step_s * math.exp(end) for end in spread)
    strategy = strategy_of(one, job.device, job.world_size, job.batch, job.model.experts)
    runs = None if isinstance(strategy, str) else _settings(strategy)
    return RankedChoice(
        **one.model_dump(),
        case=one.name,
        low_s=low_s,
        high_s=high_s,
        strategy=runs,
        cannot_run=strategy if isinstance(strategy, str) else None,
    )


def _settings(strategy: Execution) -> dict[str, Any]:
    """Return a strategy's kind, and its fields that are not the default."""
    return {"kind": strategy.model_dump()["kind"]} | strategy.model_dump(exclude_defaults=True)


NOT_TOLD = 0.1
"""Of a difference: what its named parts may leave."""


def why_faster(first: Choice, second: Choice) -> str:
    """Return in one sentence in which parts of the step the first gains on the second."""
    gains = {part: second.parts_s[part] - first.parts_s[part] for part in PARTS}
    total = second.step_s - first.step_s
    if total <= 0:
        return (
            f"{first.mesh_words} and {second.mesh_words} take equally long by the model; the first "
            "recomputes less or needs less memory."
        )
    told: dict[str, float] = {}
    for part in sorted(gains, key=lambda part: -abs(gains[part])):
        told[part] = gains[part]
        if abs(sum(told.values()) - total) <= NOT_TOLD * total:
            break
    both = [
        " and ".join(
            f"{units.seconds(abs(gain))} {word} on {PARTS[part]}"
            for part, gain in told.items()
            if (gain > 0) == (word == "less")
        )
        for word in ("less", "more")
    ]
    return (
        f"{first.mesh_words} is {units.seconds(total)} ({100 * total / first.step_s:.2g} %) faster "
        f"than {second.mesh_words}: it spends {', and '.join(filter(None, both))}."
    )


def what_would_fit(job: Job, smallest_bytes: float, least: Choice | None, ranks: int | None) -> str:
    """Return why no configuration fits and the cheapest change that would make one fit.

    Args:
        job: What was searched.
        smallest_bytes: The least predicted memory of all, without margin.
        least: The configuration that needs it.
        ranks: The least multiple of N, a power of two, that is enough; None: none is.
    """
    limit = job.memory_limit_bytes or 0
    needed = smallest_bytes * (1 + job.margin)
    how = f" ({least.mesh_words}, {least.how_words})" if least is not None else ""
    said = (
        f"{job.model.name} fits nowhere: of all configurations the smallest{how} needs "
        f"{units.bytes_(needed)} a rank with the margin of {100 * job.margin:.2g} %, and the limit "
        f"is {units.bytes_(limit)}."
    )
    more = f", or --gpus {ranks}" if ranks is not None else ", as more ranks do not help"
    return f"{said} The cheapest change: --memory-limit {_rounded_up(needed)}{more}."


def _rounded_up(size: float) -> str:
    for unit, step in (("GB", 1e9), ("MB", 1e6)):
        if size >= step:
            return f"{int(size / step) + 1}{unit}"
    return f"{int(size / 1e3) + 1}kB"
