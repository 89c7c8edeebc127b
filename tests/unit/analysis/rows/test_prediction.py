"""A row predicted from its strategy at N=1, by launches and links whose every number is known."""

import pytest

from scalebench.analysis.prediction_scores import interval_of_row, score
from scalebench.analysis.rows.at_one_rank import step_at_one_rank
from scalebench.analysis.rows.fields import Unavailable, with_fields
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.prediction import FIELDS, predict_row, what_ifs
from scalebench.analysis.step_shape import NoShape
from scalebench.costmodel.links.times import LinkModel
from scalebench.costmodel.step import PredictedStep, predict_step
from scalebench.spec import Ddp, Fsdp, Fsdp1, Pipeline
from tests.builders.predictions import BUCKETS, ask, at_one, shape, the_link
from tests.builders.runs import make_cell, make_result
from tests.builders.summaries import make_prediction, make_row


def test_the_shape_of_a_step_is_when_it_asks_and_what_for():
    found = shape(at_one(*BUCKETS))
    assert [r.ready_s for r in found.requests] == pytest.approx([0.06, 0.08, 0.09])
    assert {r.needed_s for r in found.requests} == {found.batch_s}
    assert (found.batch_s, found.fixed_s) == pytest.approx((0.09, 0.01))


def test_without_smaller_batches_forward_and_backward_shrink_in_proportion():
    quarter = shape(at_one(*BUCKETS)).with_batch(8)
    assert quarter.computing_s == pytest.approx(0.09 / 4 + 0.01)
    assert quarter.requests[0].ready_s == pytest.approx(0.06 / 4)


def test_a_smaller_batch_takes_what_it_was_measured_to_take():
    found = shape(at_one(*BUCKETS, part_ms={8: 40}))
    assert found.with_batch(8).computing_s == pytest.approx(0.04)
    assert found.with_batch(8).batch_s == pytest.approx(0.03)
    assert found.with_batch(8).requests[2].ready_s == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ([at_one()], "no communication"),
        ([at_one(ask(60)), at_one(ask(60), ask(70, 1))], "launches at N=1 differ"),
    ],
)
def test_a_shape_that_cannot_be_told_says_why(results, why):
    with pytest.raises(NoShape, match=why):
        shape(*results)


def test_a_step_is_its_computation_and_what_the_link_does_not_hide():
    found = predict_step(shape(at_one(*BUCKETS)), the_link(2).time, 2, 32)
    # 60 to 70, 80 to 90, 90 to 100 ms; backward ends at 90, the optimizer takes 10 more.
    assert found.step_s == pytest.approx(0.11, rel=1e-3)
    assert found.stalled_s == pytest.approx(0.01, rel=1e-2)
    assert found.low_s <= found.step_s <= found.high_s


def predicted(link, world_size=2, measured_s=0.1, result=None, **changes):
    cell = make_cell("ddp", world_size, **changes)
    first = at_one(*BUCKETS) if result is None else result
    wrapped = Launches(first.cell, measured={0: first})
    return predict_row(Launches(cell), wrapped, link, measured_s)


def test_a_row_is_held_against_its_prediction():
    row = predicted(the_link(2), measured_s=0.05)
    # 16 samples: backward ends at 45 ms, the buckets at 30 → 40, → 50, → 60 ms.
    assert row["predicted_step_s"] == pytest.approx(0.07, rel=1e-3)
    assert row["prediction_error"] == pytest.approx(0.4, rel=1e-2)
    told = row["prediction"]
    assert told.computing_s == pytest.approx(0.055)
    assert told.exposed_comm_s == pytest.approx(0.015, rel=1e-2)
    assert [op.predicted_s for op in told.operations] == pytest.approx([0.01] * 3, rel=1e-3)
    assert told.left_out.reason == "no link was calibrated at fewer ranks"


def test_a_shard_that_was_measured_alone_is_the_computation():
    first, cell = at_one(*BUCKETS), make_cell("ddp", 2)
    alone = [
        make_result(cell.model_copy(update={"purpose": "shard", "repeat": i}), step_s)
        for i, step_s in enumerate((0.10, 0.11, 0.14))
    ]
    wrapped = Launches(first.cell, measured={0: first})
    row = predict_row(Launches(cell, shards=tuple(alone)), wrapped, the_link(2), 0.05, 1.1)
    told = row["prediction"]
    assert told.computing_s == pytest.approx(1.1 * 0.11)
    assert told.launch_dof == 2 and told.launch_spread > 0


def test_the_largest_size_is_predicted_without_its_own_link_as_well():
    told = predicted(the_link(2, 4), 4)["prediction"].left_out
    assert told.link_world_sizes == [2]
    # By the ring's law four ranks need 1.5 times as long: 3 × 15 ms after 15 ms, then 10 ms.
    assert told.predicted_step_s == pytest.approx(0.07, rel=1e-2)
    # The textbook: a quarter of 100 ms, and 3 × 15 ms.
    assert told.textbook_step_s == pytest.approx(0.07, rel=1e-2)


@pytest.mark.parametrize(
    ("why", "arguments"),
    [
        ("no link was calibrated", {"link": "no link was calibrated in this run"}),
        ("no all_reduce was calibrated", {"link": LinkModel([])}),
        ("starts from the strategy at N=1", {"world_size": 1}),
        ("share a device", {"oversubscribed": True}),
        ("no communication at N=1", {"result": at_one()}),
    ],
)
def test_a_row_without_a_prediction_says_why(why, arguments):
    row = predicted(**{"link": the_link(2), **arguments})
    assert set(row) == set(FIELDS)
    assert all(isinstance(told, Unavailable) and why in str(told) for told in row.values())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("strategy", [Ddp(), Fsdp(), Fsdp1()], ids=lambda one: one.kind)
def test_on_a_gpu_no_sharded_step_is_predicted_from_one_rank(device, strategy):
    """Gathers run ahead of the computation there."""
    first = at_one(*BUCKETS)
    cell = first.cell.model_copy(update={"device": device, "strategy": strategy})
    first = first.model_copy(update={"cell": cell})
    launches = Launches(make_cell("ddp", 1), measured={0: first})
    if device == "cuda" and strategy.kind != "ddp":
        with pytest.raises(Unavailable, match="gathers run ahead"):
            step_at_one_rank(launches)
    else:
        assert len(step_at_one_rank(launches).shape.requests) == len(BUCKETS)


def with_intervals(rows):
    return [with_fields(row, interval_of_row(row, rows, None)) for row in rows]


def row_with(world_size, error, left_out=None, case="ddp", efficiency=0.8):
    row = make_row(case, world_size, efficiency=efficiency)
    step = row.step_s.value * (1 + error)
    told = make_prediction(step, left_out={"prediction_error": left_out})
    return row.model_copy(
        update={"predicted_step_s": step, "prediction_error": error, "prediction": told}
    )


def test_a_score_is_the_mean_of_the_errors():
    found = score(with_intervals([row_with(2, 0.02), row_with(4, -0.03), make_row("other", 2)]))
    assert found["num_rows"] == 2
    exact = score(with_intervals([row_with(2, 0.0), row_with(4, -0.03)]))
    assert exact["mean_error"] == pytest.approx(0.015)
    assert found["mean_error"] == pytest.approx(0.025)
    assert found["worst"] == {"suite": "ddp", "case": "ddp", "world_size": 4}
    assert found["num_within"] == 2
    assert score([make_row()]) is None
    assert score([row_with(2, 0.02)], ["cpu"])["profile_differs"] == ["cpu"]


def test_the_interval_of_a_prediction_knows_how_far_the_others_were_off():
    alone = with_intervals([row_with(2, 0.0)])[0].prediction
    beside = with_intervals([row_with(2, 0.0), row_with(4, 0.2)])[0].prediction
    assert (alone.typical_error, alone.low_s) == (None, None)
    better = with_intervals([row_with(2, 0.0), row_with(4, 0.01)])[0].prediction
    assert better.high_s / better.low_s < beside.high_s / beside.low_s
    far_off = with_intervals([row_with(2, 0.3), row_with(4, 0.01)])
    assert score(far_off)["num_within"] == 1  # 4's interval knows of 2's error, not the reverse


def test_other_laws_are_held_against_the_same_left_out_size():
    rows = [
        row_with(2, 0.0, efficiency=0.9),
        row_with(4, 0.0, efficiency=0.8),
        row_with(8, 0.0, left_out=0.03, efficiency=0.4),
    ]
    (found,) = score(rows)["left_out"]
    assert found["fitted_on"] == [1, 2, 4]
    assert found["errors"]["cost model"] == 0.03
    # Constant efficiency says 6.4 where 3.2 was measured: half the step.
    assert found["errors"]["constant efficiency"] == pytest.approx(-0.5)
    assert set(found["errors"]) > {"Amdahl", "Gustafson", "USL"}


def test_a_row_says_what_would_change_it():
    """30 ms on the link from ms 60, 80 and 90 of a step whose last 10 ms are the optimizer's."""
    row = predicted(the_link(2))
    told = {found.change: found for found in row["prediction"].what_if}
    step_s = row["predicted_step_s"]
    assert all(found.gain == pytest.approx(1 - found.step_s / step_s) for found in told.values())
    # One bucket of 25 MiB is ready at the end of backward: nothing of it is hidden.
    assert [change for change in told if "buckets" in change] == [
        "buckets of 0.25 MiB", "buckets of 1 MiB", "buckets of 4 MiB",
    ]  # fmt: skip
    assert told["buckets of 4 MiB"].gain < 0 < told["2 times the bandwidth"].gain
    halved = told["gradients of 16 bits, conversion not counted"]
    assert halved.step_s == pytest.approx(told["2 times the bandwidth"].step_s, rel=1e-3)


@pytest.mark.parametrize(("rank_batch", "twice"), [(16, [8]), (8, [8]), (12, []), (4, [])])
def test_a_pipeline_is_asked_for_twice_the_microbatches_where_the_batch_allows(rank_batch, twice):
    cell = make_cell("1f1b", 2, strategy=Pipeline(microbatches=4), rank_batch=rank_batch)
    times = {"step_s": 0.1, "low_s": 0.1, "high_s": 0.1, "computing_s": 0.1, "stalled_s": 0.0}
    step = PredictedStep(**times, requests=(), times=(), world_sizes=(2,))
    told = what_ifs(cell, lambda *_: step, the_link(2), step)
    assert [one.microbatches for one in told if one.microbatches is not None] == twice
    assert not any(one.gradient_bits or one.bucket_mb for one in told)
