"""How far two results are apart, and how much of that rounding may explain."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from scalebench.spec import Execution
from scalebench.worker.strategies.execution import tf32_in_force
from scalebench.worker.workloads.flops import CountedFlops

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


def tolerance(execution: Execution, device: torch.device, flops: CountedFlops) -> float:
    """Return what rounding may explain, by the arithmetic in use.

    float32 sums in another order agree to about 1e-6 of their size; gradients pass through
    hundreds of such sums. TF32 keeps 10 bits of each factor, bfloat16 keeps 8.

    Args:
        execution: Of the row.
        device: Of the ranks.
        flops: Of the model: TF32 is allowed for only in the operators that it has. Where none is
            known to the counter, any TF32 that is on may be in use.
    """
    if execution.computes_in_bfloat16 or execution.rounds_parameters:
        return BF16_TOLERANCE
    on = tf32_in_force(device)
    unknown = not flops.total
    convolves = unknown or flops.convolutions > 0
    multiplies = unknown or flops.total > flops.convolutions
    reduced = (convolves and on["convolution_tf32"]) or (multiplies and on["matmul_tf32"])
    return TF32_TOLERANCE if reduced else FP32_TOLERANCE


def deviation_floor(execution: Execution) -> float:
    """Return the part of the norm of all gradients below which a parameter's own does not count."""
    return ROUNDED_FLOOR if execution.rounds_parameters else FLOOR


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


def finite(value: float) -> float:
    """Return a number that JSON can hold: not a number and infinity become the largest float."""
    return value if value < float("inf") else 1.7976931348623157e308
