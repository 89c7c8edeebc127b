"""The gradient noise scale: up to which batch more samples in a step save steps.

Source: McCandlish, Kaplan, Amodei et al. 2018, arXiv:1812.06162, §2.2 and appendix A.1.
"""

from collections.abc import Sequence

from scalebench.records.measured.race import GradientNorms


def squared_gradient(norms: GradientNorms) -> float:
    """Return an unbiased estimate of ``|G|²``, G the true gradient.

    ``(n·|mean of g|² − mean of |g|²) / (n − 1)`` for n batches; may be negative.
    """
    n = norms.num_batches
    return (n * norms.square_of_mean - norms.mean_square) / (n - 1)


def gradient_variance(norms: GradientNorms) -> float:
    """Return an unbiased estimate of ``tr Σ``, Σ the covariance of one sample's gradient.

    ``b · (mean of |g|² − |mean of g|²) / (1 − 1/n)`` for n batches of b samples.
    """
    difference = norms.mean_square - norms.square_of_mean
    return norms.batch_size * difference / (1 - 1 / norms.num_batches)


def noise_scale(norms: Sequence[GradientNorms]) -> float | None:
    """Return ``B_simple = tr Σ / |G|²``, samples.

    Both are averaged over the given moments of a training before they are divided: the ratio of
    single estimates is biased.

    Returns:
        None: the gradient is not known to be larger than nothing.
    """
    if not norms:
        return None
    gradient = sum(map(squared_gradient, norms)) / len(norms)
    return sum(map(gradient_variance, norms)) / len(norms) / gradient if gradient > 0 else None


def samples_ratio(batch: float, other: float, scale: float) -> float:
    """Return samples to a target with a batch over those with another batch, as predicted.

    ``E(B) = E_min · (1 + B / B_noise)``: equation 2.11.
    It takes each batch at its own best learning rate.
    """
    return (1 + batch / scale) / (1 + other / scale)
