"""What zero-bubble takes longer is found again in the step that it makes."""

from dataclasses import replace

import pytest

from scalebench.records.summary import Row
from scalebench.search.choice import Choice, columns_of
from scalebench.search.prediction.step import step_parts
from scalebench.search.scores import split_backward_s
from scalebench.stats import Estimate
from tests.builders.summaries import make_row
from tests.unit.search.jobs import SMALL, SPEED, job

MS = 1e-3
JOB = job(2, 16, speed=replace(SPEED, flop_s={"float32": 1e-10}))


def row_of(schedule: str, step_s: float, **changes) -> Row:
    settings = {"schedule": schedule, "microbatches": 16}
    fields = {"workload": SMALL.name, "global_batch": 16, "strategy_settings": settings}
    step = Estimate(value=step_s, n=1)
    return make_row(schedule, 2, strategy="pipeline", step_s=step, **{**fields, **changes})


def step_of(schedule: str, split_s: float) -> float:
    choice = Choice(data=1, pipeline=2, schedule=schedule, microbatches=16)  # type: ignore[arg-type]
    of = replace(JOB, speed=replace(JOB.speed, split_s=split_s))
    return float(step_parts(of, columns_of([choice])).step_s[0])


def test_what_every_microbatch_pays_is_found_again() -> None:
    """But for the idle time, to which half of one microbatch's is added."""
    row = row_of("zero-bubble", step_of("zero-bubble", 8 * MS))
    assert split_backward_s(JOB, [row]) == pytest.approx(8 * MS, rel=0.04)
