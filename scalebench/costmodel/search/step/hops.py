"""What messages between stages add to a step."""

import numpy as np

from scalebench.costmodel.search.job import SCHEDULES, Job
from scalebench.costmodel.search.memory import hop_bytes
from scalebench.costmodel.search.space import Candidates, Floats
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
