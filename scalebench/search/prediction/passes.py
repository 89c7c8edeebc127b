"""What a rank computes in a step: operator by operator, passes, the bubble of a pipeline.

What a rank computes on a device that is not here: operator by operator, from facts.

A matrix product takes its arithmetic at a part of the published peak, longer by half a wave of
tiles that keeps only some units busy, or the time to move its matrices, whichever is longer.
Everything between the products moves what a block stores through memory. The host starts operators
one after another; a pass cannot take less than that. Times are of one block, or of the logits, for
one microbatch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from scalebench.costmodel.pipeline_schedule import bubble_law
from scalebench.search.candidates import CHECKPOINTING, PRECISIONS, SCHEDULES, Candidates, Floats
from scalebench.search.devices.parameters import DeviceModel
from scalebench.search.prediction.memory import divided_numbers, samples_of
from scalebench.search.space import ASSUMED_RECOMPUTING, Framework, Job, Recomputing

TILE = 128
"""Rows and columns of a tile that one unit of the device works on (CUTLASS's usual)."""

OPERATORS = {"eager": (30, 53), "compiled": (12, 12), "graphs": (0, 0)}
"""Of a block's forward pass that the host starts one by one, without and with a gated MLP; a
backward pass has twice as many. By their code nanotron's Llama starts about 30 (rotary positions,
masks, pieces of gathered products) where Megatron-LM's GPT starts 17, which count as 30."""

FLASH_BACKWARD = 2.5
"""FLOPs of flash attention backward over forward (Dao 2023, FlashAttention-2, §4.1)."""

ATTENTION = {"triton": 0.55, "flash": 1.0, "hopper": 1.6, "stored": 1.0}
"""Kernel → its speed over FlashAttention-2's, which is 1.3 to 2.5 times as fast as the first one in
Triton (Dao 2023, §4.1); FlashAttention-3 and cuDNN on Hopper are 1.5 to 2.0 times as fast forward,
1.5 to 1.75 times backward (Shah et al. 2024, §4.1)."""

LOGIT_BYTES = (8.0, 10.0)
"""Moved for each logit, forward and backward: 16 bits, 32 bits, their softmax and gradients."""
WEIGHT_GROUPS = 6
"""Groups of weights of a transformer block, each with an input of its own: two norms, queries with
keys and values, what attention returns, and both matrices of the MLP."""


def device_passes(
    device: DeviceModel,
    job: Job,
    of: Candidates,
    layers: Floats,
    flops: Floats,
    sent_s: Floats | float,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return forward and backward of the fullest rank, the gradients of weights, and a mean rank.

    All for one microbatch, seconds; what is computed again is in backward.

    Args:
        device: What computes.
        job: What is computed.
        of: Candidates.
        layers: Of the fullest rank.
        flops: Its forward FLOPs, one sample.
        sent_s: What groups send in one microbatch: the host starts operators meanwhile.
    """
    rate = Rate(device, job.framework)
    forward, inputs, weights, again = _block(job, of, rate)
    top_forward, top_backward = _top(job, of, rate)
    model = job.model
    heads = flops > layers * model.block_flops * (1 + 1e-9)
    plain, gated = OPERATORS[job.framework.launch]
    launches = np.where(model.gated, gated, plain) * device.values.launch_s
    full = of.checkpointing == CHECKPOINTING.index("full")
    host = launches * (3.0 + full) * (1 + device.values.skew * _sending_hosts(of))
    device_s = forward + inputs + weights + again
    slower = np.maximum(1.0, (host - sent_s / np.maximum(layers, 1)) / device_s)
    forward, inputs, weights, again = (x * slower for x in (forward, inputs, weights, again))
    zero = of.schedule == SCHEDULES.index("zero-bubble")
    again = np.where(zero, 7.0, 1.0) * again
    backward = inputs + weights + again
    whole = model.layers * (forward + backward) + top_forward + top_backward
    return (
        layers * forward + heads * top_forward,
        layers * backward + heads * top_backward,
        layers * weights + heads * top_backward / 2,
        whole / of.pipeline,
    )


def _sending_hosts(of: Candidates) -> Floats:
    """Return how many other hosts a tensor group's rank waits for that also send between nodes.

    All of the group where stages are on other nodes. Otherwise a group that spans nodes has a ring
    that leaves each of them once.
    """
    stages = (of.pipeline > 1) & (of.near_pipeline < of.pipeline)
    ring = np.where(of.near_tensor < of.tensor, of.tensor / of.near_tensor, 0.0)
    return np.asarray(np.where(stages, of.tensor - 1.0, ring))


class Rate:
    """How long a device takes for a product, and to move bytes; `Framework` says in what format."""

    def __init__(self, device: DeviceModel, framework: Framework) -> None:
        v = device.values
        self.device, self.values = device, v
        narrow = 1.0 if framework.matrices == "bfloat16" else v.narrow_efficiency
        self.flop_s = 1 / (narrow * v.matrix_efficiency * device.peaks[framework.matrices])
        usual = v.attention_efficiency * v.matrix_efficiency * device.peaks["bfloat16"]
        self.attention_s = 1 / (ATTENTION[framework.attention] * usual)
        self.byte_s = 1 / (v.memory_efficiency * device.memory_byte_per_s)

    def product(self, m: Any, n: Any, k: Any) -> Any:
        """Return seconds of an m × k by k × n product."""
        tail = 1 + 0.5 * self.device.units * TILE**2 / (m * n)
        arithmetic = 2.0 * m * n * k * self.flop_s * tail
        moved = 2.0 * (m * k + k * n + m * n) * self.byte_s
        return np.maximum(arithmetic, moved) + self.values.kernel_s


def _block(job: Job, of: Candidates, rate: Rate) -> tuple[Any, Any, Any, Any]:
    """Return forward, gradients of inputs, of weights, and what is computed again, of one block."""
    model, t = job.model, of.tensor
    tokens = samples_of(job, of) * model.context / of.context
    h = model.width
    always, chosen = model.always_inner, model.chosen_experts
    each = tokens * np.maximum(chosen, 1) / of.expert
    wide = np.maximum(always, 1)
    products = [
        (tokens, (model.attention_size / h - model.heads_width) / t, h, 1),
        (tokens, h, model.heads_width / t, 1),
        (tokens, (1 + model.gated) * wide / t, h, always > 0),
        (tokens, h, wide / t, always > 0),
        (each, (1 + model.gated) * model.inner / t, h, of.expert * (chosen > 0)),
        (each, h, model.inner / t, of.expert * (chosen > 0)),
    ]
    forward = sum(c * rate.product(m, n, k) for m, n, k, c in products)
    inputs = sum(c * rate.product(m, k, n) for m, n, k, c in products)
    weights = sum(c * rate.product(n, k, m) for m, n, k, c in products)
    mixing = model.mixing_flops * samples_of(job, of) / (t * of.context)
    stored = job.framework.attention == "stored"
    attention = mixing * rate.attention_s * (1.0 if stored else 0.5)  # flash leaves out the mask
    unit = tokens * h
    moved = unit * (8.0 / (t if job.sequence else 1) + divided_numbers(job) / t)
    if stored:
        moved = moved + 5.0 * model.heads * model.context * tokens / (t * of.context)
    between = 2.0 * moved * rate.byte_s + 20 * rate.values.kernel_s
    again = np.select(
        [of.checkpointing == CHECKPOINTING.index("full"),
         of.checkpointing == CHECKPOINTING.index("selective")],
        [forward + attention + between, attention + between / 2],
        default=0.0,
    )  # fmt: skip
    back = 2.0 if stored else FLASH_BACKWARD
    return forward + attention + between, inputs + back * attention + 1.5 * between, weights, again


def _top(job: Job, of: Candidates, rate: Rate) -> tuple[Any, Any]:
    """Return forward and backward of the logits."""
    model, t = job.model, of.tensor
    tokens = samples_of(job, of) * model.context / of.context
    rows = model.vocabulary / t
    forward = rate.product(tokens, rows, model.width)
    logits = tokens * rows * rate.byte_s
    back = rate.product(tokens, model.width, rows) + rate.product(rows, model.width, tokens)
    return forward + LOGIT_BYTES[0] * logits, back + LOGIT_BYTES[1] * logits


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
