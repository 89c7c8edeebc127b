"""What a rank computes in a step: passes of a microbatch, and the bubble of a pipeline."""

from dataclasses import dataclass

import numpy as np

from scalebench.costmodel.pipelines.orders import bubble_law
from scalebench.search.candidates import CHECKPOINTING, PRECISIONS, SCHEDULES, Candidates, Floats
from scalebench.search.devices.operators import device_passes
from scalebench.search.job import ASSUMED_RECOMPUTING, Job, Recomputing
from scalebench.search.prediction.memory import samples_of

WEIGHT_GROUPS = 6
"""Groups of weights of a transformer block, each with an input of its own: two norms, queries with
keys and values, what attention returns, and both matrices of the MLP."""


@dataclass(frozen=True)
class Passes:
    """Forward and backward of one microbatch on the fullest rank, seconds.

    Attributes:
        weights_s: The part of backward that makes the gradients of weights.
        others_s: Both passes of a mean rank; None: as the fullest's.
    """

    forward_s: Floats
    backward_s: Floats
    weights_s: Floats
    others_s: Floats | None = None


def passes_of(
    job: Job, of: Candidates, layers: Floats, flops: Floats, sent_s: Floats | float = 0.0
) -> Passes:
    """Return what a rank computes for one microbatch.

    Backward is twice forward, and what checkpointing computes again, `times_again`. What a backward
    pass in two calls takes longer is shared by both. Where the operators of a device are known,
    they are added up, and the host starts them while groups send (``sent_s``).
    """
    if (device := job.speed.device) is not None:
        return Passes(*device_passes(device, job, of, layers, flops, sent_s))
    per_flop = np.array([job.speed.flop_s.get(name, np.nan) for name in PRECISIONS])
    forward = flops * samples_of(job, of) / (of.tensor * of.context) * per_flop[of.precision]
    start = job.speed.pass_s * layers / job.model.layers  # starting operators: a third in forward
    start = start + _machinery_s(job, of, layers)
    times = times_again(of)
    once = _again_s(job, of, forward, layers / job.model.layers)
    of_weights = np.where(times > 1, times - 1, 0) * once
    zero = of.schedule == SCHEDULES.index("zero-bubble")
    split = np.where(zero, job.speed.split_s * layers / job.model.layers, 0.0)
    backward = 2 * forward + times * once + 2 * start / 3 + split
    return Passes(forward + start / 3, backward, forward + of_weights + split / 2)


def times_again(of: Candidates) -> Floats:
    """Return how often checkpointing computes a microbatch's blocks again; 0 without it.

    Once, but with zero-bubble 1 + `WEIGHT_GROUPS` times: torch makes the gradients of inputs in
    one call of autograd, and those of weights in a call for each group of weights of a block. Every
    call computes the block again. The first stage has one call; the others set the pace.
    """
    again = of.checkpointing != CHECKPOINTING.index("none")
    zero = of.schedule == SCHEDULES.index("zero-bubble")
    return np.asarray(np.where(again, np.where(zero, 1.0 + WEIGHT_GROUPS, 1.0), 0.0))


def _again_s(job: Job, of: Candidates, forward: Floats, share: Floats) -> Floats:
    """Return what it takes a rank to compute a microbatch's blocks again once, seconds.

    Args:
        job: What is searched.
        of: Candidates.
        forward: Their forward pass, what starting operators takes not in it.
        share: Of the model's layers.
    """
    known = {**ASSUMED_RECOMPUTING, **job.speed.recomputing}
    each = [known.get(name, Recomputing(0.0)) for name in CHECKPOINTING]
    forwards = np.array([one.forwards for one in each])[of.checkpointing]
    pass_s = np.array([one.pass_s for one in each])[of.checkpointing]
    return np.asarray(forwards * forward + pass_s * share)


def _machinery_s(job: Job, of: Candidates, layers: Floats) -> Floats:
    """Return what wrappers and schedules cost a rank for one microbatch, messages not in it."""
    share = layers / job.model.layers
    total = np.zeros(len(of))
    for axis, seconds in job.speed.axis_s.items():
        each = of.chunks if axis == "pipeline" else share
        used = of.zero >= 2 if axis == "shard" else getattr(of, axis) > 1
        total += np.where(used, seconds * each, 0.0)
    return total


def filling_passes(of: Candidates) -> Floats:
    """Return the bubble of a step, in units of a microbatch's passes on one rank.

    ``(p−1)/v``: all schedules have the law of interleaving, those with one chunk at v = 1.
    Zero-bubble schedules spare a part of it, see `bubble_s`.
    """
    p, m, v = of.pipeline, of.microbatches, of.chunks
    idle = bubble_law("interleaved-1f1b", p, m, v)  # type: ignore[arg-type]
    assert idle is not None, "interleaving has a law; without stages it says 0"
    return np.asarray(m * idle / (1 - idle))


def bubble_s(of: Candidates, passes: Passes, sent_s: Floats) -> Floats:
    """Return the idle time of the fullest rank, and what groups send in it.

    Zero-bubble: ``(p−1)·max(F + I − W, F, I)``, the dry run of torch's order (a test compares).
    """
    others = passes.forward_s + passes.backward_s if passes.others_s is None else passes.others_s
    filled = filling_passes(of) * (others + sent_s)
    zero = of.schedule == SCHEDULES.index("zero-bubble")
    forward, inputs = passes.forward_s, passes.backward_s - passes.weights_s
    idle = np.maximum.reduce([forward + inputs - passes.weights_s, forward, inputs])
    return np.asarray(np.where(zero, (of.pipeline - 1) * (idle + sent_s), filled))


def ring_hides_s(job: Job, of: Candidates, flops: Floats, layers: Floats) -> Floats:
    """Return the mixing of attention behind which a ring's messages hide, one microbatch, s."""
    per_flop = np.array([job.speed.flop_s.get(name, np.nan) for name in PRECISIONS])
    mixing = 3 * layers * job.model.mixing_flops * samples_of(job, of)
    turns = (of.context - 1) / of.context
    hidden = mixing / (of.tensor * of.context) * per_flop[of.precision] * turns
    return np.asarray(np.where(of.ring == 1, hidden, 0.0))
