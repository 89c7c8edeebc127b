"""Whether the launches of a row compute the same, bit for bit."""

from collections.abc import Sequence

from scalebench.analysis.rows.fields import Context, Fields, Unavailable
from scalebench.analysis.rows.launches import Launches
from scalebench.records.measured.rank import RankRecord
from scalebench.records.rows.steps import Reproducible
from scalebench.records.run import CellResult

ONE_LAUNCH = "it takes two launches to compare their losses"
NO_LOSSES = "no losses were recorded"
OF_RACES = "each launch of a race has another seed"

Losses = Sequence[tuple[int, float | None]]
"""Step and loss, of each backward pass that was recorded."""


def reproducible_of_row(row: Launches, _: Context) -> Fields:
    """Say from which step on the launches' losses differ."""
    good = list(row.good.values())
    if len(good) < 2:
        return {"reproducible": Unavailable(ONE_LAUNCH)}
    if any(rank.race is not None for launch in good for rank in launch.ranks):
        return {"reproducible": Unavailable(OF_RACES)}
    launches = [[_losses(rank) for rank in launch.ranks] for launch in good]
    if not all(all(of_rank) for of_rank in launches):
        return {"reproducible": Unavailable(NO_LOSSES)}
    pairs = [
        pair
        for other in launches[1:]
        for one, another in zip(launches[0], other, strict=True)
        for pair in zip(one, another, strict=False)
    ]
    differing = [min(a[0], b[0]) for a, b in pairs if a != b]
    noted = [rank.facts["checks"] for one in good for rank in one.ranks if rank.facts.get("checks")]
    named = [name for one in noted for name in one.get("nondeterministic") or ()]
    seeds = [[one["seed"] for one in _seeded(launch)] for launch in good]
    found = Reproducible(
        equal=not differing,
        first_step=min(differing, default=None),
        num_steps=1 + min(of_rank[-1][0] for of_launch in launches for of_rank in of_launch),
        num_launches=len(good),
        seeds_differ=any(one != seeds[0] for one in seeds) if noted else None,
        operations=list(dict.fromkeys(named)),
    )
    return {"reproducible": found}


def _losses(rank: RankRecord) -> Losses:
    """Return the losses of the clean window: what follows begins at another step in each launch."""
    noted = (rank.facts.get("checks") or {}).get("losses")
    if noted is not None:
        return [(step, loss) for step, loss in noted if loss is not None]
    later = [block.first for block in rank.blocks if block.phase not in ("warmup", "clean")]
    return list(enumerate(rank.loss[: min(later, default=None)]))


def _seeded(launch: CellResult) -> list[dict[str, int]]:
    return [rank.facts["checks"] for rank in launch.ranks if rank.facts.get("checks")]
