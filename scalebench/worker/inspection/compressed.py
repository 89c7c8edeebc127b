"""Is compressed training correct, and how far is its gradient from the exact one?

A lossy method cannot be compared with the plain reference. It is compared with the emulation of all
ranks in one process: gradients of the last of a few steps, on every rank, and the losses of all of
them. Before that, all ranks must hold the same gradients, bit by bit. ``noop`` is exempt: its ranks
train apart.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from scalebench.records.measured.rank import GradientError, Verification
from scalebench.spec import Compressed
from scalebench.spec.compression import first_compressed_step
from scalebench.worker.inspection.deviation import (
    FLOOR,
    ROUNDED_FLOOR,
    deviations,
    finite,
    furthest,
    loss_deviation,
    total_norm,
)
from scalebench.worker.inspection.memory import watch_memory
from scalebench.worker.inspection.reference import (
    NoReference,
    Reference,
    fresh_workload,
    gather_on_rank_0,
    on_rank_0,
    reference_run,
)
from scalebench.worker.inspection.verify import (
    NUM_STEPS,
    Inspection,
    build_watched,
    compare_gradients,
    first_batches,
    flops_of,
    judge,
    mean_over_ranks,
)
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.compressed import CompressedTraining
from scalebench.worker.strategies.compression.emulation import Emulation, Gradients
from scalebench.worker.workloads.batches import to_device

BOUND = "nothing is communicated: this row bounds what compression can gain"

HALF_ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8}
"""Method → relative rounding of one sum on the wire; the backend may sum in any order."""


def inspect_compressed(context: RankContext) -> Inspection:
    """Train a few steps, check them against the emulation, count memory; every rank takes part."""
    strategy = context.cell.strategy
    assert isinstance(strategy, Compressed)
    batches = first_batches(num_steps(strategy), context)
    reference = reference_run(batches, context)
    with watch_memory(context.device) as watch:
        training, _kept = build_watched(watch, context)
        assert isinstance(training, CompressedTraining)
        losses: list[float] = []
        apart: GradientError | None = None
        for batch in batches:
            with watch.stretch("communication"):
                losses.append(float(training.step(batch)))
            if isinstance(reference, Reference) and apart is None:
                apart = gradient_error(dict(training.gradients()), reference.gradients, 0)
    flops = flops_of(reference, context)
    if strategy.method == "noop":
        unverified = Verification(status="unverified", reason=BOUND)
        return Inspection(unverified, losses, watch.memory, flops, apart)
    differing = _differing_bits(training)
    verification, error = _against_emulation(batches, losses, reference, training, context)
    if differing is not None:
        reason = f"the ranks hold different gradients after decoding (first: {differing})"
        verification = Verification(status="deviates", reason=reason)
    verification = verification.model_copy(update={"num_steps": len(batches)})
    return Inspection(verification, losses, watch.memory, flops, error)


def num_steps(strategy: Compressed) -> int:
    """Return how many steps are compared: two at the ratio asked for, the bucket change before."""
    return max(NUM_STEPS, first_compressed_step(strategy.settings) + 2)


def gradient_error(given: Gradients, exact: Gradients, step: int) -> GradientError:
    """Return relative L2 distance and cosine of two sets of gradients, over all parameters."""
    given = {name: given[name].to(gradient.device) for name, gradient in exact.items()}
    dot = sum(float((given[n].double() * exact[n].double()).sum()) for n in exact)
    distance = total_norm({n: given[n].double() - exact[n].double() for n in exact})
    lengths = total_norm(given) * total_norm(exact)
    length = total_norm(exact)
    cosine = dot / lengths if lengths else math.nan
    return GradientError(
        relative_l2=finite(distance / length if length else distance),
        cosine=cosine if math.isfinite(cosine) else None,
        step=step,
    )


def floor_of_sums(method: str, world_size: int) -> float:
    """Return the part of the norm of all gradients below which a parameter's own does not count.

    Where sums are rounded on the way and have several orders, each rounds by what the ranks give,
    not by what is left of it. Gradients of the ranks that cancel (the bias of keys has none in
    truth) leave a small one with the rounding of large ones.
    """
    return ROUNDED_FLOOR if method in HALF_ROUNDING and world_size > 2 else FLOOR


def _allowed(method: str, reference: Reference, context: RankContext) -> float:
    """Return what rounding may explain: two summands have one order, more have several."""
    by_order = HALF_ROUNDING.get(method, 0.0) * max(0, context.cell.world_size - 2)
    return max(reference.allowed, by_order)


def _differing_bits(training: CompressedTraining) -> str | None:
    """Return the first parameter whose gradient is not the same bits on every rank; None: none."""
    found = None
    for name, gradient in training.gradients():
        of_rank_0 = gradient.clone()
        dist.broadcast(of_rank_0, src=0)
        differs = torch.tensor(not _same_bits(of_rank_0, gradient), dtype=torch.uint8)
        differs = differs.to(gradient.device)
        dist.all_reduce(differs, dist.ReduceOp.MAX)
        if int(differs) and found is None:
            found = name
    return found


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    left, right = a.contiguous().view(-1), b.contiguous().view(-1)
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def _against_emulation(
    batches: Sequence[Any],
    losses: Sequence[float],
    reference: Reference | NoReference | None,
    training: CompressedTraining,
    context: RankContext,
) -> tuple[Verification, GradientError | None]:
    """Compare with all ranks in one process; rank 0, which holds them, speaks for all."""
    if isinstance(reference, NoReference):
        return Verification(status="unverified", reason=reference.reason), None
    emulated = _emulated(batches, training, context)
    if isinstance(emulated, NoReference):
        return Verification(status="unverified", reason=emulated.reason), None
    emulation, expected_losses = emulated or (None, [])
    gradients = emulation.gradients() if emulation is not None else {}
    floor = floor_of_sums(training.strategy.method, context.cell.world_size)
    norm = finite(total_norm(gradients))
    by_gradient = compare_gradients(training, gradients, norm, floor, context)
    rounding = _rounding(batches, by_gradient, reference, emulation, training, context)
    if isinstance(rounding, NoReference):
        return Verification(status="unverified", reason=rounding.reason), None
    mean_losses = mean_over_ranks(losses, context)
    if emulation is None or reference is None:
        return Verification(status="verified"), None
    by_loss = loss_deviation(mean_losses, expected_losses)
    allowed = _allowed(training.strategy.method, reference, context)
    verification = judge(furthest(by_gradient, allowed, rounding), by_loss, reference, allowed)
    last = len(batches) - 1
    return verification, gradient_error(dict(training.gradients()), emulation.exact, last)


def _rounding(
    batches: Sequence[Any],
    by_gradient: Mapping[str, float],
    reference: Reference | None,
    emulation: Emulation | None,
    training: CompressedTraining,
    context: RankContext,
) -> dict[str, float] | NoReference:
    """Return, on rank 0, how far bfloat16 moves what is left of each gradient, by name.

    A method may enlarge a difference that rounding makes: of two directions that weigh nearly the
    same, a low rank keeps one or the other. Where the gradients themselves are moved too little to
    explain a deviation, the emulation in float32 tells how far what the method makes of them is.
    """
    rounding = {} if reference is None else reference.rounding
    exceeds = False
    if reference is not None and rounding:
        allowed = _allowed(training.strategy.method, reference, context)
        found = reference.furthest(by_gradient, allowed)
        exceeds = not found.value <= found.allowed
    if not any(context.agree_max([float(exceeds)])):
        return rounding
    exact = _emulated(batches, training, context, autocast=False)
    if isinstance(exact, NoReference):
        return exact
    if exact is None or emulation is None:
        return {}
    floor = floor_of_sums(training.strategy.method, context.cell.world_size)
    found_there = deviations(emulation.gradients(), exact[0].gradients(), floor)
    typical = statistics.median(found_there.values())
    return {name: max(rounding[name], typical, moved) for name, moved in found_there.items()}


def _emulated(
    batches: Sequence[Any], training: CompressedTraining, context: RankContext, **other: bool
) -> tuple[Emulation, list[float]] | NoReference | None:
    """Return, on rank 0, the emulation after all steps and its losses."""
    per_rank = gather_on_rank_0(batches, context)

    def emulate() -> tuple[Emulation, list[float]]:
        emulation, losses = Emulation(fresh_workload(context), context, **other), []
        for step, of_ranks in enumerate(zip(*per_rank or [], strict=True)):
            parts = [to_device(batch, context.device) for batch in of_ranks]
            losses.append(emulation.step(parts, training.observer.layout_at(step)))
        return emulation, losses

    return on_rank_0(emulate, context)
