"""How far two results are apart, and how much of that rounding may explain.

The single-process run that the ranks are compared with, in the memory of one rank.

One process computes the pieces into which the ranks divide a global batch, one after another, and
takes the mean of their gradients: for a loss that is a mean over samples this is the gradient of
the whole batch. So the reference takes the memory of one rank's batch, whatever the number of
ranks, and a batch that fills a device can be verified there.

Some models give another result when a batch is split, no matter what splits it: BatchNorm
normalises over the piece, dropout draws other masks, a loss may be no mean over samples. A trial on
one piece shows it: its gradient is compared with the mean of its two halves'. Such a model's
reference is worked out on the whole global batch at once, which may not fit.

Brings the batches of all ranks to rank 0, as tensors and JSON: nothing is unpickled.
"""

import gc
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from scalebench.spec import Execution
from scalebench.spec.workload import Workload
from scalebench.worker.optimizers import optimizer_of
from scalebench.worker.process.context import RankContext, dtype_of, gather_json
from scalebench.worker.process.failure import classify, describe
from scalebench.worker.strategies.data_parallel import PlainTraining, compared_shares
from scalebench.worker.strategies.execution import tf32_in_force
from scalebench.worker.workloads import build_workload
from scalebench.worker.workloads.batches import (
    concatenate,
    first_samples,
    map_tensors,
    num_samples,
    same,
    split,
    to_device,
)
from scalebench.worker.workloads.flops import CountedFlops, count_flops

FP32_TOLERANCE = 1e-4
TF32_TOLERANCE = 1e-2
BF16_TOLERANCE = 5e-2

ROUNDINGS = 2.0
"""A parameter may deviate by so many times what bfloat16 moves its gradient from float32. Two
results that round in different places differ by the root of two of that; on cnn-20, whose gradients
bfloat16 moves by up to 0.5, compiled and eager ones differed by up to 1.4 times."""
MOST_ALLOWED = 0.9
"""With more, a gradient of zero would pass."""

FLOOR = 1e-3
"""Of the norm of all gradients: the least that a parameter's deviation is divided by."""
ROUNDED_FLOOR = 0.1
"""The same where backward itself runs on bfloat16 parameters. The gradient of a normalisation's
bias, a sum over all tokens, is then accumulated in bfloat16 (on CPU it was 30 % off, where all
other gradients were 1 % off), and is small compared with the others."""

Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Deviation:
    """How far two sets of gradients, or two series of losses, are apart; dimensionless.

    Attributes:
        allowed: What rounding may explain of it there; 0: not said.
    """

    value: float
    where: str | None = None
    allowed: float = 0.0


def tolerance(execution: Execution, device: torch.device, flops: CountedFlops) -> float:
    """Return what rounding may explain, by the arithmetic in use.

    float32 sums in another order agree to about 1e-6 of their size; gradients pass through
    hundreds of such sums. TF32 and float16 keep 10 bits of each factor, bfloat16 keeps 8.

    TF32 is allowed for only in the operators that ``flops`` has. Where none is known to the
    counter, any TF32 that is on may be in use.
    """
    if execution.computes_in_bfloat16 or execution.rounds_parameters:
        return BF16_TOLERANCE
    if execution.autocast == "float16":
        return TF32_TOLERANCE
    on = tf32_in_force(device)
    unknown = not flops.total
    convolves = unknown or flops.convolutions > 0
    multiplies = unknown or flops.total > flops.convolutions
    reduced = (convolves and on["convolution_tf32"]) or (multiplies and on["matmul_tf32"])
    return TF32_TOLERANCE if reduced else FP32_TOLERANCE


def deviation_floor(execution: Execution) -> float:
    """Return the part of the norm of all gradients below which a parameter's own does not count."""
    return ROUNDED_FLOOR if execution.rounds_parameters else FLOOR


def deviations(given: Gradients, reference: Gradients, floor: float = FLOOR) -> dict[str, float]:
    """Return the `parameter_deviation` of each parameter of the reference, by name."""
    total = total_norm(reference)
    return {
        name: parameter_deviation(given[name], expected, total, floor)
        for name, expected in reference.items()
    }


def furthest(
    found: Mapping[str, float], allowed: float, rounding: Mapping[str, float] | None = None
) -> Deviation:
    """Return the deviation that comes closest to what is allowed for it, or exceeds it the most.

    One that exceeds `MOST_ALLOWED` tells less than one that exceeds what rounding really explains.

    ``rounding``: name → how far bfloat16 alone moves its gradient: `ROUNDINGS` times that is
    allowed as well, up to `MOST_ALLOWED`.
    """
    each = [
        Deviation(
            finite(value),
            name,
            max(allowed, min(ROUNDINGS * (rounding or {}).get(name, 0.0), MOST_ALLOWED)),
        )
        for name, value in found.items()
    ]
    return max(each, key=_weight, default=Deviation(0.0, None, allowed))


def _weight(one: Deviation) -> tuple[bool, float]:
    return one.allowed < min(one.value, MOST_ALLOWED), one.value / one.allowed


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


def finite(value: float) -> float:
    """Return a number that JSON can hold: not a number and infinity become the largest float."""
    return value if value < float("inf") else 1.7976931348623157e308


def gather_on_rank_0(batches: Sequence[Any], context: RankContext) -> list[Any] | None:
    """Return, on rank 0, the batches of every rank, by rank, in host memory; None on the others."""
    at_home = [to_device(batch, torch.device("cpu")) for batch in batches]
    return [at_home] if context.control is None else gather_batches(at_home, context.control)


def gather_batches(batches: Any, group: "dist.ProcessGroup") -> list[Any] | None:
    """Collect the batches of every rank of a group on its rank 0; None on the others.

    The structure, and what neither is a tensor nor a plain value in it, is rank 0's own.

    ``batches``: tensors in host memory, in tuples, lists and dicts; structured alike on all ranks.
    ``group`` is of CPU tensors; all of its ranks call this.
    """
    tensors: list[torch.Tensor] = []
    plain: list[Any] = []
    map_tensors(tensors.append, batches, other=plain.append)
    shapes = [(str(tensor.dtype), list(tensor.shape)) for tensor in tensors]
    values = [v if isinstance(v, str | int | float | bool) else None for v in plain]
    of_ranks = gather_json((shapes, values), group)
    if group.rank():
        for tensor in tensors:
            group.send([tensor.contiguous()], 0, 0).wait()
        return None
    return [
        batches if rank == 0 else _received(batches, shapes_there, values_there, rank, group)
        for rank, (shapes_there, values_there) in enumerate(of_ranks)
    ]


def _received(
    own: Any, shapes: list[Any], values: list[Any], rank: int, group: "dist.ProcessGroup"
) -> Any:
    left_shapes, left_values = iter(shapes), iter(values)

    def receive(_: torch.Tensor) -> torch.Tensor:
        name, shape = next(left_shapes)
        tensor = torch.empty(shape, dtype=dtype_of(name))
        group.recv([tensor], rank, 0).wait()
        return tensor

    def plain(mine: Any) -> Any:
        value = next(left_values)
        return mine if value is None else value

    return map_tensors(receive, own, other=plain)


T = TypeVar("T")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class NoReference:
    """One process could not hold the reference; the same on every rank."""

    reason: str


def fresh_workload(context: RankContext) -> Workload:
    """Build the cell's workload from the run's seed: the same parameters every time."""
    cell = context.cell
    torch.manual_seed(cell.seed)
    workload = build_workload(cell.workload, context.shard, cell.loader)
    if cell.recipe is None:
        return workload
    return replace(workload, optimizer=partial(optimizer_of, cell.recipe))


def plain_training(context: RankContext, **other: bool) -> PlainTraining:
    """Return the bare model from the run's seed, computing as the cell's strategy does."""
    baseline = context.cell.strategy.baseline().model_copy(update=other)
    return PlainTraining(baseline, fresh_workload(context), context)


def eager_gradients(
    context: RankContext, pieces: Sequence[Any], **other: bool
) -> tuple[Gradients, CountedFlops]:
    """Return the gradient of equal pieces, computed eagerly, and the FLOPs of forward and backward.

    A pass of its own: counting makes a compiled model eager, and eager bfloat16 rounds elsewhere.
    """
    training = plain_training(context, compile=False, **other)
    finite = False
    while not finite:
        training.optimizer.zero_grad()
        with count_flops() as flops:
            _, finite = _scaled_pass(training, pieces)
    return {name: g.to(CPU, copy=True) for name, g in training.gradients()}, flops


class Reference:
    """The single-process run on rank 0. Nothing of it stays on the device.

    Attributes:
        losses: Of each step, mean over the global batch.
        gradients: Name → mean gradient of the first step, in host memory.
        flops: Of forward and backward on `num_counted` samples.
        num_counted: Samples of the trial on one piece.
        rounding: Name → how far bfloat16 moves the gradient of the first step from the one in
            float32, at least as far as that of the median parameter; empty: nothing is rounded to
            bfloat16, or the model does not run in float32.
        in_pieces: Whether the global batches were computed piece by piece.
        fed_alike: Ranks that got the very samples of rank 0.

    Args:
        context: Of rank 0.
        steps: The pieces of the global batch of each step, in host memory.
    """

    def __init__(self, context: RankContext, steps: Sequence[Sequence[Any]]) -> None:
        self.context = context
        self.first_pieces = steps[0]
        self.fed_alike: list[int] = []
        halves = _two_halves(steps[0])
        piece = concatenate(halves)
        whole, self.flops = eager_gradients(context, [piece])
        self.num_counted = num_samples(piece)
        self.allowed = tolerance(context.cell.strategy, context.device, self.flops)
        self.rounding: dict[str, float] = {}
        self.in_pieces = len(steps[0]) > 1 and self._may_be_done_in_pieces(halves, whole)
        if self.in_pieces:
            self._run(steps)
        else:
            with _at_once():
                self._run([[concatenate(pieces)] for pieces in steps])
        self.rounding = self._rounding()

    def _run(self, steps: Sequence[Sequence[Any]]) -> None:
        training = plain_training(self.context)
        self.split_dependent_modules = _split_dependent_modules(training.module)
        self.gradients: Gradients = {}
        self.losses = []
        for pieces in steps:
            training.optimizer.zero_grad()
            self.losses.append(forward_backward(training, pieces))
            if not self.gradients:
                self.gradients = {n: g.to(CPU, copy=True) for n, g in training.gradients()}
            training.optimizer.step()
        self.total_norm = finite(total_norm(self.gradients))

    def _may_be_done_in_pieces(self, halves: Sequence[Any], whole: Gradients) -> bool:
        """Tell by a trial on one piece whether its gradient is the mean of its halves'."""
        found = self._deviation_of(halves, whole, compile=False)
        return found.value <= found.allowed

    def _rounding(self) -> dict[str, float]:
        baseline = self.context.cell.strategy.baseline()
        if not baseline.autocast:
            return {}
        rounded = self.gradients
        try:
            if baseline.compile or not self.in_pieces:
                rounded, _ = eager_gradients(self.context, self.first_pieces)
            exact, _ = eager_gradients(self.context, self.first_pieces, autocast=False)
        except Exception:  # it has a kernel for bfloat16 alone, or float32 does not fit
            return {}
        found = deviations(rounded, exact, deviation_floor(self.context.cell.strategy))
        typical = statistics.median(found.values())
        return {name: max(typical, value) for name, value in found.items()}

    def furthest(self, found: Mapping[str, float], allowed: float | None = None) -> Deviation:
        """Return which parameter deviates most, against what rounding may explain.

        ``found``: name → deviation. ``allowed``: at least, for every parameter; None: what the
        arithmetic in use needs.
        """
        return furthest(found, self.allowed if allowed is None else allowed, self.rounding)

    def deviation_of_parts(self) -> Deviation:
        """Return how far the mean gradient of the pieces is from the reference; 0: they are it."""
        if self.in_pieces:
            return self.furthest({})
        return self._deviation_of(self.first_pieces, self.gradients)

    def _deviation_of(self, parts: Sequence[Any], whole: Gradients, **other: bool) -> Deviation:
        """Return how far the mean gradient of the parts is from that of the whole.

        Each part draws its own random numbers, as it does on its own rank: the parts of one
        stream could by chance of layout be the very masks of the whole batch.
        """
        cell = self.context.cell
        training = plain_training(self.context, **other)
        mean: Gradients = {}
        for number, part in enumerate(parts):
            torch.manual_seed(cell.seed + 1 + number)
            training.optimizer.zero_grad()
            forward_backward(training, [part])
            for name, gradient in training.gradients():
                here = gradient.to(CPU) / len(parts)
                mean[name] = mean[name] + here if name in mean else here
        return self.furthest(deviations(mean, whole, deviation_floor(cell.strategy)))


def forward_backward(training: PlainTraining, pieces: Sequence[Any]) -> float:
    """Leave the mean gradient of equal pieces in the parameters; return the mean loss.

    One piece after another is brought to the device, so no more than one is there. In float16, it
    is done again as long as gradients overflow.
    """
    while True:
        loss, finite = _scaled_pass(training, pieces)
        if finite:
            return loss
        training.optimizer.zero_grad()


def _scaled_pass(training: PlainTraining, pieces: Sequence[Any]) -> tuple[float, bool]:
    """Return the loss of one try, and whether its gradients are finite in float16."""
    losses = [
        float(training.forward_backward(to_device(piece, training.device))) for piece in pieces
    ]
    for parameter in training.module.parameters():
        if parameter.grad is not None and len(pieces) > 1:
            parameter.grad.div_(len(pieces))
    finite = training.scaler is None or training.scaler.unscale(training.optimizer)
    return sum(losses) / len(losses), finite


def reference_run(batches: Sequence[Any], context: RankContext) -> Reference | NoReference | None:
    """Return, on rank 0, the reference on the global batches that the ranks' batches make up.

    Every rank takes part, and waits until it is worked out.

    Returns:
        None on the other ranks; `NoReference` on all of them if it does not fit.
    """
    gathered = gather_on_rank_0(batches, context)
    return on_rank_0(lambda: _reference_of(gathered or [], context), context)


def _reference_of(gathered: Sequence[Sequence[Any]], context: RankContext) -> Reference:
    cell = context.cell
    first_rank: dict[int, int] = {}
    for rank in range(cell.world_size):
        first_rank.setdefault(cell.strategy.shard_of(rank, cell.world_size), rank)
    per_shard = [gathered[first_rank[shard]] for shard in range(cell.num_shards)]
    parts = cell.strategy.num_parts(cell.world_size) // cell.num_shards
    together = zip(*per_shard, strict=True)
    if compared_shares(cell) is not None:  # the same samples, in equal pieces
        steps = [split(concatenate(of_shards), parts * cell.num_shards) for of_shards in together]
    else:
        steps = [[one for batch in shards for one in split(batch, parts)] for shards in together]
    reference = Reference(context, steps)
    reference.fed_alike = [
        first_rank[number]
        for number, batches_there in enumerate(per_shard)
        if number and same(per_shard[0][0], batches_there[0])
    ]
    return reference


def on_rank_0(work: Callable[[], T], context: RankContext) -> T | NoReference | None:
    """Do on rank 0 what one process does for all; say on every rank if it ran out of memory.

    The others wait in the control group: this may take longer than a collective may.

    Returns:
        What ``work`` returns on rank 0, None on the others; `NoReference` on every rank if it does
        not fit.
    """
    done: T | None = None
    told = ""
    if context.rank == 0:
        try:
            done = work()
        except Exception as error:
            if classify(error) != "oom":
                raise
            told = describe(error).message
        give_back(context.device)
    (missing,) = context.agree_max([float(bool(told))])
    if not missing:
        return done
    return NoReference(f"one process cannot hold the reference: {told or 'see rank 0'}")


def give_back(device: torch.device) -> None:
    """Return to the device what no one uses any more, for the training that follows."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def _at_once() -> Iterator[None]:
    """Say of memory that runs out here why the whole global batch was needed at once."""
    try:
        yield
    except Exception as error:
        if classify(error) != "oom":
            raise
        raise MemoryError(
            "the whole global batch at once does not fit, and pieces of it would not give the "
            f"same result ({describe(error).message})"
        ) from error


def _two_halves(pieces: Sequence[Any]) -> list[Any]:
    """Return halves of the first piece; two pieces where each is a single sample."""
    samples = num_samples(pieces[0])
    if samples < 2:
        return list(pieces[:2])
    return split(first_samples(pieces[0], samples - samples % 2), 2)


def _split_dependent_modules(module: torch.nn.Module) -> list[str]:
    kinds = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.dropout._DropoutNd)
    found = (m for m in module.modules() if isinstance(m, kinds))
    return sorted({type(m).__name__ for m in found})
