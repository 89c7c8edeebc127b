"""The step of many configurations at once, part by part, and a bound that it never goes below.

The parts are those of the cost models: passes and bubble of a pipeline (`pipeline_schedule`), what
tensor, context and expert groups send (`tensor_layers`, `context_layers`, `expert_layers`),
gradients in buckets behind the backward pass (`replay`). What a group sends inside a pass, its
ranks wait for; only ring attention and gathers hide behind computation.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache

import numpy as np

from scalebench.costmodel import tensor_layers
from scalebench.costmodel.context_layers import (
    AttendingModel,
    ExpertModel,
    operations_of_context_step,
    operations_of_expert_step,
)
from scalebench.search.candidates import CHECKPOINTING, SCHEDULES, Candidates, Floats, Ints
from scalebench.search.model import SearchModel
from scalebench.search.prediction import memory
from scalebench.search.prediction.passes import (
    Passes,
    bubble_s,
    passes_of,
    ring_hides_s,
    times_again,
)
from scalebench.search.space import Job
from scalebench.spec import Context, Expert, Tensor


@dataclass(frozen=True)
class StepParts:
    """Where the time of a step goes, seconds; the parts sum to the step.

    Attributes:
        compute_s: The fullest rank's passes.
        bubble_s: Its idle time by the schedule, and what groups send during the filling.
        tensor_s: What a tensor group's ranks wait for; context and expert likewise.
        pipeline_s: Messages between stages.
        shard_s: Gathered parameters and scattered gradients that nothing hides.
        data_s: All-reduced gradients that nothing hides.
        update_s: The optimizer.
    """

    compute_s: Floats
    bubble_s: Floats
    tensor_s: Floats
    context_s: Floats
    expert_s: Floats
    pipeline_s: Floats
    shard_s: Floats
    data_s: Floats
    update_s: Floats

    @property
    def step_s(self) -> Floats:
        """The step."""
        return np.asarray(np.sum([getattr(self, part.name) for part in fields(self)], axis=0))


PARTS = {
    "compute_s": "computation",
    "bubble_s": "the bubble",
    "tensor_s": "tensor groups' messages",
    "context_s": "context groups' messages",
    "expert_s": "expert groups' messages",
    "pipeline_s": "messages between stages",
    "shard_s": "gathering and scattering shards",
    "data_s": "all-reduced gradients",
    "update_s": "the optimizer",
}
"""Field of `StepParts` → its name in a sentence."""


def step_parts(job: Job, of: Candidates) -> StepParts:
    """Return the step of each candidate in parts.

    Raises:
        NoFit: Nothing tells what an operation takes.
    """
    layers, flops = memory.stage_table(job, of)
    share = layers / job.model.layers
    scale = memory.samples_of(job, of) * memory.BYTES[of.precision] / tensor_layers.FP32_BYTES
    tensor = share * per_microbatch_s(job, of, "tensor", scale / of.context)
    context = share * per_microbatch_s(job, of, "context", scale / of.tensor)
    context = np.maximum(context - ring_hides_s(job, of, flops, layers), 0.0)
    expert = share * per_microbatch_s(job, of, "expert", scale / of.tensor)
    passes = passes_of(job, of, layers, flops, tensor + context + expert)
    m = of.microbatches
    parts = StepParts(
        compute_s=m * (passes.forward_s + passes.backward_s),
        bubble_s=bubble_s(of, passes, tensor + context + expert),
        tensor_s=m * tensor,
        context_s=m * context,
        expert_s=m * expert,
        pipeline_s=hops_s(job, of, passes),
        shard_s=shards_s(job, of, passes, layers),
        data_s=gradients_s(job, of, passes, layers),
        update_s=_update(job, of, layers),
    )
    if job.corrected is None:
        return parts
    factor = job.corrected(job, of)
    return StepParts(*(factor * getattr(parts, part.name) for part in fields(parts)))


def bound_s(job: Job, of: Candidates) -> Floats:
    """Return what no step can be shorter than: passes, bubble and optimizer, links of no cost."""
    layers, flops = memory.stage_table(job, of)
    passes = passes_of(job, of, layers, flops)
    shortest = (
        of.microbatches * (passes.forward_s + passes.backward_s)
        + bubble_s(of, passes, 0.0 * layers)
        + _update(job, of, layers)
    )
    return np.asarray(shortest if job.corrected is None else shortest * job.corrected(job, of))


def _update(job: Job, of: Candidates, layers: Floats) -> Floats:
    experts, dense = memory.local_parameters(job, of, layers)
    if job.speed.device is not None:
        own = (experts + dense) / np.where(of.zero >= 1, of.shard, 1)
        return np.asarray(job.speed.device.update_s(own))
    part = (experts + dense) / job.model.num_parameters
    return np.asarray(job.speed.update_s * part / np.where(of.zero >= 1, of.shard, 1))


def hidden_behind(parts: Ints, each_s: Floats, window_s: Floats) -> Floats:
    """Return what is not hidden of equal operations, one asked for after each part of a window.

    `scalebench.costmodel.step` with ready times at an even pace: the link is late from the
    first one on, or only the last one is left: ``max(n·x − T·(1 − 1/n), x)``.
    """
    late = parts * each_s - window_s * (1 - 1 / np.maximum(parts, 1))
    return np.maximum(late, each_s)


ACROSS_POWER = 0.75
"""Power of its nodes by which a tensor group's messages take longer than its links alone explain:
none hides behind computation, and each waits for the slowest node. Chosen on published rows: of 62
H100 groups over 2 to 4 nodes the error falls from 25 to 22 %, of 3 on A100 from 30 to 5 %."""

Sent = tuple[str, float, int]
"""Operation, bytes for one sample in float32, how often."""


@cache
def tensor_messages(
    model: SearchModel, ranks: int, sequence: bool
) -> tuple[tuple[Sent, ...], tuple[Sent, ...]]:
    """Return what a tensor group sends for one sample: forward, and forward and backward."""
    divides = sequence and model.context % ranks == 0
    strategy = Tensor(size=ranks, sequence=divides, loss=True)
    counted = tensor_layers.model_of_preset(model.as_gpt, 1, divides)
    found = tensor_layers.operations_of_step(strategy, counted, ranks, 1)
    passes = [op for op in found if op.phase != "gradients"]
    return _counted(op for op in passes if op.phase == "forward"), _counted(passes)


@cache
def context_messages(
    model: SearchModel, ranks: int, ring: bool
) -> tuple[tuple[Sent, ...], tuple[Sent, ...]]:
    """Return the same of a context group, gradients not in it."""
    strategy = Context(size=ranks, method="ring" if ring else "ulysses")
    counted = AttendingModel.of_preset(model.as_gpt, 1)
    found = operations_of_context_step(strategy, counted, ranks, 1)
    passes = [op for op in found if op.phase != "gradients"]
    return _counted(op for op in passes if op.phase == "forward"), _counted(passes)


@cache
def expert_messages(model: SearchModel, ranks: int) -> tuple[tuple[Sent, ...], tuple[Sent, ...]]:
    """Return the same of an expert group."""
    counted = ExpertModel.of_preset(model.as_mixture, 1)
    found = operations_of_expert_step(Expert(size=ranks), counted, ranks, 1)
    passes = [op for op in found if op.axis == "expert"]
    return _counted(op for op in passes if op.phase == "forward"), _counted(passes)


def _counted(operations: Iterable[tensor_layers.Operation]) -> tuple[Sent, ...]:
    found = Counter((op.op, float(op.num_bytes)) for op in operations)
    return tuple((op, size, times) for (op, size), times in found.items())


def _sent_s(
    job: Job,
    of: Candidates,
    axis: str,
    messages: tuple[tuple[Sent, ...], tuple[Sent, ...]],
    scale: Floats,
) -> Floats:
    """Return seconds of a group's messages for one microbatch of the whole model.

    Args:
        job: What is searched.
        of: Candidates whose groups send these messages.
        axis: Of the mesh.
        messages: Of forward, and of both passes, for one sample.
        scale: Samples of a microbatch, and the part of its tokens and bytes.
    """
    ranks, near = getattr(of, axis), getattr(of, f"near_{axis}")
    forward, both = messages
    total = np.zeros(len(of))
    again = times_again(of)
    if not job.selective_sends_again:
        again = np.where(of.checkpointing == CHECKPOINTING.index("selective"), 0.0, again)
    for sent, counts in ((both, True), (forward, again)):
        for op, size, times in sent:
            total += counts * times * job.links.time(op, ranks, near, size * scale)
    return total


def per_microbatch_s(job: Job, of: Candidates, axis: str, scale: Floats) -> Floats:
    """Return what a group's ranks send for one microbatch of the whole model, by its axis."""
    sizes = getattr(of, axis)
    total = np.zeros(len(of))
    for model, has in job.model.alike(len(of)):
        for size in np.unique(sizes[has & (sizes > 1)]):
            for ring in (0, 1) if axis == "context" else (None,):
                mine = has & (sizes == size) & ((of.ring == ring) if ring is not None else True)
                if not mine.any():
                    continue
                if axis == "tensor":
                    messages = tensor_messages(model, int(size), job.sequence)
                elif axis == "context":
                    messages = context_messages(model, int(size), bool(ring))
                    if job.speed.device is not None:  # keys and values of fewer heads
                        shared = model.kv_heads / model.heads
                        fewer = shared if ring else (1 + shared) / 2
                        fewer *= model.heads_width / model.width
                        scale = np.where(mine, scale * fewer, scale)
                else:
                    messages = expert_messages(model, int(size))
                total[mine] = _sent_s(job, of.take(mine), axis, messages, scale[mine])
    if axis == "tensor" and job.speed.device is not None:
        total *= (of.tensor / of.near_tensor) ** ACROSS_POWER
    return total


def exposed_hops(of: Candidates) -> Floats:
    """Return how many messages between stages lengthen a step.

    What a dry run of the schedules shows where messages are short (a test compares): GPipe and
    breadth-first ``2(p−1)``, when the pipeline fills and empties; 1F1B ``2(p−1)·m/p + 2(p−2)``, as
    each of its microbatches waits for the next rank's answer; zero-bubble ``4(p−1)``; interleaved
    ``2(p·v−1)``.
    """
    p, m, v = of.pipeline, of.microbatches, of.chunks
    names = np.array(SCHEDULES)[of.schedule]
    found = np.select(
        [names == "1f1b", names == "zero-bubble", names == "interleaved-1f1b", names == "none"],
        [2 * (p - 1) * m / p + 2 * (p - 2), 4.0 * (p - 1), 2.0 * (p * v - 1), 0.0 * p],
        default=2.0 * (p - 1),
    )
    return np.asarray(np.where(p > 1, found, 0.0))


def exposed_hops_s(of: Candidates, each_s: Floats, passes: Passes) -> Floats:
    """Return how much messages between stages lengthen a step, seconds.

    `exposed_hops`, and that a link carries one message after another. GPipe and breadth-first send
    in one direction at a time, so where a message takes longer than the pass behind it, each of
    the ``m·v − 1`` others adds the difference, in both directions. Other schedules send in both
    directions all along, and cannot be faster than the messages of the rank that sends most:
    ``2v − 1`` for each microbatch with two ranks, ``2v`` with more.

    Args:
        of: Candidates.
        each_s: One message.
        passes: Of a microbatch on one rank.
    """
    p, m, v = of.pipeline, of.microbatches, of.chunks
    short = exposed_hops(of) * each_s
    slower = sum(np.maximum(each_s - one / v, 0.0) for one in (passes.forward_s, passes.backward_s))
    one_way = np.isin(np.array(SCHEDULES)[of.schedule], ("gpipe", "looped-bfs"))
    sent = m * np.where(p == 2, 2 * v - 1, 2 * v)
    both_ways = hidden_behind(sent, each_s, m * (passes.forward_s + passes.backward_s))
    found = np.where(one_way, short + (m * v - 1) * slower, np.maximum(short, both_ways))
    return np.asarray(np.where(p > 1, found, 0.0))


def hops_s(job: Job, of: Candidates, passes: Passes) -> Floats:
    """Return how much messages between stages lengthen a step, of the size that a job sends, s."""
    size = memory.hop_bytes(job, of)
    pair = np.full(len(of), 2)
    near = np.where(of.near_pipeline > 1, 2, 1)
    crosses = of.near_pipeline < of.pipeline  # some pair of stages is on two nodes
    near = np.where(crosses, 1, near)
    # As many messages of a node cross at once as it has ranks that do not share the stage.
    if not job.scatters_messages or job.sequence:
        found = exposed_hops_s(of, job.links.time("send_recv", pair, near, size), passes)
        if job.speed.device is not None:  # the host hands over every microbatch
            started = job.speed.device.values.hop_s * 2 * of.microbatches * of.chunks
            found = found + np.where(of.pipeline > 1, started, 0.0)
        return np.asarray(found)
    gathered = job.links.time("all_gather", of.tensor, of.near_tensor, size)
    each = job.links.time("send_recv", pair, near, size / of.tensor) + gathered
    return exposed_hops_s(of, each, passes)


def _group(of: Candidates, *axes: str) -> tuple[Ints, Ints]:
    """Return the ranks of a group along several axes, and how many of them share a node."""
    ranks = np.prod([getattr(of, axis) for axis in axes], axis=0)
    near = np.prod([getattr(of, f"near_{axis}") for axis in axes], axis=0)
    return ranks, near


def shards_s(job: Job, of: Candidates, passes: Passes, layers: Floats) -> Floats:
    """Return gathers and scatters of a sharded rank that nothing hides.

    Stage 1: parameters are exchanged once, after the optimizer. Stage 2: gathered once a step,
    gradients scattered for each microbatch; with stages, once behind the last one. Stage 3:
    gathered for each pass of each microbatch.
    """
    experts, dense = memory.local_parameters(job, of, layers)
    size = memory.MASTER_BYTES * (experts + dense)
    reduced = job.framework.gradient_bytes * (experts + dense)
    blocks = np.maximum(layers, 1) + 1
    ranks, near = of.shard, of.near_shard
    if not (ranks > 1).any():
        return np.zeros(len(of))
    gathered = size * job.gathered_bytes_each / memory.MASTER_BYTES
    known = job.speed.device is not None
    once = job.links.time("all_gather", ranks, near, gathered if known else size)
    gather = job.links.time("all_gather", ranks, near, gathered / blocks)
    scatter = job.links.time("reduce_scatter", ranks, near, reduced / blocks)
    m = of.microbatches
    hides = job.hides
    if job.overlaps:
        number = np.asarray(blocks, dtype=np.int64)
        forward = hidden_behind(number, gather, hides * passes.forward_s)
        both = hidden_behind(number, gather + scatter, hides * passes.backward_s)
        only = hidden_behind(number, scatter, hides * passes.backward_s)
    else:
        forward, only, both = blocks * gather, blocks * scatter, blocks * (gather + scatter)
    times = np.where(of.pipeline > 1, 1, m)
    if job.overlaps:
        staged = _behind_first_chunks(of, number, gather, passes.forward_s)
        forward = np.where((of.zero == 2) & (of.pipeline > 1), staged, forward)
    if job.framework.overlap:
        once = hidden_behind(number, once / number, hides * passes.forward_s)
    exposed = np.select(
        [of.zero == 1, of.zero == 2, of.zero == 3],
        [once, forward + times * only, m * (forward + both)],
        default=0.0,
    )
    return np.asarray(np.where(ranks > 1, exposed, 0.0))


def _behind_first_chunks(of: Candidates, number: Ints, gather: Floats, forward_s: Floats) -> Floats:
    """Return what the first rank waits for gathers at the start of a step.

    It needs the blocks of its first chunk for the first microbatch, those of the next chunk when
    up to p microbatches have passed the first: the gathers of the whole rank hide behind these
    too. With one chunk it is `hidden_behind`.
    """
    v = of.chunks
    of_chunk = np.maximum(number // v, 1)
    first = hidden_behind(of_chunk, gather, forward_s / v)
    before_last = (v - 1) / v * np.minimum(of.microbatches, of.pipeline) * forward_s
    late = number * gather - before_last - forward_s / v * (1 - 1 / of_chunk)
    return np.asarray(np.maximum(first, late))


def gradients_s(job: Job, of: Candidates, passes: Passes, layers: Floats) -> Floats:
    """Return all-reduces of gradients that nothing hides.

    Pure data parallel training sends its buckets during the last backward pass; meshes with other
    axes wait for one all-reduce after it. From stage 2 on a rank has a part of the gradients.
    """
    experts, dense = memory.local_parameters(job, of, layers)
    own = np.where(of.zero >= 2, of.shard, 1)
    axes = ("data", "expert", "context")
    ranks, near = _group(of, *axes)
    all_ranks, all_near = _group(of, *axes, "shard")
    ranks = np.where(of.zero == 1, all_ranks, ranks)
    near = np.where(of.zero == 1, all_near, near)
    size = job.framework.gradient_bytes * dense / own
    alone = (of.tensor == 1) & (of.context == 1) & (of.pipeline == 1) & (of.zero <= 1)
    buckets = np.ceil(size / (of.bucket_mb * 2**20))
    buckets = np.where(alone, buckets, layers + 1 if job.framework.overlap else 1)
    number = buckets.astype(np.int64)
    number = np.maximum(number, 1)
    each = job.links.time("all_reduce", ranks, near, size / number)
    if job.speed.device is not None:  # frameworks scatter what ZeRO-1 does not keep
        scatter = job.links.time("reduce_scatter", ranks, near, size / number)
        each = np.where(of.zero == 1, scatter, each)
    alone = alone | job.framework.overlap
    exposed = np.where(alone, hidden_behind(number, each, job.hides * passes.backward_s), each)
    copies, near_copies = _group(of, "data", "context")
    copies = np.where(of.zero == 1, copies * of.shard, copies)
    near_copies = np.where(of.zero == 1, near_copies * of.near_shard, near_copies)
    reduced = job.framework.gradient_bytes * experts / own
    of_experts = job.links.time("all_reduce", copies, near_copies, reduced)
    has_experts = (experts > 0) & (copies > 1)
    return np.asarray(np.where(ranks > 1, exposed, 0.0) + np.where(has_experts, of_experts, 0.0))
