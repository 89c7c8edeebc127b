"""Is what ranks computed together what one process computes alone? Compressed too; does it fit?

Is compressed training correct, and how far is its gradient from the exact one?

A lossy method cannot be compared with the plain reference. It is compared with the emulation of all
ranks in one process: gradients of the last of a few steps, on every rank, and the losses of all of
them. Before that, all ranks must hold the same gradients, bit by bit. ``noop`` is exempt: its ranks
train apart.

Correct before fast: is what the ranks computed together what one process computes alone?

The reference is the bare model, from the same seed, trained in one process on exactly the batches
that the ranks were fed (`scalebench.worker.inspection.reference`). Gradients are compared after one
step, on every rank; losses after each of a few steps.

Where a model gives another result when a batch is split, and the ranks deviate, one process
computes the pieces one by one. If that alone differs from the whole batch by more than the
tolerance, the comparison would blame the strategy for the model, and the row is `unverified`. So it
is where one process cannot hold the reference: a model that only fits divided is measured all the
same.

Does a batch fit? Trains two steps and counts the memory; nothing is compared, nothing timed.

So is one rank's share of a job of any size, alone on this machine, whose steps are timed as well.
The other ranks are not there: torch's fake process group answers every operation at once, with
whatever lies in the buffers. So the values are wrong and the times hold no communication; what the
rank computes, copies and keeps is what it would in the real job.
"""

import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from scalebench import units
from scalebench.records.measured.rank import GradientError, Memory, Verification
from scalebench.spec import Compressed, Grouped
from scalebench.spec.strategies.data_parallel import first_compressed_step
from scalebench.spec.workload import Workload
from scalebench.worker.inspection.memory import Category, MemoryWatch, watch_memory
from scalebench.worker.inspection.reference import (
    FLOOR,
    MOST_ALLOWED,
    ROUNDED_FLOOR,
    Deviation,
    NoReference,
    Reference,
    deviation_floor,
    deviations,
    eager_gradients,
    finite,
    fresh_workload,
    furthest,
    gather_on_rank_0,
    give_back,
    loss_deviation,
    on_rank_0,
    parameter_deviation,
    reference_run,
    total_norm,
)
from scalebench.worker.measure.loop import Loop, Measurement
from scalebench.worker.portable import step_clock
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import classify
from scalebench.worker.strategies import build_training
from scalebench.worker.strategies.base import Training, seen_before_update
from scalebench.worker.strategies.compressed import CompressedTraining
from scalebench.worker.strategies.compression.emulation import Emulation, Gradients
from scalebench.worker.strategies.data_parallel import Samples, compared_shares
from scalebench.worker.strategies.execution import optimizer_kind
from scalebench.worker.workloads.batches import check_size, endless, first_samples, to_device
from scalebench.worker.workloads.flops import CountedFlops, count_flops

META = torch.device("meta")
BOUND = "nothing is communicated: this row bounds what compression can gain"

HALF_ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8}
"""Method → relative rounding of one sum on the wire; the backend may sum in any order."""
FIT_STEPS = 2
"""The optimizer makes its state in the first; DDP rebuilds its buckets in the second."""


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


def measure_fit(context: RankContext) -> Memory:
    """Return the peak of building and training.

    Raises:
        MemoryError: It is above the cell's limit.
    """
    memory = train_watched(context)
    peak, limit = memory.allocated_bytes, context.cell.memory_limit_bytes
    if limit is not None and peak is not None and peak > limit:
        raise MemoryError(
            f"the peak of {units.bytes_(peak)} is above the limit of {units.bytes_(limit)}"
        )
    return memory


def train_watched(
    context: RankContext, prepare: Callable[[Training], None] = lambda _: None
) -> Memory:
    """Return the memory of building and of two steps.

    ``prepare`` is given the training before its first step.
    """
    cell = context.cell
    workload = fresh_workload(context)
    feed = endless(workload.batches, context.device, cell.rank_batch)
    batches = [next(feed) for _ in range(FIT_STEPS)]
    with watch_memory(context.device) as watch:
        training, _kept = build_watched(watch, context)
        prepare(training)
        for batch in batches:
            with watch.stretch("communication", kept=training.keeps_buffers):
                training.step(batch)
    training.finish()
    return watch.memory


def measure_shard(context: RankContext) -> tuple[Measurement, dict[str, Any]]:
    """Time the share's steps, then count its memory; return the steps and the record's fields."""
    with context.slot():
        workload = fresh_workload(context)
        num_parameters = sum(p.numel() for p in workload.module.parameters())
        training = build_training(workload, context)
        leave_gradients(training)
        batches = endless(workload.batches, context.device, context.cell.rank_batch)
        gc.collect()
        loop = Loop(training, batches, context, step_clock(context.device.type))
        loop.warm_up(context.cell.steps)
    loop.measure_clean(context.cell.steps)
    known = {"optimizer": optimizer_kind(training.optimizer), **training.facts}
    seen = loop.seen
    with context.slot(last=True):
        del loop, training, workload, batches
        gc.collect()
        memory = train_watched(context, leave_gradients)
    return seen, {"num_parameters": num_parameters, "memory": memory, "facts": known}


def leave_gradients(training: Training) -> None:
    """Have DDP take its own gradients for those of all: the fake group has no answer for it."""
    module = training.module
    if isinstance(module, DistributedDataParallel):
        module.register_comm_hook(None, _leave)


def _leave(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    answer: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    answer.set_result(bucket.buffer())
    return answer
