"""Whether the ranks of a user's script train one model, each on samples of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from scalebench.records.rank import RankRecord
from scalebench.records.rows.script import ScriptChecks

ROUNDING = 1e-5
"""Of a parameter's norm: sums that differ by less differ by the order of additions."""

FEWEST_BATCHES = 3

MOST_NAMED = 3

OF_DATA_PARALLEL = (
    *("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"),
    *("ZeroRedundancyOptimizer", "DeepSpeedEngine", "DTensor"),
)
"""Wrappers under which each rank has samples of its own."""


def checks_of(ranks: Sequence[RankRecord]) -> ScriptChecks | None:
    """Compare the ranks of one launch.

    Returns:
        None: there is one rank, or some rank's script was not looked at.
    """
    stored = [rank.facts.get("checks") for rank in ranks]
    known = [one for one in stored if one is not None]
    if len(ranks) < 2 or len(known) < len(ranks):
        return None
    now_and_then = (ranks[0].facts.get("exchange_every") or 1) > 1
    differing = None if now_and_then else _differing([one["replicas"] for one in known])
    orders = [one["repeated_orders"] for one in known]
    return ScriptChecks(
        in_sync=None if differing is None else not differing,
        differing=(differing or [])[:MOST_NAMED],
        num_differing=len(differing or ()),
        same_batches=_same_batches(ranks[0], known),
        same_order=True if any(orders) else None,
        batch_norms=known[0]["batch_norms"],
    )


def _differing(replicas: Sequence[Mapping[str, Any] | None]) -> list[str] | None:
    """Return the names of parameters that some replica has otherwise; None: not known."""
    found: dict[str, None] = {}
    first_of: dict[str, Sequence[Any]] = {}
    for one in replicas:
        if one is None:
            return None
        sums = one["sums"]
        first = first_of.setdefault(str(one["ranks"]), sums)
        if len(first) != len(sums):
            return None
        found.update((a[0], None) for a, b in zip(first, sums, strict=True) if _differ(a, b))
    return list(found)


def _differ(one: Sequence[Any], other: Sequence[Any]) -> bool:
    (_, bits, total, norm), (_, other_bits, other_total, other_norm) = one, other
    if bits == other_bits:
        return False
    near = ROUNDING * max(norm, other_norm)
    return not (abs(total - other_total) <= near and abs(norm - other_norm) <= near)


def _same_batches(first: RankRecord, known: Sequence[Mapping[str, Any]]) -> bool | None:
    kinds = [one.get("kind") for one in first.facts.get("wrappers") or ()]
    layers = [one for one in first.facts.get("groups") or () if 1 < one["ranks"] < len(known)]
    batches = [one["batches"] for one in known]
    fewest = min(map(len, batches))
    if not kinds or layers or not set(kinds) <= set(OF_DATA_PARALLEL) or fewest < FEWEST_BATCHES:
        return None
    if len(set(batches[0])) == 1:  # a stand-in for data
        return None
    return all(one[:fewest] == batches[0][:fewest] for one in batches)
