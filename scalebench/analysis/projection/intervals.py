"""How far a prediction may be off: what other rows say of the model, and what is less known here.

The errors of a run's other rows hold everything that can go wrong with a prediction: the model, the
launches that it starts from, the link, and the launches that it is compared with. They are few, so
Student's t is taken by their number. The row's own launches and link count in addition only by what
they are less certain than those of the others; taken whole, they would count twice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import fdtrc

from scalebench.costmodel.step import PredictedStep
from scalebench.records.rows.prediction import Prediction
from scalebench.stats import Variance, quantile, sum_variances, t_half_width

PREDICTION_CONFIDENCE = 0.90
NOT_BY_CHANCE = 0.1
"""How rarely launches that scatter alike may look as if these scattered more (F test)."""


@dataclass(frozen=True)
class Compared:
    """A row that was predicted and measured.

    Attributes:
        log_error: Logarithm of predicted over measured step.
        known: Variance of that, as far as launches at N=1 and link tell it.
    """

    log_error: float
    known: Variance


def variance_at_one_rank(spread: float, dof: int) -> Variance:
    """Return the variance that the launches at N=1 give the logarithm of a predicted step.

    ``spread`` is the standard error over the launches. ``dof``: launches but one; 0: their scatter
    is not known, and only other rows' errors hold it.
    """
    return Variance(spread**2, dof) if dof else Variance(0.0, math.inf)


def variance_of_link(step_s: float, high_s: float, dof: float | None) -> Variance:
    """Return the variance that the link gives it.

    ``high_s``: with every operation at the upper end of its 95 % interval. ``dof`` is behind that
    interval; None or infinite: many.
    """
    freedom = math.inf if dof is None else dof
    return Variance((math.log(high_s / step_s) / float(quantile(freedom))) ** 2, freedom)


def known_of_row(step_s: float, prediction: Prediction) -> Variance:
    """Return what launches and link of a row's prediction say about its error."""
    launches = variance_at_one_rank(prediction.launch_spread, prediction.launch_dof)
    return sum_variances(
        [launches, variance_of_link(step_s, prediction.link_high_s, prediction.link_dof)]
    )


def known_of_step(step: PredictedStep, spread: float, num_launches: int) -> Variance:
    """Return the same of a step at a size that was not measured."""
    launches = variance_at_one_rank(spread, num_launches - 1)
    return sum_variances([launches, variance_of_link(step.step_s, step.high_s, step.link_dof)])


def typical_error(compared: Sequence[Compared]) -> float | None:
    """Return the root mean square of the errors of rows; None: there is none."""
    if not compared:
        return None
    return math.sqrt(sum(one.log_error**2 for one in compared) / len(compared))


def half_width(
    known: Variance, compared: Sequence[Compared], doublings: float = 1.0
) -> float | None:
    """Return half the width of the 90 % interval of a predicted step's logarithm.

    Student's t with Satterthwaite's degrees of freedom, of the mean squared error of the other
    rows (as many degrees of freedom as rows: predictions are not centred on them), and of what
    ``known`` has in excess of theirs, where that is not chance.

    ``compared`` are other rows of the run. The model's own error is counted ``doublings`` times.

    Returns:
        None: no other row tells how far the model may be off.
    """
    model = typical_error(compared)
    if model is None:
        return None
    others = sum_variances([one.known for one in compared])
    usual = Variance(others.value / len(compared), others.dof)
    parts = [Variance((model * doublings) ** 2, len(compared)), _excess(known, usual)]
    return t_half_width(sum_variances(parts), PREDICTION_CONFIDENCE)


def _excess(known: Variance, usual: Variance) -> Variance:
    """Return what a variance has in excess of the usual one; 0 where chance may explain it."""
    nothing = Variance(0.0, known.dof)
    if known.value <= usual.value:
        return nothing
    ratio = known.value / usual.value if usual.value else math.inf
    by_chance = math.isfinite(ratio) and _p_value(ratio, known.dof, usual.dof) > NOT_BY_CHANCE
    return nothing if by_chance else Variance(known.value - usual.value, known.dof)


def _p_value(ratio: float, dof: float, dof_below: float) -> float:
    return float(fdtrc(min(dof, 1e6), min(dof_below, 1e6), ratio))
