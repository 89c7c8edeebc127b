"""How far two results are apart, and how much of that rounding may explain."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from scalebench.spec import Execution
from scalebench.worker.strategies.execution import tf32_in_force
from scalebench.worker.workloads.flops import CountedFlops

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
