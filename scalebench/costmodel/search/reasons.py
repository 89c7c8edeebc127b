"""Why the first is faster than the second, and what would make a model fit, one sentence each."""

from collections.abc import Mapping

from scalebench import units
from scalebench.costmodel.search.choice import Choice
from scalebench.costmodel.search.job import Job
from scalebench.costmodel.search.step.parts import PARTS


def why_faster(first: Choice, second: Choice) -> str:
    """Return in one sentence in which part of the step the first gains on the second."""
    gains = {part: second.parts_s[part] - first.parts_s[part] for part in PARTS}
    total = second.step_s - first.step_s
    if total <= 0:
        return (
            f"{first.mesh_words} and {second.mesh_words} take equally long by the model; the first "
            "recomputes less or needs less memory."
        )
    most = max(gains, key=gains.__getitem__)
    said = (
        f"{first.mesh_words} is {units.seconds(total)} ({100 * total / first.step_s:.2g} %) faster "
        f"than {second.mesh_words}: it spends {units.seconds(gains[most])} less on {PARTS[most]}"
    )
    losses = _largest_loss(gains)
    return f"{said}{losses}."


def _largest_loss(gains: Mapping[str, float]) -> str:
    worst = min(gains, key=gains.__getitem__)
    if gains[worst] >= -0.05 * max(gains.values()):
        return ""
    return f", and {units.seconds(-gains[worst])} more on {PARTS[worst]}"


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
