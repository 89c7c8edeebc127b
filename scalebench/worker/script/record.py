"""From what the watch has stored of a script's rank to the fields of a rank's record."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import BaseModel

from scalebench.errors import UsageError
from scalebench.records.measured.rank import Block, Memory, Phase, StepGap
from scalebench.records.measured.trace import ClockAlignment, Trace
from scalebench.spec import Cell
from scalebench.spec.script import ScriptTarget, evaluate
from scalebench.trace.events import Events
from scalebench.trace.files.kineto import read_kineto
from scalebench.worker.attach.batches import FeedCounts
from scalebench.worker.attach.hooks import GapTimes
from scalebench.worker.attach.timing import FIRST_LOOK
from scalebench.worker.attach.traffic import NO_EXCHANGE
from scalebench.worker.measure.tracing import Capture, marks_of, on_the_steps_clock, trace_record
from scalebench.worker.portable import steady_start
from scalebench.worker.process.store_queue import SealedStore

LAST_MARK = "scalebench.last step"
FEWEST_STEPS = 4
"""One for the script's start, one for the first of a block, and two that count."""

MOST_NAMED = 3
LARGE_GAP = 0.1
LARGE_GAP_S = 1e-3
"""Evaluating and saving is told of if it takes this part of the usual step, and so many seconds."""

ALIKE = 0.05
"""Numbers of batches and of backward passes that differ by less are the same."""

MOST_MEANS = 100
LEAST_TREND = 3.5
"""Standard errors."""

Schedule = dict[str, Any]


class NoTrace(Exception):
    """There is no trace; the text says why."""


def trace_of(cell: Cell, raw: Mapping[str, Any], blocks: Sequence[Block]) -> Trace:
    """Return the trace of a rank's traced blocks.

    Raises:
        NoTrace: There is none.
    """
    if not cell.steps.trace:
        raise NoTrace("tracing was turned off (--no-trace)")
    if raw["trace_failure"]:
        raise NoTrace(raw["trace_failure"])
    wanted = [block.first for block in blocks if block.phase == "traced"]
    stored = {one["first"]: one for one in raw["traces"] if "file" in one}
    if not wanted:
        raise NoTrace("the script ended before steps were traced")
    if any(first not in stored for first in wanted):
        raise NoTrace("not every traced step of this rank was stored")
    try:
        captures = [capture_of(stored[first]) for first in wanted]
        trace = trace_record(captures)
    except (ValueError, UsageError) as error:
        raise NoTrace(f"reading the traced steps failed: {error}") from error
    if trace is None:
        raise NoTrace("the profiler recorded no step")
    return trace


def capture_of(stored: Mapping[str, Any]) -> Capture:
    """Return one traced block, with its time stamps on the machine's monotonic clock.

    Args:
        stored: ``file``, and ``before_ns`` and ``step_ns``: that clock before and inside each mark
            between two steps.
    """
    events, marks = with_spans(read_kineto(stored["file"]))
    if len(marks) != len(stored["step_ns"]):
        raise ValueError("the profiler lost the step markers")
    moved, error_s = on_the_steps_clock(events, marks, stored["before_ns"], stored["step_ns"])
    return Capture(step_ns=stored["step_ns"][:-1], events=moved, clock_error_s=error_s)


def with_spans(events: Events) -> tuple[Events, Any]:
    """Return the events with each mark between two steps made the span of a step.

    Returns:
        The events, and when the marks were, in order.
    """
    marks = marks_of(events)
    starts = events.start_ns[marks].copy()
    if len(marks) == 0:
        return events, starts
    name, end_ns = events.name.copy(), events.end_ns.copy()
    end_ns[marks[:-1]] = starts[1:]
    name[marks[-1]] = len(events.names)
    names = [*events.names, LAST_MARK]
    return replace(events, names=names, name=name, end_ns=end_ns), starts


class TooShort(ValueError):
    """The script has ended by itself, after too few steps."""


class RankSeen(BaseModel):
    """What the other ranks have to know of one rank.

    Attributes:
        num_steps: Whole steps.
        schedule: As the watch has it; None: the script ended before there was one.
        first_clean: The first steady step; None: not found.
        batches: Prints of the first batches.
        part: Of its batches, what its model was given in the first step; None: not known.
        given: Samples that its model was given in the first step; None: not known.
        given_print: A checksum of them; 0: not known.
        loss: Its first loss, where nothing tells what its model was given; None: not known.
        read: Samples that it usually reads in a step; None: not known.
        read_tokens: Likewise.
        mean_read: Samples that it reads in a step in the mean, with those at the end of an epoch.
    """

    num_steps: int
    schedule: dict[str, Any] | None
    first_clean: int | None
    batches: list[int] = []
    part: float | None = None
    given: float | None = None
    given_print: int = 0
    loss: float | None = None
    read: float | None = None
    read_tokens: float = 0.0
    mean_read: float | None = None


def seen_by(raw: Mapping[str, Any]) -> RankSeen:
    """Return what a rank has seen of its own steps."""
    step_s = steps_of_calls(raw["call_s"], raw["period"])
    steady = steady_start(step_s[1:])
    fed = [_together(calls) for calls in _by_step(raw, len(step_s))[1:] if None not in calls]
    read = [one.samples for one in fed if one.samples is not None]
    checks = raw["checks"] or {}
    losses = checks.get("losses") if raw["input_elements"] is None else None
    return RankSeen(
        num_steps=len(step_s),
        schedule=raw["schedule"],
        first_clean=None if steady is None else steady + 1,
        batches=checks.get("batches", []),
        part=raw.get("part"),
        given=raw.get("given"),
        given_print=raw.get("given_print", 0),
        loss=losses[0][1] if losses else None,
        read=_usual(read) if len(read) == len(fed) else None,
        mean_read=_mean([one.samples for one in fed]),
        read_tokens=_usual([one.tokens for one in fed]),
    )


def exchange(store: SealedStore, rank: int, world_size: int, own: RankSeen) -> list[RankSeen]:
    """Tell the other ranks what this one has seen; return what every rank has, by rank."""
    store.set(f"seen{rank}", own.model_dump_json())
    return [RankSeen.model_validate_json(store.get(f"seen{r}")) for r in range(world_size)]


def steps_of_calls(call_s: Sequence[float | None], period: int) -> list[float]:
    """Return the time of each whole step, seconds.

    ``call_s``: for each call that matters the seconds since the last one whose time was taken;
    None: no time was taken. ``period`` calls make a step.
    """
    ends: list[float | None] = []
    now = 0.0
    for found in call_s:
        now += found or 0.0
        ends.append(None if found is None else now)
    of_steps = np.array([np.nan if e is None else e for e in ends[period - 1 :: period]])
    known = np.flatnonzero(~np.isnan(of_steps))
    if len(known) == 0:
        return []
    last = int(known[-1]) + 1
    filled = np.interp(np.arange(last), known, of_steps[known])
    return [float(step) for step in np.diff(filled, prepend=0.0)]


def gaps_of(raw: Mapping[str, Any], step_s: Sequence[float]) -> list[StepGap]:
    """Return the times in which the script evaluated or saved before a step's batch.

    Saving is known by its calls. Evaluation lasts from ``eval()`` to ``train()``; where more
    batches than usual were drawn and not trained on without such calls, it is what lies between
    the last step's end and the request for a batch, beyond what usually does. Anything else that a
    script does between two calls of an optimizer is part of its training.
    """
    period = raw["period"]
    calls = _by_step(raw, len(step_s))
    others = [sum(fed.others for fed in of_step if fed) for of_step in calls]
    outside_s = raw["outside_s"][::period]
    usual_s = _median([s for s in outside_s[1 : len(step_s)] if s is not None])
    usual_others = _usual(others)
    limit_s = max(LARGE_GAP * _median(step_s), LARGE_GAP_S)
    gaps = []
    for step, seconds in enumerate(step_s):
        known = [GapTimes(*times) for call, *times in raw["gaps"] if call // period == step]
        evaluation_s = sum(one.evaluation_s for one in known)
        checkpoint_s = sum(one.checkpoint_s for one in known)
        between_s = outside_s[step] if step < len(outside_s) else None
        if others[step] > usual_others and not evaluation_s and between_s is not None:
            evaluation_s = max(between_s - usual_s - checkpoint_s, 0.0)
        checkpoint_s = min(checkpoint_s, seconds)
        evaluation_s = min(evaluation_s, seconds - checkpoint_s)
        whole_s = evaluation_s + checkpoint_s
        is_bare = None in calls[step]
        if step and whole_s > limit_s and not is_bare:
            gap = {"evaluation_s": evaluation_s, "checkpoint_s": checkpoint_s}
            gaps.append(StepGap(step=step, seconds=whole_s, **gap))
    return gaps


def _by_step(raw: Mapping[str, Any], num_steps: int) -> list[list[FeedCounts | None]]:
    """Return what was fed before each call of each step; None: in a bare step."""
    counts = [None if one is None else FeedCounts(*one) for one in raw["fed"]]
    period = raw["period"]
    return [counts[i : i + period] for i in range(0, len(counts), period)][:num_steps]


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else 0.0


def blocks_for(schedule: Schedule | None, first_clean: int | None, num_steps: int) -> list[Block]:
    """Return how the steps are grouped.

    ``schedule`` is rank 0's; None: the script ended before there was one, and ``first_clean`` is
    the first steady step, if it was found. Every rank has ``num_steps`` steps.
    """
    if schedule is None:
        first = num_steps // 2 if first_clean is None else first_clean
        clean_end, rounds = num_steps, []
    else:
        first = min(schedule["first_clean"], num_steps)
        clean_end = min(schedule["clean_end"], num_steps)
        rounds = [Block(phase=k, first=f, count=c) for k, f, c in schedule["blocks"]]
    whole = [block for block in rounds if block.first + block.count <= num_steps]
    borders: list[tuple[Phase, int, int]] = [("warmup", 0, first), ("clean", first, clean_end)]
    head = [Block(phase=k, first=a, count=b - a) for k, a, b in borders if b > a]
    return head + whole[: len(whole) // 3 * 3]


def rank_fields(
    cell: Cell, raw: Mapping[str, Any], everybody: Sequence[RankSeen], clock: ClockAlignment
) -> dict[str, Any]:
    """Return the fields of a rank's record.

    Raises:
        TooShort: The script made too few steps.
        ValueError: Its ranks exchanged nothing. The text says what to do.
    """
    first = everybody[0]
    num_steps = min(seen.num_steps for seen in everybody)
    if num_steps < FEWEST_STEPS:
        raise TooShort(
            f"{_script(cell).shown} ended after {num_steps} training steps, and at least "
            f"{FEWEST_STEPS} are needed"
        )
    period = raw["period"]
    if cell.world_size > 1:
        _check_exchange(raw, f"{_script(cell).shown}: ")
    step_s = steps_of_calls(raw["call_s"], period)[:num_steps]
    grouped = blocks_for(first.schedule, first.first_clean, num_steps)
    blocks = [_timed(block, raw["host_ns"], period) for block in grouped]
    clean = [i for b in blocks if b.phase == "clean" for i in range(b.first, b.first + b.count)]
    calls = _by_step(raw, num_steps)
    fed = [_together(calls[step]) for step in clean]
    passes = [float(sum(raw["backwards"][i * period : (i + 1) * period])) for i in clean]
    backwards = _mean(passes)
    read = [float(f.batches) for f in fed]
    part = _cut(everybody, raw.get("part"))
    consumed = 1.0 if raw["explicit"] else _consumed(read, passes) * (part or 1.0)
    samples, tokens = (
        None if mean is None else mean * consumed
        for mean in (_mean([f.samples for f in fed]), _mean([f.tokens for f in fed]))
    )
    tokens = tokens and tokens * raw.get("words", 1.0)
    asked = _script(cell).samples_per_step
    takes_part = _may_cut(everybody) or bool(raw.get("trains_on_part"))
    takes_part |= not raw["facts"].get("wrappers") and _may_share(everybody)
    noted = {**raw, "trains_on_part": takes_part and part is None}
    if not (raw["explicit"] or _tells_samples(noted, _together(calls[0]), fed, passes)):
        samples = tokens = None
    microbatches = _fewest_read(read, passes) or _usual(read) or None
    reader = None if raw["explicit"] else _one_reader(everybody)
    if reader is not None:
        usual, microbatches = reader.read or 1, _usual(passes)
        samples = raw["given"] * (reader.mean_read or usual) / usual
        tokens = samples * reader.read_tokens / usual
    if asked is not None:
        sizes = {"world_size": cell.world_size, "global_batch": cell.global_batch}
        values = {**sizes, "rank_batch": cell.rank_batch}
        samples = evaluate(asked, values) / cell.world_size
    counted = zip(*((f.samples, f.tokens) for f in fed), strict=True)
    changes = asked is None and any(map(_has_trend, (passes, *counted)))
    if changes:  # no mean says what a step does
        backwards = samples = tokens = None
    last = max((block.first + block.count for block in blocks), default=0)
    is_whole = first.schedule is not None and num_steps >= first.schedule["clean_end"]
    fields: dict[str, Any] = {
        "step_s": step_s[:last],
        "blocks": blocks,
        "steady": bool(first.schedule["steady"] if first.schedule else first.first_clean),
        "first_step_ns": raw["host_ns"][0],
        "num_parameters": raw["num_parameters"],
        "samples_per_step": samples or None,
        "tokens_per_sample": tokens / samples if tokens and samples else None,
        "memory": Memory(**raw["memory"]),
        "data_s": [sum(one.waited_s for one in of_step if one) for of_step in calls[:last]],
        "gaps": gaps_of(raw, step_s[:last]),
        "ended_after": None if is_whole else num_steps,
        "facts": {
            **raw["facts"],
            **raw["looked_at"],
            "microbatches": microbatches,
            "backwards_per_step": backwards,
            "input_elements": None if changes else raw["input_elements"],
            "trains_on_part": takes_part or part is not None,
            "exchange_every": raw.get("exchange_every"),
            "steps_by": "scalebench.step()" if raw["explicit"] else "optimizer calls",
            "calls_per_step": period,
            "loaded": list(raw.get("loaded", ())),
            "checks": raw.get("checks"),
        },
    }
    try:
        trace = trace_of(cell, raw, blocks)
    except NoTrace as reason:
        return fields | {"trace_unavailable": str(reason)}
    return fields | {"trace": trace, "clock": clock}


def _script(cell: Cell) -> ScriptTarget:
    assert isinstance(cell.workload, ScriptTarget)
    return cell.workload


def _timed(block: Block, host_ns: Sequence[int | None], period: int) -> Block:
    """Return a block with the moments at which the host began and ended it."""
    ends = (block.first * period, (block.first + block.count) * period)
    start_ns, end_ns = (host_ns[i] if i < len(host_ns) else None for i in ends)
    return block.model_copy(update={"start_ns": start_ns, "end_ns": end_ns})


def _together(calls: Sequence[FeedCounts | None]) -> FeedCounts:
    """Return what a step was fed; without samples where its batches do not tell."""
    known = [one for one in calls if one is not None]
    samples = [one.samples for one in known]
    return FeedCounts(
        None,
        None if None in samples else sum(n for n in samples if n),
        sum(one.tokens for one in known),
        sum(one.waited_s for one in known),
        sum(one.batches for one in known),
        sum(one.others for one in known),
        sum(one.most for one in known),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean over steps, which is what a job pays for; None: some step is not known."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None


def _has_trend(work: Sequence[float | None]) -> bool:
    """Tell whether a step's work grows or shrinks over a window, as where accumulation warms up.

    Source: Mann 1945, "Nonparametric tests against trend"; with ties, Kendall 1975, section 4.2.
    """
    if None in work or len({*work}) < 2:
        return False
    parts = np.array_split(np.array(work, dtype=float), min(len(work), MOST_MEANS))
    means = [float(part.mean()) for part in parts]
    n, third = len(means), -(-len(means) // 3)
    if abs(np.mean(means[-third:]) - np.mean(means[:third])) <= ALIKE * np.mean(means):
        return False
    rises = sum(np.sign(b - a) for i, a in enumerate(means) for b in means[i + 1 :])
    ties = np.unique(means, return_counts=True)[1]
    variance = (n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
    return bool(abs(rises) > LEAST_TREND * np.sqrt(variance))


def _cut(everybody: Sequence[RankSeen], part: float | None) -> float | None:
    """Return what a rank takes of batches that all ranks read and divide; None: it is not so."""
    parts = [one.part or 0.0 for one in everybody]
    is_whole = len(parts) > 1 and abs(sum(parts) - 1) < ROUNDING and min(parts) > 0
    prints = {one.given_print for one in everybody} - {0}
    return part if _read_alike(everybody) and is_whole and len(prints) == len(everybody) else None


def _read_alike(everybody: Sequence[RankSeen]) -> bool:
    batches = everybody[0].batches
    return bool(batches) and all(one.batches == batches for one in everybody)


def _may_cut(everybody: Sequence[RankSeen]) -> bool:
    """Tell whether ranks read the same batches, and train on what has other losses.

    Inside of what is compiled, it is not seen which part each takes.
    """
    losses = {one.loss for one in everybody}
    return _read_alike(everybody) and None not in losses and len(losses) > 1


def _may_share(everybody: Sequence[RankSeen]) -> bool:
    """Tell whether ranks read the same batches: without a wrapper they may divide the layers.

    A stand-in for data, the same in each step, tells nothing.
    """
    read = Counter(tuple(one.batches) for one in everybody if len({*one.batches}) > 2)
    return any(count > 1 for count in read.values())


def _one_reader(everybody: Sequence[RankSeen]) -> RankSeen | None:
    """Return the rank that alone reads, and hands each rank its part; None: it is not so.

    So does Accelerate with a stream: what all models are given is what that rank reads.
    """
    readers = [one for one in everybody if one.read or one.read is None]
    given = [one.given or 0.0 for one in everybody]
    is_so = len(everybody) > 1 == len(readers) and min(given) > 0
    return readers[0] if is_so and sum(given) == readers[0].read else None


ROUNDING = 1e-9


def _tells_samples(
    raw: Mapping[str, Any], first: FeedCounts, fed: Sequence[FeedCounts], passes: Sequence[float]
) -> bool:
    """Tell whether the samples that were read are those that were trained on.

    They are not where the model is given other rows, where one of several loaders may evaluate,
    where most steps read nothing and train on a batch of an earlier one, and where a loader hands
    over several batches for a backward pass: some may be left out, unless the model was given all
    rows of as many in the first step. So they may where there are as many as backward passes, of
    which the first step has more.
    """
    if raw.get("trains_on_part") or raw.get("samples_doubted"):
        return False
    batches, most = [one.batches for one in fed], [one.most for one in fed]
    reads_several = raw["period"] == 1 and sum(batches) > sum(most) * (1 + ALIKE)
    if reads_several and raw.get("given_less"):
        return False
    passes_first = sum(raw["backwards"][: raw["period"]])
    if not sum(passes) or _usual(batches) == _usual(passes):
        has_several = 0 < first.batches < passes_first == _usual(passes)
        return not has_several or bool(_fewest_read(batches, passes))
    if _usual(batches) == 0 and sum(batches) < sum(passes) * (1 - ALIKE):
        return False
    leaves_out = sum(most) > sum(passes) * (1 + ALIKE)
    return not leaves_out or bool(raw.get("trains_on_all") and first.most >= _usual(most))


def _consumed(batches: Sequence[float], passes: Sequence[float]) -> float:
    """Return how many batches were trained on, for each that was read.

    A loader may read ahead, as Accelerate's does: an epoch's first step then reads a batch more
    and its last one fewer, and a window that holds only one of the two has a batch too many. Where
    each backward pass takes one batch, the passes tell.
    """
    if fewest := _fewest_read(batches, passes):
        return fewest * len(batches) / sum(batches)
    takes_one = sum(batches) > 0 and _usual(batches) == _usual(passes)
    return sum(passes) / sum(batches) if takes_one else 1.0


def _fewest_read(batches: Sequence[float], passes: Sequence[float]) -> float:
    """Return how many batches a step trains on where some steps read more; 0: it is not known.

    Each batch has several passes, of which all steps have as many: what some read beyond the others
    is left out. Those that read fewer are many; after reading ahead they are few.
    """
    fewest = min(batches, default=0)
    is_usual = batches.count(fewest) > LEAST_USUAL * len(batches)
    return fewest if len({*passes}) == 1 and fewest < passes[0] and is_usual else 0


def _usual(values: Sequence[float]) -> float:
    return Counter(values).most_common(1)[0][0] if values else 0.0


LEAST_USUAL = 0.4
"""Of the steps: so many read as few batches as a step trains on."""

LEAST_SENT = 1e-3
"""Bytes that a rank sends in a step for each parameter, at least. The strongest compression in use
sends about twice as much, and a model that is averaged every 500 steps eight times."""


def _check_exchange(raw: Mapping[str, Any], script: str) -> None:
    """Raise ValueError if the ranks trained separately: they sent nothing, or no gradients.

    Wrappers send by themselves, not all from Python, if the model is called through them; without
    one all that is sent passes through Python's own calls.
    """
    if raw["traffic"] is None:
        return
    operations, called, called_bytes = raw["traffic"]
    steps = max(1, (len(raw["call_s"]) - FIRST_LOOK) // raw["period"])
    parameters = raw["num_parameters"] or 0
    what = "nothing"
    if operations:
        kinds = {one["kind"] for one in raw["facts"]["wrappers"]}
        if kinds - {"DistributedDataParallel"} or called < operations:
            return
        if called_bytes >= LEAST_SENT * parameters * steps:
            return
        what = (
            f"{called_bytes / steps:.3g} bytes a step, which cannot hold the gradients of "
            f"{parameters:,} parameters,"
        )
    names = raw["facts"].get("modules") or []
    model = " and ".join(names[:MOST_NAMED]) or "The model"
    raise ValueError(script + NO_EXCHANGE.format(what=what, steps=steps, model=model))
