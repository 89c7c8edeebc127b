"""Correct before fast: is what the ranks computed together what one process computes alone?

The reference is the bare model, from the same seed, trained in one process on the global batch:
exactly the batches that the ranks were fed, gathered and joined. Gradients are compared after
one step, on every rank; losses after each of a few steps.

Some models give another result when a batch is split, no matter what splits it: BatchNorm
normalises over the piece, dropout draws other masks. So when the ranks deviate, one process
computes the pieces one by one. If that alone differs from the whole batch by more than the
tolerance, the comparison would blame the strategy for the model, and the row is `unverified`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from scalebench.records.rank import GradientError, Memory, Verification
from scalebench.spec import Execution
from scalebench.spec.workload import Workload
from scalebench.worker.inspection.allocations import Category
from scalebench.worker.inspection.memory import MemoryWatch, watch_memory
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies import build_training
from scalebench.worker.strategies.base import Training, keeps_buffers, on_every_rank
from scalebench.worker.strategies.plain import PlainTraining
from scalebench.worker.workloads import build_workload
from scalebench.worker.workloads.batches import concatenate, same, split, to_device
from scalebench.worker.workloads.feed import check_size, endless
from scalebench.worker.workloads.flops import count_flops

NUM_STEPS = 3
FP32_TOLERANCE = 1e-4
TF32_TOLERANCE = 1e-2
BF16_TOLERANCE = 5e-2

FLOOR = 1e-3
"""Of the norm of all gradients: the least that a parameter's deviation is divided by."""
ROUNDED_FLOOR = 0.1
"""The same where backward itself runs on bfloat16 parameters. The gradient of a normalisation's
bias, a sum over all tokens, is then accumulated in bfloat16 (on CPU it was 30 % off, where all
other gradients were 1 % off), and is small compared with the others."""

Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Deviation:
    """How far two sets of gradients, or two series of losses, are apart; dimensionless."""

    value: float
    where: str | None = None


def tolerance(execution: Execution, device: torch.device) -> float:
    """Return what rounding may explain, by the arithmetic in use.

    float32 sums in another order agree to about 1e-6 of their size; gradients pass through
    hundreds of such sums. TF32 keeps 10 bits of each factor, bfloat16 keeps 8.
    """
    if execution.computes_in_bfloat16 or execution.rounds_parameters:
        return BF16_TOLERANCE
    reduced = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    return TF32_TOLERANCE if device.type == "cuda" and reduced else FP32_TOLERANCE


def deviation_floor(execution: Execution) -> float:
    """Return the part of the norm of all gradients below which a parameter's own does not count."""
    return ROUNDED_FLOOR if execution.rounds_parameters else FLOOR


def fresh_workload(context: RankContext) -> Workload:
    """Build the cell's workload from the run's seed: the same parameters every time."""
    torch.manual_seed(context.cell.seed)
    return build_workload(context.cell.workload, context.shard, context.cell.loader)


@dataclass(frozen=True)
class Inspection:
    """What an inspecting launch found out on one rank.

    Attributes:
        losses: Of the first steps, mean over this rank's batch.
        memory: Peak over build and steps, and what it was made of.
        flops_per_sample: Of forward and backward of the bare model; None on ranks without the
            reference.
        gradient_error: Of compressed training, on ranks with the reference.
    """

    verification: Verification
    losses: list[float]
    memory: Memory
    flops_per_sample: float | None
    gradient_error: GradientError | None = None


def inspect(context: RankContext) -> Inspection:
    """Train a few steps, check them against the reference, count memory; every rank takes part.

    The reference is worked out first, so that its memory is not counted; nor is that of the
    comparison.
    """
    strategy = context.cell.strategy
    workload = fresh_workload(context)
    feed = endless(workload.batches, context.device, context.cell.rank_batch)
    batches = [next(feed) for _ in range(NUM_STEPS)]
    for batch in batches:
        check_size(batch, context.cell.rank_batch)
    if strategy.kind == "plain":
        return _inspect_reference_itself(batches, context)
    reference = reference_run(batches, context)
    context.barrier()  # in the control group: the reference may take longer than a collective may
    with watch_memory(context.device) as watch:
        training, _kept = build_watched(watch, context)
        kept = keeps_buffers(training)
        with watch.stretch("communication", kept=kept):
            losses = [float(training.step(batches[0]))]
        by_gradient = _compare_gradients(training, reference, context)
        for batch in batches[1:]:
            with watch.stretch("communication", kept=kept):
                losses.append(float(training.step(batch)))
    losses = on_every_rank(training, torch.tensor(losses)).tolist()
    verification = _verification(by_gradient, losses, reference, context)
    flops = None if reference is None else reference.flops / context.cell.global_batch
    return Inspection(verification, losses, watch.memory, flops or None)


def _inspect_reference_itself(batches: Sequence[Any], context: RankContext) -> Inspection:
    with watch_memory(context.device) as watch:
        training, _kept = build_watched(watch, context)
        assert isinstance(training, PlainTraining)
        with watch.stretch("activations"):
            loss, flops = first_step(training, batches[0])
        losses = [loss]
        for batch in batches[1:]:
            with watch.stretch("activations"):
                losses.append(float(training.step(batch)))
    recomputes = context.cell.strategy.checkpointing
    per_sample = None if recomputes else flops / context.cell.global_batch
    return Inspection(Verification(status="reference"), losses, watch.memory, per_sample or None)


def build_watched(watch: MemoryWatch, context: RankContext) -> tuple[Training, Workload]:
    """Build workload and training; a reference to the workload keeps its data, as in training."""
    with watch.stretch("data", "data"):
        workload = fresh_workload(context)
        watch.module = workload.module
    rest: Category = "activations" if context.cell.strategy.kind == "plain" else "communication"
    with watch.stretch(rest, "build"):
        training = build_training(workload, context)
        watch.module, watch.optimizer = training.module, training.optimizer
    return training, workload


def first_step(training: PlainTraining, batch: Any) -> tuple[float, int]:
    """Train one step; return its loss and the FLOPs of its forward and backward.

    What the optimizer does is no FLOP of the model.
    """
    training.optimizer.zero_grad()
    with count_flops() as flops:
        loss = training.forward_backward(batch)
    training.optimizer.step()
    return float(loss), flops.total


def _verification(
    by_gradient: Deviation,
    losses: Sequence[float],
    reference: "_Reference | None",
    context: RankContext,
) -> Verification:
    """Return the judgement; rank 0, which holds the reference, speaks for all."""
    mean_losses = mean_over_ranks(losses, context)
    if reference is None:
        return Verification(status="verified")
    by_loss = loss_deviation(mean_losses, reference.losses)
    allowed = tolerance(context.cell.strategy, context.device)
    return judge(by_gradient, by_loss, reference, allowed)


class _Reference:
    """The single-process run on rank 0."""

    def __init__(self, context: RankContext, global_batches: Sequence[Any]) -> None:
        self.context = context
        self.fed_alike: list[int] = []
        self.first_batch = global_batches[0]
        training = self._training()
        loss, self.flops = first_step(training, global_batches[0])
        self.losses = [loss]
        self.gradients = {name: g.clone() for name, g in training.gradients()}
        self.total_norm = finite(total_norm(self.gradients))
        self.losses += [float(training.step(batch)) for batch in global_batches[1:]]

    def _training(self) -> PlainTraining:
        self.workload = fresh_workload(self.context)
        baseline = self.context.cell.strategy.baseline()
        return PlainTraining(baseline, self.workload, self.context)

    def deviation_of_parts(self) -> float:
        """Return how far the mean gradient of the pieces is from that of the whole batch.

        Each piece draws its own random numbers, as it does on its own rank: the pieces of one
        stream could by chance of layout be the very masks of the whole batch.
        """
        cell = self.context.cell
        parts = split(self.first_batch, cell.strategy.num_parts(cell.world_size))
        training = self._training()
        mean: Gradients = {}
        for number, part in enumerate(parts):
            torch.manual_seed(self.context.cell.seed + 1 + number)
            training.optimizer.zero_grad()
            training.forward_backward(part)
            for name, gradient in training.gradients():
                mean[name] = mean.get(name, torch.zeros_like(gradient)) + gradient / len(parts)
        return gradient_deviation(mean, self.gradients, deviation_floor(cell.strategy)).value

    def split_dependent_modules(self) -> list[str]:
        """Return the kinds of module known to depend on how a batch is split."""
        kinds = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.dropout._DropoutNd)
        found = (m for m in self.workload.module.modules() if isinstance(m, kinds))
        return sorted({type(m).__name__ for m in found})


def gradient_deviation(given: Gradients, reference: Gradients, floor: float = FLOOR) -> Deviation:
    """Return the largest over parameters of `parameter_deviation`, and where."""
    total = total_norm(reference)
    worst = Deviation(0.0)
    for name, expected in reference.items():
        ratio = parameter_deviation(given[name], expected, total, floor)
        worst = worse_of(worst, Deviation(ratio, name))
    return worst


def total_norm(gradients: Gradients) -> float:
    """Return the Euclidean norm of all gradients together."""
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))


def parameter_deviation(
    given: torch.Tensor, expected: torch.Tensor, total: float, floor: float = FLOOR
) -> float:
    """Return ‖g - g_ref‖ / max(‖g_ref‖, floor · ‖all g_ref‖) of one parameter.

    The floor keeps a parameter whose gradient is nearly zero from turning rounding into a large
    ratio; one that is wrong by more than a 10,000,000th of the whole is still seen in float32.
    """
    difference = float((given.double() - expected.double()).norm())
    scale = max(float(expected.double().norm()), floor * total)
    return difference / scale if scale else difference


def loss_deviation(given: Sequence[float], reference: Sequence[float]) -> Deviation:
    """Return the largest relative difference of two series of losses, and at which step."""
    worst = Deviation(0.0)
    for step, (loss, expected) in enumerate(zip(given, reference, strict=True)):
        ratio = abs(loss - expected) / abs(expected) if expected else abs(loss)
        worst = worse_of(worst, Deviation(ratio, f"step {step}"))
    return worst


def worse_of(a: Deviation, b: Deviation) -> Deviation:
    """Return the larger deviation; not a number is worse than any, the first stays."""
    if math.isnan(a.value):
        return a
    return a if b.value <= a.value else b


def judge(
    by_gradient: Deviation, by_loss: Deviation, reference: _Reference, allowed: float
) -> Verification:
    """Return what the deviations mean: rounding, a model that cannot be compared, or an error."""
    result = Verification(
        status="verified",
        gradient_deviation=finite(by_gradient.value),
        loss_deviation=finite(by_loss.value),
        tolerance=allowed,
        num_steps=NUM_STEPS,
        worst_parameter=by_gradient.where,
    )
    if by_gradient.value <= allowed and by_loss.value <= allowed:
        if not reference.fed_alike:
            return result
        reason = (
            f"rank {', '.join(map(str, reference.fed_alike))} got the same samples as rank 0: "
            "together they train on fewer samples than the global batch; choose samples by "
            "shard.rank"
        )
        return result.model_copy(update={"status": "unverified", "reason": reason})
    by_parts = reference.deviation_of_parts()
    if not by_parts <= allowed:
        modules = reference.split_dependent_modules()
        cause = f"it contains {', '.join(modules)}" if modules else "no known module explains it"
        reason = (
            "the model's own result depends on how a batch is split: one process that computes "
            f"the parts one by one deviates by {by_parts:.2g} ({cause})"
        )
        return result.model_copy(update={"status": "unverified", "reason": reason})
    reason = (
        f"gradients deviate by {by_gradient.value:.2g} (worst: {by_gradient.where}) and losses by "
        f"{by_loss.value:.2g} from the single-process reference; {allowed:.0e} is allowed"
    )
    return result.model_copy(update={"status": "deviates", "reason": reason})


def finite(value: float) -> float:
    """Return a number that JSON can hold: not a number and infinity become the largest float."""
    return value if value < float("inf") else 1.7976931348623157e308


def reference_run(batches: Sequence[Any], context: RankContext) -> _Reference | None:
    """Return, on rank 0, the reference on the global batches that the ranks' batches make up."""
    gathered = context.gather([to_device(batch, torch.device("cpu")) for batch in batches])
    if gathered is None:
        return None
    ranks_per_shard = context.cell.world_size // context.cell.num_shards
    per_rank = gathered[::ranks_per_shard]
    joined = [concatenate(parts) for parts in zip(*per_rank, strict=True)]
    reference = _Reference(context, [to_device(batch, context.device) for batch in joined])
    reference.fed_alike = [
        number * ranks_per_shard
        for number, batches_there in enumerate(per_rank)
        if number and same(per_rank[0][0], batches_there[0])
    ]
    return reference


def mean_over_ranks(losses: Sequence[float], context: RankContext) -> list[float]:
    """Return the mean of each loss over the ranks, on every rank alike."""
    tensor = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(tensor, group=context.control)
    return (tensor / context.cell.world_size).tolist()


def _compare_gradients(
    training: Training, reference: _Reference | None, context: RankContext
) -> Deviation:
    """Send the reference's gradients to every rank, one by one; return the largest deviation.

    The value is that of the worst rank, the place is this rank's.
    """
    scale = reference.total_norm if reference else 0.0
    (total_norm,) = context.agree_max([scale])
    floor = deviation_floor(context.cell.strategy)
    worst = Deviation(0.0)
    for name, gradient in training.gradients():
        expected = reference.gradients[name] if reference else torch.empty_like(gradient)
        dist.broadcast(expected, src=0)
        deviation = parameter_deviation(gradient, expected, total_norm, floor)
        worst = worse_of(worst, Deviation(deviation, name))
    (value,) = context.agree_max([finite(worst.value)])
    return Deviation(value, worst.where)
