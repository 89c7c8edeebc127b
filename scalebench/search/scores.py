"""How far the search's models are off here, and so how sure a ranking is.

Rows of runs are predicted as the search predicts, and compared with what was measured.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from scipy.special import ndtr

from scalebench.costmodel.links.fitted import NoFit
from scalebench.records.summary import Row, Summary
from scalebench.search.candidates import AXES, Candidates
from scalebench.search.choice import Choice, choice_of, columns_of
from scalebench.search.model import AXES_OF_WHOLE, SearchModel, WholeModel
from scalebench.search.prediction.memory import activation_bytes, memory_bytes, stage_table
from scalebench.search.prediction.speed import plain_rows
from scalebench.search.prediction.step import step_parts
from scalebench.search.space import Job
from scalebench.spec import Execution, Strategy
from scalebench.spec.base import Record
from scalebench.spec.presets import PRESETS, GptShape, MoeShape

NODES, Z90 = 401, 1.6449
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


_STRATEGY: TypeAdapter[Any] = TypeAdapter(Strategy)


class ScoredRow(Record):
    """A row that was measured, and what the search would have said of it.

    Attributes:
        predicted_s: Step; null: no link for it was measured.
        predicted_bytes: Peak of the fullest rank.
    """

    case: str
    workload: str
    world_size: int
    measured_s: float
    predicted_s: float | None
    measured_bytes: int | None
    predicted_bytes: float


class Scores(Record):
    """What the search's models are worth here.

    Attributes:
        error: Root mean square of ``ln(predicted/measured)`` of steps of several ranks; null: no
            such row was measured.
        num_steps: How many rows that rests on.
        margin: The most that a measured peak was above its prediction, a ratio, at least 0; null:
            no peak was measured.
        num_peaks: How many rows that rests on.
    """

    error: float | None = None
    num_steps: int = 0
    margin: float | None = None
    num_peaks: int = 0
    rows: tuple[ScoredRow, ...] = ()


def activation_ratio(job: Job, rows: Sequence[Row]) -> float:
    """Return measured over counted activations: the plain model on one rank; 1: not measured.

    What is left of a peak when parameters, gradients and moments are taken off, over what
    `activation_bytes` counts; the median over the rows.
    """
    plain = choice_of(_STRATEGY.validate_python({"kind": "plain"}), 1)
    assert not isinstance(plain, str)
    ratios = []
    for row in plain_rows(rows, job.model.name):
        if row.peak_memory_bytes is None or row.strategy_settings.get("autocast"):
            continue
        alone = replace(job, world_size=1, batch=row.global_batch)
        alone = replace(alone, held_bytes=0.0, activation_ratio=1.0)
        of = columns_of([plain])
        layers, _ = stage_table(alone, of)
        counted = float(activation_bytes(alone, of, layers)[0])
        state = float(memory_bytes(alone, of)[0]) - counted
        ratios.append(max(row.peak_memory_bytes - data_bytes([row]) - state, 0.0) / counted)
    return float(np.median(ratios)) if ratios else 1.0


def data_bytes(rows: Sequence[Row]) -> float:
    """Return what the data of a rank takes, bytes; 0: not measured."""
    return float(max((row.memory.get("data_bytes") or 0 for row in rows), default=0))


def is_scored(row: Row) -> bool:
    """Tell whether the search predicts a row: at one rank only the plain model."""
    return row.status == "ok" and (row.world_size > 1 or row.strategy == "plain")


def _known(job: Job, rows: Sequence[Row]) -> Iterator[tuple[Row, Choice, Job, Candidates]]:
    """Yield the rows of a job's model that are in its space: as choice, job and one candidate."""
    for row in rows:
        if row.workload == job.model.name and is_scored(row):
            choice = choice_of_row(row)
            if isinstance(choice, str) or not _in_space(choice, job):
                continue
            if choice.pipeline <= job.model.layers:
                here = replace(job, world_size=row.world_size, batch=row.global_batch)
                yield row, choice, here, columns_of([choice])


def _predicted_s(job: Job, of: Candidates) -> float | None:
    try:
        return float(step_parts(job, of).step_s[0])
    except NoFit:
        return None


def scored_rows(job: Job, rows: Sequence[Row]) -> list[ScoredRow]:
    """Return the rows of a job's model that the search can predict, with its prediction."""
    found = []
    for row, choice, here, of in _known(job, rows):
        if row.step_s is None or row.strategy == "plain":
            continue
        if choice.schedule == "zero-bubble":  # the model is fitted to it: `split_backward_s`
            continue
        if choice.precision not in job.speed.precisions:
            continue
        found.append(
            ScoredRow(
                case=row.case,
                workload=row.workload,
                world_size=row.world_size,
                measured_s=row.step_s.value,
                predicted_s=_predicted_s(here, of),
                measured_bytes=row.peak_memory_bytes,
                predicted_bytes=float(memory_bytes(here, of)[0]),
            )
        )
    return found


def peaks_of(
    job: Job, summaries: Sequence[Summary], model_of: Callable[[str], SearchModel | None]
) -> list[float]:
    """Return measured over predicted peak of every row of runs that the search can predict.

    The activations of each model are taken from its plain row of the same run; a run without one
    is left out.

    Args:
        job: Its memory model is used, whatever its model.
        summaries: Of runs.
        model_of: Name of a workload → the model.
    """
    found = []
    for summary in summaries:
        for workload in dict.fromkeys(row.workload for row in summary.rows):
            model = model_of(workload)
            if model is None or not plain_rows(summary.rows, workload):
                continue
            here = replace(job, model=model)
            here = replace(here, held_bytes=data_bytes(plain_rows(summary.rows, workload)))
            here = replace(here, activation_ratio=activation_ratio(here, summary.rows))
            found += [
                row.peak_memory_bytes / float(memory_bytes(at, of)[0])
                for row, _, at, of in _known(here, summary.rows)
                if row.peak_memory_bytes
            ]
    return found


def _in_space(choice: Choice, job: Job) -> bool:
    """Tell whether a choice divides only what the search knows of the model."""
    if not isinstance(job.model, WholeModel):
        return True
    divided = [axis for axis in AXES if getattr(choice, axis) > 1]
    return set(divided) <= set(AXES_OF_WHOLE) and choice.checkpointing == "none"


def choice_of_row(row: Row) -> Choice | str:
    """Return a measured row as a configuration, or why the search knows none like it."""
    try:
        made: Execution = _STRATEGY.validate_python(row.strategy_settings | {"kind": row.strategy})
    except ValueError:  # of a newer version
        return f"this version knows no strategy {row.strategy} with such settings"
    return choice_of(made, row.world_size)


def scores_of(rows: Sequence[ScoredRow]) -> Scores:
    """Return error and margin over rows."""
    steps = [row for row in rows if row.world_size > 1 and row.predicted_s is not None]
    peaks = [row.measured_bytes / row.predicted_bytes for row in rows if row.measured_bytes]
    error = typical_error([r.predicted_s or 0.0 for r in steps], [r.measured_s for r in steps])
    return Scores(
        error=error,
        num_steps=len(steps),
        margin=max(0.0, max(peaks) - 1) if peaks else None,
        num_peaks=len(peaks),
        rows=tuple(rows),
    )


def model_of(workload: str) -> SearchModel | None:
    """Return a built-in workload as the search sees it; None: it is no transformer."""
    shape = PRESETS.get(workload)
    return SearchModel.of_preset(shape) if isinstance(shape, GptShape | MoeShape) else None


def split_backward_s(job: Job, rows: Sequence[Row]) -> float:
    """Return what each microbatch of the whole model takes longer, seconds; 0: not measured.

    The measured step less the predicted one, for each microbatch; the median over the rows. One
    rank does not show it: the first stage's backward pass is one call.

    Args:
        job: Its speed and links are those that the rows were measured with; ``split_s`` is 0.
        rows: Of a run.
    """
    found = []
    for row, choice, here, of in _known(job, rows):
        if row.step_s is None or choice.schedule != "zero-bubble":
            continue
        if choice.checkpointing != "none" or choice.precision not in job.speed.precisions:
            continue
        predicted_s = _predicted_s(here, of)
        if predicted_s is None:
            continue
        share = float(stage_table(here, of)[0][0]) / job.model.layers
        found.append(max(row.step_s.value - predicted_s, 0.0) / choice.microbatches / share)
    return float(np.median(found)) if found else 0.0
