"""What to do about a case, as rules: each says one thing, and only with a number behind it.

The rules of `FIRST` are asked in order: as long as one of them has something to say, no cause of
the loss is worth acting on. Then those of the largest loss that can be told from zero, then of the
next; `LAST` are for a case in which no loss can be told from zero. No rule speaks where the
number that it rests on could be noise.
"""

from scalebench import units
from scalebench.costmodel.pipelines.orders import bubble_law
from scalebench.records.rows.budget import RESIDUAL
from scalebench.records.rows.prediction import ChangedStep
from scalebench.records.summary import Estimate
from scalebench.report.findings.advice_case import AdviceInput, Rule
from scalebench.report.words import wording
from scalebench.report.words.attributed import straggler
from scalebench.report.words.causes import points

NOTHING_TO_GAIN = 0.97
"""An efficiency whose interval lies above this."""


def _wrong_result(case: AdviceInput) -> str | None:
    found = case.row.correctness
    if found is None or found.status != "deviates" or found.tolerance is None:
        return None
    known = [d for d in (found.gradient_deviation, found.loss_deviation) if d is not None]
    if not known:
        return None
    return (
        f"Find out first why the result is wrong: it deviates by {max(known):.1e} where"
        f" {found.tolerance:.0e} is allowed."
    )


def _oversubscribed(case: AdviceInput) -> str | None:
    if not case.row.oversubscribed:
        return None
    few = wording.scarce(case.row)
    return f"Measure on {case.row.world_size} {few} before reading this as scaling."


def _one_launch(case: AdviceInput) -> str | None:
    efficiency = case.row.efficiency
    if efficiency is None or efficiency.n > 1:
        return None
    return "Run it again with --repeats 3 before acting on it: 1 launch gives no interval."


def _too_wide(case: AdviceInput) -> str | None:
    efficiency = case.row.efficiency
    if efficiency is None or not _allows_anything(efficiency):
        return None
    span = wording.interval(efficiency, 100)
    return (
        f"Quiet the machine and run it again with --repeats {2 * efficiency.n}: {span} % is too"
        " wide to act on."
    )


def _allows_anything(efficiency: Estimate) -> bool:
    low, high = efficiency.low, efficiency.high
    return low is not None and high is not None and low < 0.5 and high >= 1.0


def _budget_open(case: AdviceInput) -> str | None:
    found = case.row.budget
    if found is None or found.closes:
        return None
    residual, drift = abs(found.share(RESIDUAL)), abs(found.drift)
    why = (
        f"the parts leave {_percent(residual)} of the step unexplained"
        if residual > drift
        else f"clean steps next to the traced ones differ by {_percent(drift)} from the headline's"
    )
    return f"Quiet the machine and run it again before acting on it: {why}."


def _nothing_to_gain(case: AdviceInput) -> str | None:
    efficiency = case.row.efficiency
    if efficiency is None or efficiency.low is None or efficiency.low < NOTHING_TO_GAIN:
        return None
    return f"Leave it: at most {points(1 - efficiency.low)} points can be gained."


def _faster_neighbour(case: AdviceInput) -> str | None:
    """Point to another case of the same strategy that was measured to be faster here."""
    own = case.row
    rivals = [
        other
        for other in case.of_suite
        if other is not own
        and (other.strategy, other.workload) == (own.strategy, own.workload)
        and (other.world_size, other.global_batch) == (own.world_size, own.global_batch)
        and other.oversubscribed == own.oversubscribed
        and other.compression is None
        and other.status == "ok"
        and (other.correctness is None or other.correctness.status != "deviates")
        and _surely_better(other.efficiency, own.efficiency)
    ]
    if not rivals:
        return None
    best = max(rivals, key=lambda row: row.efficiency.value if row.efficiency else 0.0)
    assert best.efficiency is not None
    return (
        f"Use the settings of {wording.plain(best.case, 64)}, which was measured at"
        f" {wording.plus_minus(best.efficiency, 100)} % on the same ranks."
    )


def _surely_better(other: Estimate | None, own: Estimate | None) -> bool:
    if other is None or own is None or other.low is None or own.high is None:
        return False
    return other.low > own.high


def _model_says(case: AdviceInput, what_if: ChangedStep) -> str:
    now = case.row.prediction.efficiency if case.row.prediction else None
    before = "" if now is None else f" instead of {_percent(now)}"
    off = _percent(case.model_error or 0.0)
    return f"{_percent(what_if.efficiency or 0.0)}{before} (the model is off by up to {off} here)"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.3g} %" if ratio >= 0.1 else f"{100 * ratio:.2g} %"


def _other_buckets(case: AdviceInput) -> str | None:
    best = case.best("bucket_mb")
    if best is None:
        return None
    return (
        f"Try buckets of {best.bucket_mb:g} MiB: the cost model predicts {_model_says(case, best)}."
    )


def _fewer_bits(case: AdviceInput) -> str | None:
    best = case.best("gradient_bits")
    if best is None:
        return None
    return (
        f"Try gradients of {best.gradient_bits} bits: conversion not counted, the cost model"
        f" predicts {_model_says(case, best)}."
    )


def _faster_link(case: AdviceInput) -> str | None:
    best = case.best("times_bandwidth")
    if best is None:
        return None
    return (
        f"The link is the limit: with {best.times_bandwidth:g} times the bandwidth the cost"
        f" model predicts {_model_says(case, best)}."
    )


def _send_less_often(case: AdviceInput) -> str:
    return (
        f"Send less often: more samples per rank and step than {case.row.rank_batch}, or gradient"
        f" accumulation, divide the {case.points_of('exposed_transfer')} points of exposed"
        " transfer."
    )


def _late_rank(case: AdviceInput) -> str | None:
    late = straggler(case.row)
    if late is None:
        return None
    return (
        f"Look at rank {late.rank}: it comes last to {100 * late.share:.0f} % of the operations,"
        f" by {units.seconds(late.median_late_s)}."
    )


def _uneven_ranks(case: AdviceInput) -> str:
    return (
        "Give the ranks equal work and a quiet machine: no rank is always the last, and waiting"
        f" takes {case.points_of('wait')} points."
    )


def _small_share(case: AdviceInput) -> str | None:
    row = case.row
    taken = case.points_of("compute_inflation")
    if row.scaling == "strong" and row.rank_batch < row.global_batch:
        return (
            f"Give each rank more than {row.rank_batch} samples (a larger --batch-size, or"
            f" --scaling weak): its share takes {taken} points longer than on one rank."
        )
    return (
        "Look for what the ranks share (memory bandwidth, cores, clocks): the same work takes"
        f" {taken} points longer than on one rank."
    )


def _more_microbatches(case: AdviceInput) -> str | None:
    pipeline = case.row.pipeline
    if pipeline is None or not pipeline.bubble_law:
        return None
    law, m = pipeline.bubble_law, pipeline.num_microbatches
    twice = bubble_law(pipeline.schedule, pipeline.num_ranks, 2 * m, pipeline.chunks)
    if twice is None:
        return None
    return (
        f"Cut the batch into {2 * m} microbatches instead of {m}: by the schedule's law the bubble"
        f" shrinks from {units.percent(law)} to {units.percent(twice)}."
    )


def _other_schedule(case: AdviceInput) -> str:
    return (
        "Compare other schedules with `scalebench show --schedule`: the bubble takes"
        f" {case.points_of('bubble')} points."
    )


def _cheaper_codec(case: AdviceInput) -> str:
    return (
        "Compress with a cheaper method, or not at all: encoding and decoding take"
        f" {case.points_of('codec')} points."
    )


def _more_workers(case: AdviceInput) -> str:
    return (
        "Give the loader more workers (num_workers): waiting for batches takes"
        f" {case.points_of('data_stall')} points."
    )


def _copy_during_computation(case: AdviceInput) -> str:
    return (
        "Copy while the GPU computes (pin_memory=True, non_blocking=True, the next batch ahead of"
        f" time): copies during which nothing else runs take {case.points_of('copies')} points."
    )


def _longer_steps(case: AdviceInput) -> str:
    return (
        "Make steps longer or the host's part shorter (a larger batch, --compile): other idle"
        f" time takes {case.points_of('other_idle')} points."
    )


def _more_launches(case: AdviceInput) -> str | None:
    efficiency = case.row.efficiency
    if efficiency is None or efficiency.low is None or case.budget is None:
        return None
    return (
        f"Run it again with --repeats {2 * efficiency.n} before acting on it: no loss can be told"
        f" from zero by {efficiency.n} launches."
    )


FIRST = (
    Rule("wrong result", None, _wrong_result),
    Rule("oversubscribed", None, _oversubscribed),
    Rule("one launch", None, _one_launch),
    Rule("interval too wide", None, _too_wide),
    Rule("nothing to gain", None, _nothing_to_gain),
    Rule("budget open", None, _budget_open),
    Rule("faster neighbour", None, _faster_neighbour),
)

RULES = (
    Rule("other buckets", "exposed_transfer", _other_buckets),
    Rule("fewer bits", "exposed_transfer", _fewer_bits),
    Rule("faster link", "exposed_transfer", _faster_link),
    Rule("send less often", "exposed_transfer", _send_less_often),
    Rule("late rank", "wait", _late_rank),
    Rule("uneven ranks", "wait", _uneven_ranks),
    Rule("small share", "compute_inflation", _small_share),
    Rule("more microbatches", "bubble", _more_microbatches),
    Rule("other schedule", "bubble", _other_schedule),
    Rule("cheaper codec", "codec", _cheaper_codec),
    Rule("copy during computation", "copies", _copy_during_computation),
    Rule("more workers", "data_stall", _more_workers),
    Rule("longer steps", "other_idle", _longer_steps),
)
"""About one part of the loss budget each; of the rules for a part the first that applies."""

LAST = (Rule("more launches", None, _more_launches),)
