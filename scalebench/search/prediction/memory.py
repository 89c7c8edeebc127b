"""Memory of a rank, for many configurations at once.

State by ZeRO (`scalebench.costmodel.memory`). Activations of a block by Korthikanti et al. 2022,
§4, without dropout and without stored scores (flash attention): for b samples of s tokens and
width h in 16 bits ``s·b·h·(8 + 24/t)``, with a divided sequence ``s·b·h·32/t``; fewer keys and
values with grouped queries (Ainslie et al. 2023), a third matrix in a gated MLP. Selective
recomputation keeps the results of matrix products and attention, full recomputation a block's
input, ``2·s·b·h``, and one block in full while it is computed again. Numbers of 32 bits are twice
as much.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from scalebench.costmodel.memory import FP32_ADAM, BytesPerParameter, zero_state
from scalebench.errors import UsageError
from scalebench.search.candidates import CHECKPOINTING, SCHEDULES, Candidates, Floats
from scalebench.search.model import Models, SearchModel
from scalebench.search.space import Job, candidates, meshes

BYTES = np.array([4.0, 2.0])
"""Of an activation, by number of its precision."""

STATES = {
    "float32": FP32_ADAM, "mixed": BytesPerParameter(2, 4, 12),
    "accumulated": BytesPerParameter(2, 8, 12),
}  # fmt: skip
"""Option of a framework → bytes of a parameter, its gradients, and what ZeRO-1 divides.

``accumulated``: those of a pass, and DDP's buckets of them, in 16 bits; their sum in 32 (nanotron,
`FP32GradientAccumulator`).
"""

BUCKET_BYTES = 2
"""Of a parameter, in these buckets: one replica has none; as much in the gradients of a pass."""

FULL_BUFFERS = 4
"""Tensors of whole sequences that a group has at once where it divides them: what was gathered for
two products, what one gave before it is scattered, and its gradient (nanotron, `MemoryBuffer`)."""

WAITING = 25
"""Such tensors that wait to be free where an allocator's reserve counts: torch gives back what NCCL
reads only after the message, and hosts start operators long before (`Tensor.record_stream`)."""

MASTER_BYTES = 4
"""Of a parameter, and of its gradient: under autocast they stay float32."""


def stage_table(job: Job, of: Candidates) -> tuple[Floats, Floats]:
    """Return layers and forward FLOPs (one sample) of the fullest rank of each candidate."""
    found = job.model.stages(of.pipeline * of.chunks) * of.chunks[:, None]
    if job.framework.stages != "balanced":
        model, filled = job.model, (job.framework.stages == "filled") & (of.pipeline > 1)
        share = (model.layers + filled * model.head_flops / model.matrix_flops) / of.pipeline
        found[:, 0] = np.ceil(share / of.chunks) * of.chunks
        found[:, 1] = found[:, 0] * model.block_flops + np.where(filled, 0.0, model.head_flops)
    found[:, 0] = np.minimum(found[:, 0], job.model.layers)
    return found[:, 0], found[:, 1]


def samples_of(job: Job, of: Candidates) -> Floats:
    """Return the samples of one microbatch of a group."""
    return np.asarray(job.batch / (of.replicas * of.microbatches))


def local_parameters(job: Job, of: Candidates, layers: Floats) -> tuple[Floats, Floats]:
    """Return a rank's parameters, before shards: those of experts, and all others.

    The fullest rank of a pipeline has the embedding or the output matrix, too.
    """
    model = job.model
    tables = model.table_parameters * np.where(
        (of.pipeline > 1) | model.tied, 1, 2
    )  # a pipeline's first and last rank have one each
    dense = (layers * model.block_parameters + tables) / of.tensor
    return layers * model.expert_parameters / (of.expert * of.tensor), dense


def activations_in_flight(of: Candidates) -> Floats:
    """Return how many microbatches a rank keeps, in units of all its layers.

    GPipe and breadth-first m, 1F1B p at most; interleaved ``p·(1 + (p−1)/(p·v))`` (Korthikanti et
    al. 2022, §4.2.3).
    """
    p, v, m = of.pipeline, of.chunks, of.microbatches
    names = np.array(SCHEDULES)[of.schedule]
    kept = np.where(np.isin(names, ("gpipe", "looped-bfs")), m, np.minimum(m, p))
    ahead = np.minimum(m, p * (1 + (p - 1) / (p * v)))
    kept = np.where(names == "interleaved-1f1b", ahead, kept)
    return np.asarray(np.where(p == 1, 1.0, kept), dtype=float)


def _of_a_microbatch(job: Job, of: Candidates, layers: Floats) -> tuple[Floats, Floats]:
    """Return what a rank keeps of a microbatch, logits not in it, and a block in full, bytes."""
    model, t = job.model, of.tensor
    unit = model.context / of.context * model.width * samples_of(job, of) * BYTES[of.precision] / 2
    tokens_divided = t if job.sequence else 1
    whole = 8.0 / tokens_divided + divided_numbers(job) / t
    if job.framework.gathered == "stored" and job.sequence:
        whole = whole + 4.0 * (1 - 1 / t)  # the inputs of both first matrix products
    kept_input = 2.0 / tokens_divided
    selective = _products(model) / t + kept_input
    per_layer = np.select(
        [of.checkpointing == CHECKPOINTING.index("none"),
         of.checkpointing == CHECKPOINTING.index("selective")],
        [whole * np.ones(len(of)), selective],
        default=kept_input * np.ones(len(of)),
    )  # fmt: skip
    return np.asarray(unit * per_layer * layers), np.asarray(unit * whole)


def activation_bytes(
    job: Job, of: Candidates, layers: Floats, first: bool | npt.NDArray[np.bool_] = False
) -> Floats:
    """Return activations of a rank at the peak, bytes; see `memory_bytes`."""
    kept, block = _of_a_microbatch(job, of, layers)
    again = np.where(of.checkpointing == CHECKPOINTING.index("none"), 0.0, block)
    tokens = job.model.context / of.context * samples_of(job, of)
    # Logits and their gradient in float32, and where they were made in 16 bits, these as well.
    logits = np.where(BYTES[of.precision] == 2, 10.0, 8.0) * tokens * job.model.vocabulary
    logits = logits / of.tensor
    buffers = FULL_BUFFERS * _sequence_bytes(job, of) * (1 - 1 / of.tensor) * job.sequence
    # With 1F1B the last stage has them, and one microbatch; the first has all that are in flight.
    in_first = kept * activations_in_flight(of)
    last = of.schedule == SCHEDULES.index("1f1b")
    most = np.select(
        [(of.pipeline > 1) & first, (of.pipeline > 1) & last],
        [in_first, np.maximum(in_first, kept + logits)],
        default=in_first + logits,
    )
    return np.asarray(job.activation_ratio * (most + again + buffers))


def _sequence_bytes(job: Job, of: Candidates) -> Floats:
    """Return a tensor of whole sequences of a microbatch, as wide as the model, bytes."""
    tokens = job.model.context / of.context * samples_of(job, of)
    return np.asarray(tokens * job.model.width * BYTES[of.precision])


def reserved_bytes(job: Job, of: Candidates, filled: Floats) -> Floats:
    """Return what the allocator reserves over what activations fill, bytes.

    Fragments, and whole tensors of a group that wait. Where groups fill nodes, the first of p
    stages starts all but two of the microbatches in flight before it waits for the next stage.
    """
    if job.framework.reserved == 1:
        return np.zeros(len(of))
    alone = (of.pipeline == 1) | (of.tensor < job.links.ranks_per_node)
    ahead = np.where(alone, 1.0, 1 - 2 / of.pipeline) * (of.tensor > 1) * job.sequence
    waiting = WAITING * job.activation_ratio * ahead * _sequence_bytes(job, of)
    return np.asarray((job.framework.reserved - 1) * filled + waiting)


def divided_numbers(job: Job) -> Any:
    """Return what a block keeps of heads and of its MLP, bytes for each of h in 16 bits.

    2 for queries and for what attention returns, 4 for keys and values of all heads; inside the
    MLP 2 in front of the activation and 2 behind it. 24 in GPT. A gated one has 2 more for the
    other factor, and 2 for the product where an operator is started for each: autograd keeps both
    factors of a product. The other 8 are the inputs of norms and first matrix products.
    """
    model = job.model
    heads = model.heads_width / model.width * (4.0 + 4.0 * model.kv_heads / model.heads)
    of_gate = 4.0 if job.framework.launch == "eager" else 2.0
    return heads + (4.0 + of_gate * model.gated) * model.active_inner / model.width


def _products(model: SearchModel | Models) -> Any:
    """Return the same of the results of matrix products and of attention: 20 in GPT."""
    heads = model.heads_width / model.width * (4.0 + 4.0 * model.kv_heads / model.heads)
    return 4.0 + heads + (2.0 + 2.0 * model.gated) * model.active_inner / model.width


def state_bytes(job: Job, of: Candidates, layers: Floats) -> Floats:
    """Return parameters, gradients and AdamW's moments of a rank, bytes."""
    experts, dense = local_parameters(job, of, layers)
    total, per = np.zeros(len(of)), STATES[job.framework.state]
    for stage in range(4):
        mine = of.zero == stage
        for parameters in (experts, dense):
            held = zero_state(stage, parameters[mine], of.shard[mine], per)
            total[mine] += held.total
    if job.framework.state == "accumulated":
        total -= np.where(of.replicas == 1, BUCKET_BYTES * (experts + dense), 0.0)
    return total


def gathered_bytes(job: Job, of: Candidates, layers: Floats) -> Floats:
    """Return what a sharded rank holds of gathered parameters and their gradients, bytes.

    Stage 3: the tables and two blocks, one of which is gathered ahead, and a block's gradients.
    Stage 2 (``reshard_after_forward=False``): shards become whole parameters in forward; with
    stages, gradients stay whole until the last microbatch has added its own, and are reduced once.
    """
    experts, dense = local_parameters(job, of, layers)
    block = (experts + dense - job.model.table_parameters / of.tensor) / np.maximum(layers, 1)
    tables = job.model.table_parameters / of.tensor
    each = job.gathered_bytes_each
    three = each * (2 * tables + 2 * block) + MASTER_BYTES * block
    per = STATES[job.framework.state]
    # `zero_state` has every parameter as it is kept: the shard, and the gathered ones.
    smaller = (each - per.parameters) * (1 - 1 / of.shard) * (experts + dense)
    kept = per.gradients * (1 - 1 / of.shard) * (experts + dense)  # whole gradients
    two = MASTER_BYTES * block + smaller + np.where(of.pipeline > 1, kept, 0.0)
    return np.asarray(np.select([of.zero == 3, of.zero == 2], [three, two], default=0.0))


def hop_bytes(job: Job, of: Candidates) -> Floats:
    """Return what passes between two stages for one microbatch and direction, bytes of a rank.

    Where a tensor group divides the sequence, each of its ranks sends its part.
    """
    tokens = job.model.context / of.context / (of.tensor if job.sequence else 1)
    return np.asarray(tokens * job.model.width * samples_of(job, of) * BYTES[of.precision])


def received_bytes(job: Job, of: Candidates) -> Floats:
    """Return the buffers of a pipeline's rank for what it receives, bytes."""
    hop = hop_bytes(job, of)
    number = of.microbatches if job.receives_ahead else activations_in_flight(of)
    return np.asarray(np.where(of.pipeline > 1, 2 * hop * of.chunks * number, 0.0))


def memory_bytes(job: Job, of: Candidates, first: bool | npt.NDArray[np.bool_] = False) -> Floats:
    """Return the predicted peak of the fullest rank of each candidate, bytes; no margin in it.

    Args:
        job: What is searched.
        of: Candidates.
        first: Of which to take a pipeline's first stage instead, which has no logits.
    """
    layers, _ = stage_table(job, of)
    filled = activation_bytes(job, of, layers, first)
    needed = (
        state_bytes(job, of, layers)
        + gathered_bytes(job, of, layers)
        + filled
        + received_bytes(job, of)
        + job.held_bytes
    )
    if job.framework.state == "accumulated":  # a pass's gradients replace its activations
        kept, _ = _of_a_microbatch(job, of, layers)
        gradients = BUCKET_BYTES * sum(local_parameters(job, of, layers))
        needed -= np.minimum(gradients, job.activation_ratio * kept)
    return needed + reserved_bytes(job, of, filled)


def fits(job: Job, memory: Floats) -> npt.NDArray[np.bool_]:
    """Return which peaks, with the margin, stay below the limit."""
    if job.memory_limit_bytes is None:
        return np.ones(len(memory), dtype=bool)
    return np.asarray(memory * (1 + job.margin) <= job.memory_limit_bytes)


MOST_TIMES = 64


def ranks_that_fit(job: Job) -> int | None:
    """Return the first of 2N, 4N, … ranks on which a configuration fits; None: up to 64N none."""
    times = 2
    while times <= MOST_TIMES:
        more = replace(job, world_size=times * job.world_size)
        try:
            found = meshes(more)
        except UsageError:
            return None
        if any(fits(more, memory_bytes(more, some)).any() for some in candidates(more, found)):
            return more.world_size
        times *= 2
    return None
