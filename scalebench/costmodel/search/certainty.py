"""How sure a ranking is: the model's own error, and the probability that the first is fastest."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

NODES = 401
REACH = 8.0
"""Standard deviations on either side over which the probability is summed."""


def probability_fastest(steps_s: Sequence[float], error: float) -> float:
    """Return the probability that the first really is the fastest.

    The logarithm of measured over predicted step is taken as normal with standard deviation
    ``error``, independent from one configuration to the next:
    ``∫ φ(z) · Π_j Φ(ln(t_j/t_1)/σ − z) dz``. Errors that configurations share would make the
    first more certain.

    Args:
        steps_s: Predicted steps, the first one's first.
        error: Root mean square of the logarithm of predicted over measured steps.
    """
    others = np.log(np.asarray(steps_s[1:], dtype=float) / steps_s[0])
    if not len(others):
        return 1.0
    if error <= 0:
        return float((others > 0).all())
    z = np.linspace(-REACH, REACH, NODES)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    slower = np.prod(ndtr(others[None, :] / error - z[:, None]), axis=1)
    return float(np.trapezoid(density * slower, z))


def typical_error(predicted_s: Sequence[float], measured_s: Sequence[float]) -> float | None:
    """Return the root mean square of ``ln(predicted/measured)``; None: nothing was compared."""
    if not predicted_s:
        return None
    errors = np.log(np.asarray(predicted_s) / np.asarray(measured_s))
    return float(np.sqrt(np.mean(errors**2)))


def interval(step_s: float, error: float | None) -> tuple[float, float] | None:
    """Return the 90 % interval of a predicted step, seconds; None: no error is known."""
    if error is None:
        return None
    reach = 1.6449 * error
    return step_s * math.exp(-reach), step_s * math.exp(reach)
