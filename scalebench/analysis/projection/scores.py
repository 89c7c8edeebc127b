"""How good the predictions of a run are: compared with the measured rows, and with other laws.

A prediction's interval comes from how far the model was off in the run's other rows; a single row
has none. The errors of a run's other rows hold everything that can go wrong with a prediction: the
model, the launches that it starts from, the link, and the launches that it is compared with. They
are few, so Student's t is taken by their number. The row's own launches and link count in addition
only by what they are less certain than those of the others; taken whole, they would count twice.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import fdtrc

from scalebench.analysis.rows.launches import Fields
from scalebench.costmodel.step import PredictedStep
from scalebench.costmodel.what_if import fit_all
from scalebench.grouping import by_key
from scalebench.records.rows.steps import Prediction
from scalebench.records.summary import Row
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


MECHANISTIC = "cost model"
TEXTBOOK = "bandwidth term"


def interval_of_row(row: Row, rows: Sequence[Row], _: object) -> Fields:
    """Return a row's prediction with its interval and the efficiency that it means."""
    predicted, told = row.predicted_step_s, row.prediction
    if predicted is None or told is None:
        return {}
    scored = predicted_rows(rows)
    others = [_compared(other) for other in scored if other is not row]
    reach = half_width(known_of_row(predicted, told), others)
    efficiency, changed = None, told.what_if
    if row.efficiency is not None and row.step_s is not None:
        ideal_s = row.efficiency.value * row.step_s.value
        efficiency = ideal_s / predicted
        changed = [
            found.model_copy(update={"efficiency": ideal_s / found.step_s}) for found in changed
        ]
    scored_fields = {
        "low_s": None if reach is None else predicted * math.exp(-reach),
        "high_s": None if reach is None else predicted * math.exp(reach),
        "confidence": PREDICTION_CONFIDENCE,
        "typical_error": typical_error(others),
        "efficiency": efficiency,
        "what_if": changed,
    }
    return {"prediction": told.model_copy(update=scored_fields)}


def predicted_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with a prediction and a measured step to compare it with."""
    return [row for row in rows if row.prediction_error is not None]


def _compared(row: Row) -> Compared:
    assert row.prediction is not None and row.predicted_step_s is not None, "it has an error"
    known = known_of_row(row.predicted_step_s, row.prediction)
    return Compared(math.log1p(row.prediction_error or 0.0), known)


def score(rows: Sequence[Row], profile_differs: Sequence[str] = ()) -> dict[str, Any] | None:
    """Return how good the predictions of a run are; None: there are none.

    Args:
        rows: Of the run.
        profile_differs: In what the machine of the link profile is not that of the run.

    Returns:
        ``num_rows``, ``mean_error`` (mean absolute percentage error, as a ratio), ``worst_error``
        with its ``worst`` row; ``num_within`` of the 90 % intervals; ``left_out``: for the largest
        N of each case the error of every law that was fitted without it, and
        ``left_out_mean_error`` of each law over those cases; ``profile_differs``.
    """
    scored = predicted_rows(rows)
    if not scored:
        return None
    errors = [abs(row.prediction_error or 0.0) for row in scored]
    worst = scored[int(np.argmax(errors))]
    left_out = [found for case in _by_case(rows) if (found := _left_out(case)) is not None]
    laws = dict.fromkeys(name for found in left_out for name in found["errors"])
    return {
        "num_rows": len(scored),
        "mean_error": float(np.mean(errors)),
        "worst_error": worst.prediction_error,
        "worst": {"suite": worst.suite, "case": worst.case, "world_size": worst.world_size},
        "num_within": sum(_holds(row) for row in scored),
        "confidence": PREDICTION_CONFIDENCE,
        "profile_differs": list(profile_differs),
        "left_out": left_out,
        "left_out_mean_error": {
            law: float(np.mean([abs(found["errors"][law]) for found in left_out])) for law in laws
        },
    }


def _holds(row: Row) -> bool:
    told, step = row.prediction, row.step_s
    if told is None or told.low_s is None or told.high_s is None or step is None:
        return False
    return told.low_s <= step.value <= told.high_s


def _by_case(rows: Sequence[Row]) -> list[list[Row]]:
    cases = by_key(((row.suite, row.case), row) for row in rows)
    return list(cases.values())


def _left_out(case: Sequence[Row]) -> dict[str, Any] | None:
    """Return the errors of the laws that know nothing of a case's largest N; None: no such law."""
    scored = sorted(predicted_rows(case), key=lambda row: row.world_size)
    if len(scored) < 2:
        return None
    largest, smaller = scored[-1], scored[:-1]
    blind = largest.prediction.left_out if largest.prediction else None
    known = {row.world_size: row.speedup.value for row in smaller if row.speedup is not None}
    if blind is None or blind.prediction_error is None or not known or largest.speedup is None:
        return None
    errors = {MECHANISTIC: blind.prediction_error, **_errors_of_laws(known, largest)}
    if blind.textbook_step_s is not None and largest.step_s is not None:
        errors[TEXTBOOK] = blind.textbook_step_s / largest.step_s.value - 1
    return {
        "suite": largest.suite,
        "case": largest.case,
        "world_size": largest.world_size,
        "fitted_on": [1, *known],
        "errors": errors,
    }


def _errors_of_laws(known: Mapping[int, float], largest: Row) -> dict[str, float]:
    """Return predicted over measured step, minus 1, for each law of speedups."""
    measured = largest.speedup.value if largest.speedup else math.nan
    laws = fit_all(list(known), list(known.values()))
    return {law.name: measured / law.speedup(largest.world_size) - 1 for law in laws}


def compared_rows(rows: Sequence[Row]) -> list[Compared]:
    """Return the rows that the model was compared with: where it knew least, if anywhere."""
    scored = predicted_rows(rows)
    blind = [one for one in map(_without_its_links, scored) if one]
    return blind or [_compared(row) for row in scored]


def _without_its_links(row: Row) -> Compared | None:
    """Return a row as it was predicted from links of fewer ranks; None: it was not."""
    told = row.prediction
    blind = told.left_out if told is not None else None
    if told is None or blind is None or blind.prediction_error is None:
        return None
    launches = variance_at_one_rank(told.launch_spread, told.launch_dof)
    step_s, high_s = blind.predicted_step_s, blind.link_high_s
    if step_s is None or high_s is None:
        return Compared(math.log1p(blind.prediction_error), launches)
    link = variance_of_link(step_s, high_s, told.link_dof)
    return Compared(math.log1p(blind.prediction_error), sum_variances([launches, link]))
