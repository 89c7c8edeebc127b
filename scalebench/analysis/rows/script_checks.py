"""Whether the ranks of a user's script train one model, rightly, each on samples of its own."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf, sqrt
from typing import Any, Literal

from scalebench.analysis.counted_batch import ranks_per_batch
from scalebench.analysis.rows.launches import Context, Fields, Launches
from scalebench.grouping import by_key
from scalebench.records.measured.rank import RankRecord
from scalebench.records.rows.script import LearningRate, ScriptChecks, Wrapper
from scalebench.records.summary import Row

ROUNDING = 1e-5
"""Of a parameter's norm: sums that differ by less differ by the order of additions."""

FEWEST_BATCHES = 3

FEWEST_SAMPLES = 16

REPEATED = 0.25
"""Of the part that ranks share: where a rank itself draws so many twice, that is how it draws."""

MOST_NAMED = 3

OF_DATA_PARALLEL = (
    *("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"),
    *("ZeroRedundancyOptimizer", "DeepSpeedEngine", "DTensor"),
)
"""Wrappers under which each rank has samples of its own."""

SYNCHRONISING = ("DistributedDataParallel", "FSDPModule", "FullyShardedDataParallel")
"""Wrappers that send the gradients of every backward pass, unless they are told not to."""

GRADIENT_BYTES = 4
"""Of a parameter, at most; of bfloat16 half."""

NEAR = 1e-3
"""Of a factor: it is N, or one part in N."""

SAME_LOSS = 1e-5
"""Of the first losses: the same samples went through the same model."""

GROWN = 1.5
"""Times the samples of a step at N=1: from then on the learning rate is compared with them."""

ONE_RANK_UNKNOWN = "N=1 was not measured, or is not comparable"
NOW_AND_THEN = "the models are averaged now and then, and differ in between"
NOT_ALIKE_SEEN = "the ranks were not looked at in the same steps"

Noted = Sequence[Mapping[str, Any]]
"""What each rank has noted; see `scalebench.worker.attach.checks.Checks.end`."""


def checks_of(row: Launches, context: Context) -> ScriptChecks | None:
    """Compare the ranks of a row's first launch, and them with N=1.

    Returns:
        None: there is one rank, or some rank's script was not looked at.
    """
    ranks = next(iter(row.good.values())).ranks
    known = _noted(ranks)
    if len(ranks) < 2 or known is None:
        return None
    passes, accumulation = _accumulation(ranks[0], known[0], len(ranks))
    orders = [one["repeated_orders"] for one in known]
    one = context.at_one_rank(row)
    return ScriptChecks(
        **_replicas(ranks[0], known),
        same_batches=_same_batches(ranks[0], known),
        shared_samples=_shared_samples(ranks[0], known),
        same_order=True if any(orders) else None,
        batch_norms=known[0].get("batch_norms", 0),
        same_dropout=_same_dropout(ranks[0], known),
        accumulated=passes,
        accumulation=accumulation,
        cleared=bool(known[0].get("cleared")),
        learning_rate=_learning_rate(row, one, known[0]),
        loss_lost_from=min(
            filter(None, (one.get("loss_lost_from") for one in known)), default=None
        ),
        took_ratio=_took_ratio(ranks, known),
        **_divided(ranks[0], known, _alone(one)),
    )


def _noted(ranks: Sequence[RankRecord]) -> Noted | None:
    stored = [rank.facts.get("checks") for rank in ranks]
    known = [one for one in stored if one is not None]
    return known if known and len(known) == len(ranks) else None


def _took_ratio(ranks: Sequence[RankRecord], known: Noted) -> float | None:
    if any("took_s" not in one for one in known):
        return None
    return max(
        float(one["took_s"]) / sum(rank.step_s) for rank, one in zip(ranks, known, strict=True)
    )


def _alone(one: Launches | None) -> tuple[RankRecord, Mapping[str, Any]] | None:
    """Return the rank of the first launch at N=1, and what it has noted."""
    first = next(iter(one.good.values()), None) if one is not None else None
    known = _noted(first.ranks) if first is not None else None
    return (first.ranks[0], known[0]) if first is not None and known else None


def _replicas(first: RankRecord, known: Noted) -> dict[str, Any]:
    reasons = [one.get("replicas_unavailable") for one in known]
    why = next((reason for reason in reasons if reason), None)
    if (first.facts.get("exchange_every") or 1) > 1:
        why = NOW_AND_THEN
    steps = sorted(set.intersection(*({m["step"] for m in one["moments"]} for one in known)))
    if why is None and (not steps or len({len(one["held"]) for one in known}) > 1):
        why = NOT_ALIKE_SEEN
    if why is not None:
        return {"in_sync_unavailable": why}
    unlike = {step: list(_differing(known, step)) for step in steps}
    models = {step: [name for name, buffer in unlike[step] if not buffer] for step in steps}
    buffers = {name: None for step in steps for name, is_buffer in unlike[step] if is_buffer}
    names = models[steps[-1]]
    alike = [step for step in steps if not models[step]]
    since = min((s for s in steps if not alike or s > alike[-1]), default=None)
    return {
        "in_sync": not names,
        "observed_steps": steps,
        "in_sync_until": alike[-1] if names and alike else None,
        "drift_from": since if names else None,
        "differing": names[:MOST_NAMED],
        "num_differing": len(names),
        "differing_buffers": list(buffers)[:MOST_NAMED],
        "buffers_broadcast": known[0]["broadcasts"],
    }


def _differing(known: Noted, step: int) -> Iterator[tuple[str, bool]]:
    """Return the names of what some copy has otherwise, and whether it is a buffer.

    Ranks that send each other parts may hold parts, too, which DDP does not wrap.
    """
    sends_parts = any(one.get("sends_parts") for one in known)
    for index, (name, _, is_buffer) in enumerate(known[0]["held"]):
        if sends_parts and "outside of DDP" in name:
            continue
        first_of: dict[str, Any] = {}
        for one in known:
            sums = next(m["sums"] for m in one["moments"] if m["step"] == step)
            first = first_of.setdefault(str(one["held"][index][1]), sums[index])
            if _differ(first, sums[index]):
                yield name, is_buffer
                break


def _differ(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Tell whether two ranks hold other values. A sum or norm that is no number is stored as null.

    Where both have none, their bits say nothing: there are many ways to write NaN.
    """
    (bits, total, norm), (other_bits, other_total, other_norm) = one, other
    if bits == other_bits or None in (total, norm, other_total, other_norm):
        return bits != other_bits and (total is None) != (other_total is None)
    near = ROUNDING * max(norm, other_norm)
    return not (abs(total - other_total) <= near and abs(norm - other_norm) <= near)


def _divides_data(first: RankRecord, num_ranks: int, least: int = 1) -> bool:
    """Tell whether each rank has samples of its own, by its wrappers and process groups.

    A script that takes its part of each batch itself is not known from what its loader hands over.
    """
    if first.facts.get("trains_on_part") or ranks_per_batch(first.facts) != 1:
        return False
    wrappers = first.facts.get("wrappers") or ()
    kinds = [one.get("kind") for one in wrappers]
    layers = [one for one in first.facts.get("groups") or () if 1 < one["ranks"] < num_ranks]
    hybrid = any(
        one.get("data_ranks") == num_ranks or "HYBRID" in str(one.get("sharding"))
        for one in wrappers
    )
    averages = (first.facts.get("checks") or {}).get("averages", False)  # by itself, unwrapped
    known = set(kinds) <= set(OF_DATA_PARALLEL) and len(kinds) + averages >= least
    return known and (hybrid or not layers)


def _same_batches(first: RankRecord, known: Noted) -> bool | None:
    batches = [one["batches"] for one in known]
    fewest = min(map(len, batches))
    if not _divides_data(first, len(known)):
        return None
    if not any(batches):
        return _are_given_the_same(known) or None
    if fewest < FEWEST_BATCHES:
        return None
    if len(set(batches[0])) == 1:  # a stand-in for data
        return None
    return all(one[:fewest] == batches[0][:fewest] for one in batches)


def _are_given_the_same(known: Noted) -> bool:
    """Tell whether all models were given the same in both of the first steps, which differ.

    They may be given more than the prints are of: the losses have to be the same, too.
    """
    given = [one.get("given") or [0] for one in known]
    losses = [[loss for step, loss in one["losses"] if step < len(given[0])] for one in known]
    if 0 in given[0] or len({*given[0]}) < 2 or any(one != given[0] for one in given):
        return False
    passes = list(zip(*losses, strict=False))
    known_all = bool(passes) and all(None not in one for one in losses)
    is_whole = len({*map(len, losses)}) == 1
    return known_all and is_whole and all(max(p) - min(p) <= SAME_LOSS * abs(p[0]) for p in passes)


def _shared_samples(first: RankRecord, known: Noted) -> float | None:
    """Return the part of the samples that more than one rank has.

    Each rank has noted its smallest prints: they are compared up to where all lists are whole.
    """
    of_ranks = [one.get("samples") for one in known]
    if not _divides_data(first, len(known)) or any(not one for one in of_ranks):
        return None
    seen = [one for one in of_ranks if one and one["prints"]]
    whole = [one["prints"][-1] for one in seen if one["distinct"] > len(one["prints"])]
    limit = min(whole, default=inf)
    times = Counter(p for one in seen for p in one["prints"] if p <= limit)
    if len(seen) < len(known) or times.total() < FEWEST_SAMPLES:
        return None
    shared = sum(count for count in times.values() if count > 1) / times.total()
    repeated = max(one["repeated"] / (one["distinct"] + one["repeated"]) for one in seen)
    return None if shared and repeated > REPEATED * shared else shared


def _same_dropout(first: RankRecord, known: Noted) -> bool | None:
    """Tell whether all ranks draw the same random numbers, at every moment but that of the start.

    Moments without dropout in between tell nothing: the state has to move.
    """
    if not _divides_data(first, len(known)) or not all(one.get("dropouts") for one in known):
        return None
    states = [one["states"] for one in known]
    moved = len({state for _, state in states[0]}) == len(states[0]) > 1
    return all(one == states[0] for one in states) if moved else None


def _accumulation(
    first: RankRecord, noted: Mapping[str, Any], num_ranks: int
) -> tuple[int | None, Literal["averaged", "summed"] | None]:
    """Return the micro-batches of a step, and whether their gradients are averaged or summed.

    Several losses of one batch, as a GAN's, are no micro-batches: a step has to have a batch for
    each pass, or each loss has to be divided by their number (and, wrongly, by that of ranks).
    """
    found = by_key((step, (factor, kind)) for step, factor, kind in noted["passes"])
    steps = [passes for passes in found.values() if len(passes) > 1]
    alike = len({tuple(passes) for passes in steps}) == 1 and len(steps) == len(found)
    if not alike or (first.facts.get("calls_per_step") or 1) > 1 or len(set(steps[0])) > 1:
        return None, None
    count, (factor, kind) = len(steps[0]), steps[0][0]
    if factor is None or kind != "mean":
        return None, None
    if any(abs(factor * count * by - 1) < NEAR for by in (1, num_ranks)):
        return count, "averaged"
    of_batches = first.facts.get("microbatches") == count
    return (count, "summed") if of_batches and abs(factor - 1) < NEAR else (None, None)


def _learning_rate(
    row: Launches, one: Launches | None, noted: Mapping[str, Any]
) -> LearningRate | None:
    """Return the learning rate next to that of N=1; None: it was not read."""
    if not noted["rates"]:
        return None
    (_, first), (last_step, last) = noted["rates"][0], noted["rates"][-1]
    found = LearningRate(first=first, last=last, last_step=last_step)
    alone = _alone(one)
    if one is None or alone is None or not alone[1]["rates"] or not (row.counted and one.counted):
        return found
    grown, at_one = row.work / one.work, alone[1]["rates"][0][1]
    if grown < GROWN:
        return found
    rules = {"linear": at_one * grown, "square_root": at_one * sqrt(grown)}
    batches = {"batch": row.work, "batch_at_one": one.work}
    return found.model_copy(update={"at_one": at_one, **rules, **batches})


def _divided(
    first: RankRecord, known: Noted, alone: tuple[RankRecord, Mapping[str, Any]] | None
) -> dict[str, Any]:
    """Return how often the gradient is divided by N: by what is seen at N=1 next to it."""
    if alone is None:
        return {"divided_unavailable": ONE_RANK_UNKNOWN}
    if not _divides_data(first, len(known), 0):
        return {"divided_unavailable": "not all ranks divide the data"}
    num_ranks, at_one = len(known), alone[1]
    one, several = _loss_of_first_step(alone[1:]), _loss_of_first_step(known)
    if one and several:
        of_loss = several / one
        for scale in (1.0, 1 / num_ranks):
            if abs(of_loss / scale - 1) < SAME_LOSS:
                return _by_gradient(first, known, at_one)
    if _factor(alone[0], at_one) and _factor(first, known[0]):
        part = _factor(first, known[0]) / _factor(alone[0], at_one)
        is_averaged = _averages(first) and not _is_enlarged(known[0])
        if abs(part * num_ranks - 1) < NEAR and is_averaged:
            return {"divided": "twice"}
    return {"divided_unavailable": "the first step of N=1 has other samples, or another start"}


def _loss_of_first_step(known: Noted) -> float | None:
    """Return the mean over ranks of the losses of the first step, micro-batches added."""
    losses = [[loss for step, loss in one["losses"] if step == 0] for one in known]
    if any(not of_rank or None in of_rank for of_rank in losses):
        return None
    return sum(sum(of_rank) for of_rank in losses) / len(losses)


def _by_gradient(first: RankRecord, known: Noted, at_one: Mapping[str, Any]) -> dict[str, Any]:
    """Return how often the gradient of the same samples is divided by N."""
    num_ranks = len(known)
    after, applied = at_one["gradient"]
    unchanged = after and applied and abs(applied / after - 1) < NEAR
    index, base = (1, applied) if unchanged else (0, after)
    parts = [one["gradient"][index] for one in known]
    if not base or any(part is None for part in parts) or not (unchanged or _averages(first)):
        return {"divided_unavailable": "the gradient of the first step was not seen"}
    scale = sqrt(sum(parts) / base)
    times = {"once": 1.0, "twice": 1 / num_ranks, "never": float(num_ranks)}
    for name, expected in times.items():
        if abs(scale / expected - 1) < NEAR * 10:
            return {"divided": name, "gradient_scale": scale}
    return {
        "divided_unavailable": "the gradient of the first step is another",
        "gradient_scale": scale,
    }


def _factor(first: RankRecord, noted: Mapping[str, Any]) -> float:
    """Return what each sample's gradient is multiplied by before ranks average; 0: not known."""
    passes = [(factor, kind) for step, factor, kind in noted["passes"] if step == 1]
    factor, kind = passes[0] if passes else (None, None)
    if len(set(passes)) != 1 or factor is None or kind != "mean":
        return 0.0
    return float(factor) * len(passes)


def _is_enlarged(noted: Mapping[str, Any]) -> bool:
    """Tell whether a gradient is made larger after the backward pass."""
    after, applied = noted["gradient"]
    return not after or not applied or applied > after * (1 + NEAR)


def _averages(first: RankRecord) -> bool:
    """Tell whether a wrapper averages the gradients of all ranks, and nothing changes that."""
    found = first.facts.get("wrappers") or ()
    return bool(found) and all(
        one.get("kind") == "DistributedDataParallel" and not one.get("hook") for one in found
    )


def sends_each_pass(row: Row) -> tuple[int, float] | None:
    """Return the backward passes of a step and the bytes that they send, if each sends gradients.

    None: they are sent once, or it is not known. Passes between which the gradients are cleared,
    as sharpness-aware minimisation's or a line search's, have to send each.
    """
    facts = row.script
    if facts and facts.checks and facts.checks.cleared:
        return None
    passes = round((facts.backwards_per_step if facts else None) or 1)
    wrapped = synchronising(row)
    sent = gradients_sent(row)
    if passes < 2 or not wrapped or not sent or not row.num_parameters:
        return None
    if ((facts and facts.calls_per_step) or 1) > 1 or any(one.hook for one in wrapped):
        return None
    least = (passes + 1) / 2 * GRADIENT_BYTES * row.num_parameters
    return (passes, sent[1]) if sent[1] >= least else None


def synchronising(row: Row) -> list[Wrapper]:
    """Return the wrappers that send the gradients of every backward pass by default."""
    return [one for one in row.wrappers or () if one.kind in SYNCHRONISING]


def gradients_sent(row: Row) -> tuple[float, float] | None:
    """Return operations and bytes of a step that backward passes send; None: not known."""
    found = [
        one
        for one in row.communication or ()
        if one.kind in ("all_reduce", "reduce_scatter")
        and one.ordinal is None
        and one.phase == "backward"
    ]
    if not found or any(one.num_bytes is None for one in found):
        return None
    return sum(one.count for one in found), sum(one.num_bytes or 0.0 for one in found)


def exchanges_of_row(row: Row, _: Sequence[Row], __: Context) -> Fields:
    """Say whether accumulated gradients are exchanged once a step, or in each backward pass."""
    facts = row.script
    if facts is None or facts.checks is None or not facts.checks.accumulated:
        return {}
    each = sends_each_pass(row) is not None
    if not each and (gradients_sent(row) is None or not synchronising(row)):
        return {}
    checks = facts.checks.model_copy(update={"exchanged": "each pass" if each else "once"})
    return {"script": facts.model_copy(update={"checks": checks})}
