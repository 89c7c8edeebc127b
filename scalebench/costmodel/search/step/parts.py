"""The step of many configurations at once, part by part, and a bound that it never goes below."""

from dataclasses import dataclass, fields

import numpy as np

from scalebench.costmodel.search.job import Job
from scalebench.costmodel.search.memory import BYTES, local_parameters, samples_of, stage_table
from scalebench.costmodel.search.space import Candidates, Floats
from scalebench.costmodel.search.step.exchanges import gradients_s, hops_s, shards_s
from scalebench.costmodel.search.step.messages import per_microbatch_s, ring_hides_s
from scalebench.costmodel.search.step.passes import bubble_s, passes_of
from scalebench.costmodel.tensor_layers import FP32_BYTES


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
    layers, flops = stage_table(job, of)
    passes = passes_of(job, of, layers, flops)
    share = layers / job.model.layers
    scale = samples_of(job, of) * BYTES[of.precision] / FP32_BYTES
    tensor = share * per_microbatch_s(job, of, "tensor", scale / of.context)
    context = share * per_microbatch_s(job, of, "context", scale / of.tensor)
    context = np.maximum(context - ring_hides_s(job, of, flops, layers), 0.0)
    expert = share * per_microbatch_s(job, of, "expert", scale / of.tensor)
    m = of.microbatches
    return StepParts(
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


def bound_s(job: Job, of: Candidates) -> Floats:
    """Return what no step can be shorter than: passes, bubble and optimizer, links of no cost."""
    layers, flops = stage_table(job, of)
    passes = passes_of(job, of, layers, flops)
    return np.asarray(
        of.microbatches * (passes.forward_s + passes.backward_s)
        + bubble_s(of, passes, 0.0 * layers)
        + _update(job, of, layers)
    )


def _update(job: Job, of: Candidates, layers: Floats) -> Floats:
    experts, dense = local_parameters(job, of, layers)
    part = (experts + dense) / job.model.num_parameters
    return np.asarray(job.speed.update_s * part / np.where(of.zero >= 1, of.shard, 1))
