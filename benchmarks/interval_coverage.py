"""How often intervals from few launches hold the truth, by simulation: nothing here is measured.

Every step time is made by rule and seed, so what an interval should hold is known. The intervals
are those that scalebench gives: of a predicted row, of a projection, of a replayed break-even.
``python -m benchmarks.interval_coverage`` prints; target: within 2 points of what they claim.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.verdict import against_limit
from scalebench.analysis.projection import scores
from scalebench.analysis.rows.against_uncompressed import ratio_at_one_rank
from scalebench.analysis.rows.launches import Launches
from scalebench.records.summary import Row
from tests.builders.summaries import make_prediction, make_row
from tests.builders.tracing.traced import (
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
)

CALLS = 4000
LAUNCHES = (2, 3, 5)
ROWS = (2, 4, 9)
"""Rows of a run with a prediction: an interval rests on the others."""

LAUNCH_SD = 0.01
"""Of the logarithm of a launch's step at N=1."""

Count = Callable[[np.random.Generator, int], bool]
"""Whether one simulated interval, from so many launches, holds the truth."""


@dataclass(frozen=True)
class Predictions:
    """Rows whose predictions err by the launches that they start from, and by the model.

    Attributes:
        num_rows: Of the run.
        model_sd: Of the model's error, a logarithm.
        same_start: Whether all rows are of one case, so that they start from the same launches.
    """

    num_rows: int
    model_sd: float
    same_start: bool = False

    def rows(self, random: np.random.Generator, num_launches: int) -> list[Row]:
        """Return the rows of a run; each was measured to take 20 ms."""
        shape = (1 if self.same_start else self.num_rows, num_launches)
        logs = np.broadcast_to(random.normal(0, LAUNCH_SD, shape), (self.num_rows, num_launches))
        spreads = logs.std(axis=1, ddof=1) / math.sqrt(num_launches)
        errors = logs.mean(axis=1) + random.normal(0, self.model_sd, self.num_rows)
        return [
            _predicted(2 + index, float(error), float(spread), num_launches - 1)
            for index, (error, spread) in enumerate(zip(errors, spreads, strict=True))
        ]

    def row_holds(self, random: np.random.Generator, num_launches: int) -> bool:
        """Whether the interval of a row's prediction holds what was measured."""
        row, *others = self.rows(random, num_launches)
        told = scores.interval_of_row(row, [row, *others], None)["prediction"]
        assert row.step_s is not None
        low, high = told.low_s, told.high_s
        assert low is not None and high is not None, "there are other rows"
        return low <= row.step_s.value <= high

    def projection_holds(self, random: np.random.Generator, num_launches: int) -> bool:
        """Whether that of one more size, which is not measured, holds its step."""
        projected, *scored = self.rows(random, num_launches)
        told = projected.prediction
        assert told is not None and projected.prediction_error is not None
        known = scores.variance_at_one_rank(told.launch_spread, told.launch_dof)
        reach = scores.half_width(known, scores.compared_rows(scored))
        assert reach is not None, "there are scored rows"
        return abs(math.log1p(projected.prediction_error)) <= reach


@cache
def _measured(world_size: int) -> Row:
    return make_row("ddp", world_size, prediction=make_prediction())


def _predicted(world_size: int, log_error: float, spread: float, dof: int) -> Row:
    """Return a row whose link is known exactly."""
    row = _measured(world_size)
    assert row.step_s is not None and row.prediction is not None
    step_s = row.step_s.value * math.exp(log_error)
    link = {"link_low_s": step_s, "link_high_s": step_s}
    launches = {"launch_spread": spread, "launch_dof": dof}
    changes = {"predicted_step_s": step_s, "prediction_error": math.expm1(log_error)}
    told = row.prediction.model_copy(update={**link, **launches})
    return row.model_copy(update={**changes, "prediction": told})


def ratio_holds(random: np.random.Generator, num_launches: int) -> bool:
    """Whether the ratio of two steps at N=1, by which a break-even is off, holds 1.

    The rounds drift by 5 %, which both share; each launch is off by 1 % beside it.
    """
    drift = random.normal(0, 5 * LAUNCH_SD, num_launches)
    both = [np.exp(drift + random.normal(0, LAUNCH_SD, num_launches)) for _ in range(2)]
    found = ratio_at_one_rank(*(_launches(100 * steps) for steps in both))
    assert found is not None, "they have all rounds in common"
    return not found.excludes_zero


def _launches(step_ms: np.ndarray) -> Launches:
    operation = make_operation(90.1, 90.2, phase="backward", num_bytes=4_000_000, group_size=1)
    results = [
        make_traced_result(make_traced_record(0, make_trace([operation], [(0, 100)]), clean=ms))
        for ms in step_ms
    ]
    return Launches(results[0].cell, measured=dict(enumerate(results)))


def settings() -> Iterator[tuple[str, float, Count]]:
    """Yield what is simulated: a name, the confidence that is claimed, what counts."""
    for num_rows in ROWS:
        for model_sd in (0.0, LAUNCH_SD, 3 * LAUNCH_SD):
            name = f"predicted row of {num_rows}, model off by {100 * model_sd:g} %"
            yield name, 0.90, Predictions(num_rows, model_sd).row_holds
    for num_rows in ROWS:
        of_one_case = Predictions(num_rows, 3 * LAUNCH_SD, same_start=True)
        yield f"projection from {num_rows - 1} scored", 0.90, of_one_case.projection_holds
    yield "break-even: steps at N=1", 0.95, ratio_holds


def coverage(counts: Count, calls: int, seed: int = 1729) -> Mapping[int, float]:
    """Return how often an interval holds the truth, by the number of launches."""
    return {
        n: sum(counts(np.random.default_rng((seed, n, call)), n) for call in range(calls)) / calls
        for n in LAUNCHES
    }


def main() -> None:
    """Simulate everything and print it."""
    print(f"{'share of intervals that hold the truth':48}{'claimed':>9}   launches {LAUNCHES}")
    farthest = 0.0
    for name, claimed, counts in settings():
        calls = CALLS if claimed == 0.90 else CALLS // 4  # a break-even is made record by record
        shares = coverage(counts, calls).values()
        farthest = max(farthest, *(abs(share - claimed) for share in shares))
        found = "".join(f"{100 * share:11.1f} %" for share in shares)
        print(f"{name:48}{100 * claimed:7.0f} %{found}", flush=True)
    print(f"farthest from the claim: {against_limit(100 * farthest, 2.0, 'points')}")


if __name__ == "__main__":
    main()
