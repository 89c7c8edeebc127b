"""What exchanging gradients and shards adds to a step: what computation does not hide of it.

Gradients leave in buckets behind the backward pass, shards are gathered ahead of the passes.
"""

import numpy as np

from scalebench.costmodel.search.job import SCHEDULES, Job
from scalebench.costmodel.search.memory import MASTER_BYTES, hop_bytes, local_parameters
from scalebench.costmodel.search.space import Candidates, Floats, Ints
from scalebench.costmodel.search.step.hiding import hidden_behind
from scalebench.costmodel.search.step.passes import Passes


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
    size = hop_bytes(job, of)
    pair = np.full(len(of), 2)
    near = np.where(of.near_pipeline > 1, 2, 1)
    crosses = of.near_pipeline < of.pipeline  # some pair of stages is on two nodes
    near = np.where(crosses, 1, near)
    # As many messages of a node cross at once as it has ranks that do not share the stage.
    if not job.scatters_messages or job.sequence:
        return exposed_hops_s(of, job.links.time("send_recv", pair, near, size), passes)
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
    experts, dense = local_parameters(job, of, layers)
    size = MASTER_BYTES * (experts + dense)
    blocks = np.maximum(layers, 1) + 1
    ranks, near = of.shard, of.near_shard
    if not (ranks > 1).any():
        return np.zeros(len(of))
    once = job.links.time("all_gather", ranks, near, size)
    gathered = size * job.gathered_bytes_each / MASTER_BYTES
    gather = job.links.time("all_gather", ranks, near, gathered / blocks)
    scatter = job.links.time("reduce_scatter", ranks, near, size / blocks)
    m = of.microbatches
    if job.overlaps:
        number = np.asarray(blocks, dtype=np.int64)
        forward = hidden_behind(number, gather, passes.forward_s)
        both = hidden_behind(number, gather + scatter, passes.backward_s)
        only = hidden_behind(number, scatter, passes.backward_s)
    else:
        forward, only, both = blocks * gather, blocks * scatter, blocks * (gather + scatter)
    times = np.where(of.pipeline > 1, 1, m)
    if job.overlaps:
        staged = _behind_first_chunks(of, number, gather, passes.forward_s)
        forward = np.where((of.zero == 2) & (of.pipeline > 1), staged, forward)
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
    experts, dense = local_parameters(job, of, layers)
    own = np.where(of.zero >= 2, of.shard, 1)
    axes = ("data", "expert", "context")
    ranks, near = _group(of, *axes)
    all_ranks, all_near = _group(of, *axes, "shard")
    ranks = np.where(of.zero == 1, all_ranks, ranks)
    near = np.where(of.zero == 1, all_near, near)
    size = MASTER_BYTES * dense / own
    alone = (of.tensor == 1) & (of.context == 1) & (of.pipeline == 1) & (of.zero <= 1)
    number = np.where(alone, np.ceil(size / (of.bucket_mb * 2**20)), 1).astype(np.int64)
    number = np.maximum(number, 1)
    each = job.links.time("all_reduce", ranks, near, size / number)
    exposed = np.where(alone, hidden_behind(number, each, passes.backward_s), each)
    copies, near_copies = _group(of, "data", "context")
    copies = np.where(of.zero == 1, copies * of.shard, copies)
    near_copies = np.where(of.zero == 1, near_copies * of.near_shard, near_copies)
    of_experts = job.links.time("all_reduce", copies, near_copies, MASTER_BYTES * experts / own)
    has_experts = (experts > 0) & (copies > 1)
    return np.asarray(np.where(ranks > 1, exposed, 0.0) + np.where(has_experts, of_experts, 0.0))
