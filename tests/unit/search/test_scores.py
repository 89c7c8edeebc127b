"""Speed, memory margin and error of the search, learnt from committed runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from scalebench.analysis.run import load_run
from scalebench.analysis.summarise import summarise
from scalebench.records.summary import Summary
from scalebench.search.calibration import calibrated_job, calibration_suite
from scalebench.search.choice import choices
from scalebench.search.model import SearchModel, WholeModel
from scalebench.search.ranking import search
from scalebench.search.scores import (
    activation_ratio,
    model_of,
    peaks_of,
    scored_rows,
    scores_of,
)
from scalebench.search.speed import NoPlainRow, measured_speed, whole_model
from scalebench.search.strategies import strategy_of
from scalebench.spec.presets import PRESETS, GptShape, MoeShape
from tests.unit.search.jobs import ROUTED, SMALL, job

GALLERY = Path(__file__).parents[3] / "reports" / "gallery"


def tiny() -> SearchModel:
    shape = PRESETS["gpt-tiny"]
    assert isinstance(shape, GptShape | MoeShape)
    return SearchModel.of_preset(shape)


@pytest.fixture(scope="module")
def fsdp() -> tuple[object, Summary]:
    run = load_run(GALLERY / "fsdp-2-cores")
    return run, summarise(run)


def test_one_rank_takes_what_the_plain_row_took(fsdp) -> None:
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
    assert "on 16 samples" in speed.told and not speed.peak_flops


def test_rows_of_several_ranks_are_predicted_and_scored(fsdp) -> None:
    run, summary = fsdp
    known = calibrated_job(run, summary, tiny(), job(2, 16, model=tiny()))
    rows = scored_rows(known, summary.rows)
    assert {row.case for row in rows} >= {"ddp", "fsdp", "fsdp-shard-grad-op", "zero1"}
    scores = scores_of(rows)
    assert scores.num_steps == len(rows) == 4 and scores.error is not None
    assert all(row.predicted_s is not None for row in rows)


@pytest.mark.parametrize(
    ("name", "axis"),
    [("fsdp-2-cores", "shard"), ("tensor-2-cores", "tensor"), ("pipeline-2-cores", "pipeline")],
)
def test_what_an_axis_costs_on_one_rank_makes_its_rows_predictable(name: str, axis: str) -> None:
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


def test_activations_are_scaled_so_that_the_plain_peak_is_met(fsdp) -> None:
    run, summary = fsdp
    known = calibrated_job(run, summary, tiny(), job(2, 16, model=tiny()))
    assert activation_ratio(known, summary.rows) == known.activation_ratio > 0
    assert activation_ratio(known, []) == 1.0
    peaks = peaks_of(known, [summary], model_of)
    assert len(peaks) == 5  # plain on one rank, and all on two
    assert min(peaks) > 0.8 and max(peaks) < 1.2 and min(abs(p - 1) for p in peaks) < 1e-6


def test_a_run_without_the_model_says_so(fsdp) -> None:
    run, summary = fsdp
    with pytest.raises(NoPlainRow, match="did not measure small"):
        measured_speed(run, summary, SMALL)
    assert model_of("cnn-8") is None and model_of("gpt-7b") is not None


def test_any_workload_is_searched_by_its_measured_step(fsdp) -> None:
    run, summary = fsdp
    counted = calibrated_job(run, summary, tiny(), job(2, 16, model=tiny()))
    unknown = WholeModel.of("gpt-tiny")  # as a workload of the user's own: nothing but its name
    known = calibrated_job(run, summary, unknown, job(2, 16, model=unknown))
    assert known.model.num_parameters == 437_760 and known.model.layers == 2
    assert known.model.flops_per_sample == pytest.approx(counted.model.flops_per_sample, rel=0.2)
    rows = {row.case: row for row in scored_rows(known, summary.rows)}
    of_counted = {row.case: row for row in scored_rows(counted, summary.rows)}
    assert set(rows) == set(of_counted)
    for case, row in rows.items():
        assert row.predicted_s == pytest.approx(of_counted[case].predicted_s, rel=0.05)
        assert row.predicted_bytes == pytest.approx(of_counted[case].predicted_bytes, rel=0.15)
    found = choices(known, search(known).best)
    assert {one.mesh for one in found} == {(2, 1, 1, 1, 1, 1, 0), *((1, 2, 1, 1, 1, 1, z) for z in
                                                                  (1, 2, 3))}  # fmt: skip
    assert not isinstance(strategy_of(found[0], "cpu", 2, 16), str)
    assert known.checkpointing == ("none",) and found[0].mfu is None


def test_a_workload_without_counted_work_has_no_mfu_and_the_same_steps(fsdp) -> None:
    run, summary = fsdp
    rows = [row.model_copy(update={"flops_per_sample": None}) for row in summary.rows]
    bare = summary.model_copy(update={"rows": rows})
    steps = []
    for told in (summary, bare):
        model = whole_model(run, told, "gpt-tiny")
        known = calibrated_job(run, told, model, job(2, 16, model=model))
        steps.append([one.step_s for one in choices(known, search(known).best)])
    assert steps[0] == pytest.approx(steps[1])
    assert not model.is_counted and not known.speed.peak_flops
    with pytest.raises(NoPlainRow, match="did not measure cnn-8"):
        whole_model(run, summary, "cnn-8")


@pytest.mark.parametrize("model", [SMALL, ROUTED])
def test_the_short_measurement_has_the_axes_that_the_model_has(model: SearchModel) -> None:
    suite = calibration_suite(model, 16, 4)
    kinds = {case.strategy.kind for case in suite.cases}
    assert {"plain", "ddp", "fsdp"} <= kinds
    plain = [case for case in suite.cases if case.strategy.kind == "plain"]
    wanted = {False: [None, 4, 1], "selective": [None, 1], True: [None, 1]}
    for checkpointing, batches in wanted.items():
        mine = [case for case in plain if case.strategy.checkpointing == checkpointing]
        assert [case.batch_size for case in mine] == batches  # one: what is paid for no samples
    whole = calibration_suite(WholeModel.of("cnn-8"), 16, 4)
    assert not any(case.strategy.checkpointing for case in whole.cases)
    assert ("expert" in kinds) == (model.experts > 1)
    assert ({"mesh", "context", "pipeline"} <= kinds) == (model.experts == 1)


def test_a_row_without_a_peak_or_in_mixed_precision_says_nothing_of_activations(fsdp) -> None:
    run, summary = fsdp
    known = calibrated_job(run, summary, tiny(), job(2, 16, model=tiny()))
    plain = next(row for row in summary.rows if row.strategy == "plain")
    unknown = plain.model_copy(update={"peak_memory_bytes": None})
    huge = {"peak_memory_bytes": 1 << 40, "strategy_settings": {"autocast": True}}
    mixed = plain.model_copy(update=huge)
    assert activation_ratio(known, [unknown, mixed]) == 1.0
    assert activation_ratio(known, [unknown, plain, mixed]) == known.activation_ratio


def test_the_optimizers_part_is_that_of_the_same_workload(fsdp) -> None:
    run, summary = fsdp
    found = measured_speed(run, summary, tiny())
    plain = next(row for row in summary.rows if row.strategy == "plain")
    assert plain.step_s is not None and 0 < found.update_s < plain.step_s.value
    renamed = [row.model_copy(update={"workload": SMALL.name}) for row in summary.rows]
    other = summary.model_copy(update={"rows": renamed})
    assert measured_speed(run, other, SMALL).update_s == 0
