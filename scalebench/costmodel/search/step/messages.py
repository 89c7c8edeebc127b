"""What the ranks of tensor, context and expert groups send inside a pass, and wait for.

Counted from the operations that the cost models of these groups name (`tensor_layers`,
`context_layers`, `expert_layers`). Only ring attention hides behind computation.
"""

from collections import Counter
from collections.abc import Iterable
from functools import cache

import numpy as np

from scalebench.costmodel.context_layers import AttendingModel, operations_of_context_step
from scalebench.costmodel.expert_layers import ExpertModel, operations_of_expert_step
from scalebench.costmodel.search.job import CHECKPOINTING, PRECISIONS, Job
from scalebench.costmodel.search.memory import samples_of
from scalebench.costmodel.search.model import SearchModel
from scalebench.costmodel.search.space import Candidates, Floats
from scalebench.costmodel.search.step.passes import times_again
from scalebench.costmodel.tensor_layers import Operation, model_of_preset, operations_of_step
from scalebench.spec import Context, Expert, Tensor

Sent = tuple[str, float, int]
"""Operation, bytes for one sample in float32, how often."""


@cache
def tensor_messages(
    model: SearchModel, ranks: int, sequence: bool
) -> tuple[tuple[Sent, ...], tuple[Sent, ...]]:
    """Return what a tensor group sends for one sample: forward, and forward and backward."""
    divides = sequence and model.context % ranks == 0
    strategy = Tensor(size=ranks, sequence=divides, loss=True)
    counted = model_of_preset(model.as_gpt, 1, divides)
    found = operations_of_step(strategy, counted, ranks, 1)
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


def _counted(operations: Iterable[Operation]) -> tuple[Sent, ...]:
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
    for size in np.unique(sizes[sizes > 1]):
        for ring in (0, 1) if axis == "context" else (None,):
            mine = (sizes == size) & ((of.ring == ring) if ring is not None else True)
            if not mine.any():
                continue
            if axis == "tensor":
                messages = tensor_messages(job.model, int(size), job.sequence)
            elif axis == "context":
                messages = context_messages(job.model, int(size), bool(ring))
            else:
                messages = expert_messages(job.model, int(size))
            total[mine] = _sent_s(job, of.take(mine), axis, messages, scale[mine])
    return total


def ring_hides_s(job: Job, of: Candidates, flops: Floats, layers: Floats) -> Floats:
    """Return the mixing of attention behind which a ring's messages hide, one microbatch, s."""
    per_flop = np.array([job.speed.flop_s.get(name, np.nan) for name in PRECISIONS])
    mixing = 3 * layers * job.model.mixing_flops * samples_of(job, of)
    turns = (of.context - 1) / of.context
    hidden = mixing / (of.tensor * of.context) * per_flop[of.precision] * turns
    return np.asarray(np.where(of.ring == 1, hidden, 0.0))
