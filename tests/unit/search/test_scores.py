from dataclasses import replace
from pathlib import Path

import pytest

from scalebench.analysis.run import load_run
from scalebench.analysis.summarise import summarise
from scalebench.search.calibration import calibrated_job
from scalebench.search.choice import Choice, columns_of
from scalebench.search.model import SearchModel
from scalebench.search.prediction.speed import NoPlainRow, measured_speed
from scalebench.search.prediction.step import step_parts
from scalebench.search.scores import model_of, scored_rows, scores_of, split_backward_s
from scalebench.spec.presets import PRESETS, GptShape, MoeShape
from scalebench.stats import Estimate
from tests.builders.summaries import make_row
from tests.examples import cases
from tests.unit.search.jobs import SMALL, SPEED, job

GALLERY = Path(__file__).parents[3] / "reports" / "gallery"


def tiny():
    shape = PRESETS["gpt-tiny"]
    assert isinstance(shape, GptShape | MoeShape)
    return SearchModel.of_preset(shape)


@pytest.fixture(scope="module")
def fsdp():
    run = load_run(GALLERY / "fsdp-2-cores")
    return run, summarise(run)


def test_one_rank_takes_what_the_plain_row_took(fsdp):
    run, summary = fsdp
    known = calibrated_job(run, summary, tiny(), job(2, 16, model=tiny()))
    plain = next(row for row in summary.rows if row.strategy == "plain")
    assert plain.step_s is not None
    speed = known.speed
    told = {r.prediction.contention for r in summary.rows if r.prediction and r.world_size == 2}
    (contention,) = told - {None}  # of the run, on two ranks: one for all its rows
    assert 0.8 < contention < 1.25
    compute = 16 * known.model.flops_per_sample * speed.flop_s["float32"]
    whole = compute + speed.pass_s + speed.update_s
    assert whole == pytest.approx(contention * plain.step_s.value, rel=0.01)
    assert "on 16 samples" in speed.described and not speed.peak_flops


def test_rows_of_several_ranks_are_predicted_and_scored(fsdp):
    run, summary = fsdp
    known = calibrated_job(run, summary, tiny(), job(2, 16, model=tiny()))
    rows = scored_rows(known, summary.rows)
    assert {row.case for row in rows} >= {"ddp", "fsdp", "fsdp-shard-grad-op", "zero1"}
    scores = scores_of(rows)
    assert scores.num_steps == len(rows) == 4 and scores.error is not None
    assert all(row.predicted_s is not None for row in rows)


@cases(
    "name, axis",
    *(("fsdp-2-cores", "shard"), ("tensor-2-cores", "tensor"), ("pipeline-2-cores", "pipeline")),
)
def test_what_an_axis_costs_on_one_rank_makes_its_rows_predictable(name, axis):
    run = load_run(GALLERY / name)
    summary = summarise(run)
    model = model_of(summary.rows[0].workload)
    assert model is not None
    known = calibrated_job(run, summary, model, job(2, 16, model=model))
    assert known.speed.axis_s[axis] > 0
    bare = replace(known, speed=replace(known.speed, axis_s={}))
    with_, without = (scores_of(scored_rows(one, summary.rows)) for one in (known, bare))
    assert with_.error is not None and without.error is not None
    assert with_.error < 0.25  # of committed runs: nothing is timed here
    assert with_.error < 0.7 * without.error
    assert with_.margin is not None and with_.margin < 0.3


def test_a_run_without_the_model_says_so(fsdp):
    run, summary = fsdp
    with pytest.raises(NoPlainRow, match="did not measure small"):
        measured_speed(run, summary, SMALL)
    assert model_of("cnn-8") is None and model_of("gpt-7b") is not None


def test_what_zero_bubble_takes_longer_is_found_again_in_the_step_that_it_makes():
    """But for the idle time, to which half of one microbatch's is added."""
    settings = {"schedule": "zero-bubble", "microbatches": 16}
    of = job(2, 16, speed=replace(SPEED, flop_s={"float32": 1e-10}))
    slower = replace(of, speed=replace(of.speed, split_s=0.008))
    step = step_parts(slower, columns_of([Choice(data=1, pipeline=2, **settings)])).step_s[0]
    fields = {"workload": SMALL.name, "global_batch": 16, "strategy_settings": settings}
    made = Estimate(value=float(step), n=1)
    row = make_row("zero-bubble", 2, strategy="pipeline", step_s=made, **fields)
    assert split_backward_s(of, [row]) == pytest.approx(0.008, rel=0.04)
