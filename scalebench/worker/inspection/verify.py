"""Correct before fast: is what the ranks computed together what one process computes alone?

The reference is the bare model, from the same seed, trained in one process on exactly the batches
that the ranks were fed (`scalebench.worker.inspection.reference`). Gradients are compared after one
step, on every rank; losses after each of a few steps.

Where a model gives another result when a batch is split, and the ranks deviate, one process
computes the pieces one by one. If that alone differs from the whole batch by more than the
tolerance, the comparison would blame the strategy for the model, and the row is `unverified`. So it
is where one process cannot hold the reference: a model that only fits divided is measured all the
same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from scalebench.records.measured.rank import GradientError, Memory, Verification
from scalebench.spec import Grouped
from scalebench.spec.workload import Workload
from scalebench.worker.inspection.allocations import Category
from scalebench.worker.inspection.deviation import (
    MOST_ALLOWED,
    Deviation,
    deviation_floor,
    finite,
    loss_deviation,
    parameter_deviation,
)
from scalebench.worker.inspection.memory import MemoryWatch, watch_memory
from scalebench.worker.inspection.reference import (
    NoReference,
    Reference,
    eager_gradients,
    fresh_workload,
    give_back,
    reference_run,
)
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import classify
from scalebench.worker.strategies import build_training
from scalebench.worker.strategies.base import Training, seen_before_update
from scalebench.worker.strategies.data_parallel import Samples, compared_shares
from scalebench.worker.workloads.batches import check_size, endless, first_samples, to_device
from scalebench.worker.workloads.flops import CountedFlops, count_flops

META = torch.device("meta")


def count_flops_on_meta(context: RankContext) -> CountedFlops | None:
    """Return the FLOPs of forward and backward on one sample; no parameter is given a value.

    Returns:
        None where the model may ask its tensors for values: a workload of the user's own, and one
        with experts, whose tokens choose them.
    """
    if context.cell.workload.kind in ("custom", "gpt-moe"):
        return None
    with META:
        workload = fresh_workload(context)
    batch = to_device(first_samples(next(iter(workload.batches)), 1), META)
    with count_flops() as flops:
        workload.loss(workload.module, batch).backward()
    return flops.per_sample(1)


NUM_STEPS = 3


@dataclass(frozen=True)
class Inspection:
    """What an inspecting launch found out on one rank.

    Attributes:
        losses: Of the first steps, mean over this rank's batch.
        memory: Peak over build and steps, and what it was made of.
        flops: Of forward and backward of the bare model on one sample; None on ranks without the
            reference, and where no operator has a formula.
        gradient_error: Of compressed training, on ranks with the reference.
        facts: What the steps have shown of a model that ranks divide; empty: it is not divided.
    """

    verification: Verification
    losses: list[float]
    memory: Memory
    flops: CountedFlops | None
    gradient_error: GradientError | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def inspect(context: RankContext) -> Inspection:
    """Train a few steps, check them against the reference, count memory; every rank takes part.

    The reference is worked out first, so that its memory is not counted; nor is that of the
    comparison. What does not compute the same as one process is not compared.
    """
    strategy = context.cell.strategy
    batches = first_batches(max(NUM_STEPS, strategy.steps_per_exchange), context)
    if strategy.kind == "plain":
        return _inspect_reference_itself(batches, context)
    reference: Reference | NoReference | None
    if strategy.unverified_because is None:
        reference = reference_run(batches, context)
    else:
        reference = NoReference(strategy.unverified_because)
    with watch_memory(context.device) as watch:
        training, _kept = build_watched(watch, context)
        kept = training.keeps_buffers

        def compare() -> dict[str, float]:
            if isinstance(reference, NoReference):
                return {}
            known = (reference.gradients, reference.total_norm) if reference else ({}, 0.0)
            return compare_gradients(training, *known, deviation_floor(strategy), context)

        with (
            watch.stretch("communication", kept=kept),
            seen_before_update(training, compare) as seen,
        ):
            losses = [float(training.step_done(batches[0]))]
        by_gradient = seen[0] if seen else compare()
        for batch in batches[1:]:
            with watch.stretch("communication", kept=kept):
                losses.append(float(training.step_done(batch)))
    losses = training.share_losses(torch.tensor(losses)).tolist()
    training.finish()
    verification = _verification(by_gradient, losses, reference, context)
    facts = dict(training.facts) if isinstance(strategy, Grouped) else {}
    flops = flops_of(reference, context)
    return Inspection(verification, losses, watch.memory, flops, facts=facts)


def first_batches(count: int, context: RankContext) -> list[Any]:
    """Return the batches of this rank's first steps, on its device."""
    feed = endless(fresh_workload(context).batches, context.device, context.cell.rank_batch)
    shares = compared_shares(context.cell)
    share = context.cell.rank_batch if shares is None else shares[context.rank]
    samples = Samples(feed)
    batches = [next(feed) if shares is None else samples.take(share) for _ in range(count)]
    for batch in batches:
        check_size(batch, share)
    return batches


def flops_of(
    reference: Reference | NoReference | None, context: RankContext
) -> CountedFlops | None:
    """Return, on rank 0, the FLOPs of forward and backward on one sample.

    The reference counted them; where there is none they follow from the shapes.
    """
    if isinstance(reference, NoReference):
        return count_flops_on_meta(context) if context.rank == 0 else None
    if reference is None:
        return None
    return reference.flops.per_sample(reference.num_counted)


def _inspect_reference_itself(batches: Sequence[Any], context: RankContext) -> Inspection:
    flops = _flops_alone(batches[0], context)
    with watch_memory(context.device) as watch:
        training, _kept = build_watched(watch, context)
        losses = []
        for batch in batches:
            with watch.stretch("activations"):
                losses.append(float(training.step_done(batch)))
    return Inspection(Verification(status="reference"), losses, watch.memory, flops)


def _flops_alone(batch: Any, context: RankContext) -> CountedFlops | None:
    """Return the FLOPs of forward and backward on one sample, in a pass before the steps.

    Eager, it may need more memory than they do: then they follow from the shapes. Recomputing is
    no part of them.
    """
    if context.cell.strategy.checkpointing:
        return None
    try:
        return eager_gradients(context, [batch])[1].per_sample(context.cell.global_batch)
    except Exception as error:
        if classify(error) != "oom":
            raise
    finally:
        give_back(context.device)
    return count_flops_on_meta(context)


def build_watched(watch: MemoryWatch, context: RankContext) -> tuple[Training, Workload]:
    """Build workload and training; a reference to the workload keeps its data, as in training."""
    with watch.stretch("data", "data"):
        workload = fresh_workload(context)
        watch.module = workload.module
    rest: Category = "activations" if context.cell.strategy.kind == "plain" else "communication"
    with watch.stretch(rest, "build"):
        training = build_training(workload, context)
        watch.module, watch.optimizer = training.module, training.optimizer
        watch.keeps_built = training.keeps_built
        watch.shards = training.kept_shards
    return training, workload


def _verification(
    by_gradient: Mapping[str, float],
    losses: Sequence[float],
    reference: Reference | NoReference | None,
    context: RankContext,
) -> Verification:
    """Return the judgement; rank 0, which holds the reference, speaks for all."""
    if isinstance(reference, NoReference):
        return Verification(status="unverified", reason=reference.reason)
    mean_losses = mean_over_ranks(losses, context)
    if reference is None:
        return Verification(status="verified")
    by_loss = loss_deviation(mean_losses, reference.losses)
    return judge(reference.furthest(by_gradient), by_loss, reference, reference.allowed)


def judge(
    by_gradient: Deviation, by_loss: Deviation, reference: Reference, allowed: float
) -> Verification:
    """Return what the deviations mean: rounding, a model that cannot be compared, or an error."""
    for_gradient = max(allowed, by_gradient.allowed)
    result = Verification(
        status="verified",
        gradient_deviation=finite(by_gradient.value),
        loss_deviation=finite(by_loss.value),
        tolerance=for_gradient,
        num_steps=NUM_STEPS,
        worst_parameter=by_gradient.where,
    )
    if by_gradient.value <= for_gradient and by_loss.value <= allowed:
        if not reference.fed_alike:
            return result
        reason = (
            f"rank {', '.join(map(str, reference.fed_alike))} got the same samples as rank 0: "
            "together they train on fewer samples than the global batch; choose samples by "
            "shard.rank"
        )
        return result.model_copy(update={"status": "unverified", "reason": reason})
    by_parts = reference.deviation_of_parts()
    if not by_parts.value <= max(allowed, by_parts.allowed):
        modules = reference.split_dependent_modules
        cause = f"it contains {', '.join(modules)}" if modules else "no known module explains it"
        reason = (
            "the model's own result depends on how a batch is split: one process that computes "
            f"the parts one by one deviates by {by_parts.value:.2g} ({cause})"
        )
        return result.model_copy(update={"status": "unverified", "reason": reason})
    if for_gradient >= MOST_ALLOWED and by_loss.value <= allowed:
        reason = (
            f"bfloat16 alone moves gradients of this model by half of their size or more (worst: "
            f"{by_gradient.where}): no error can be told from rounding; verify with --dtype float32"
        )
        return result.model_copy(update={"status": "unverified", "reason": reason})
    reason = (
        f"gradients deviate by {by_gradient.value:.2g} (worst: {by_gradient.where}) and losses by "
        f"{by_loss.value:.2g} from the single-process reference; {for_gradient:.0e} is allowed"
    )
    return result.model_copy(update={"status": "deviates", "reason": reason})


def mean_over_ranks(losses: Sequence[float], context: RankContext) -> list[float]:
    """Return the mean of each loss over the ranks, on every rank alike."""
    tensor = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(tensor, group=context.control)
    return (tensor / context.cell.world_size).tolist()


def compare_gradients(
    training: Training,
    reference: Mapping[str, torch.Tensor],
    norm: float,
    floor: float,
    context: RankContext,
) -> dict[str, float]:
    """Send the reference's gradients, which rank 0 has, to every rank, one by one.

    ``norm``: that of all of them, likewise; ``floor``: see `parameter_deviation`.

    Returns:
        Name → deviation on the worst rank.
    """
    (norm,) = context.agree_max([norm])
    found = {}
    for name, gradient in training.gradients():
        expected = torch.empty_like(gradient, memory_format=torch.contiguous_format)
        if name in reference:
            expected.copy_(reference[name])
        dist.broadcast(expected, src=0)
        found[name] = finite(parameter_deviation(gradient, expected, norm, floor))
    return dict(zip(found, context.agree_max(list(found.values())), strict=True))
