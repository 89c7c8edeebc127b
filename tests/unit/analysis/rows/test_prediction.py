"""A row predicted from its strategy at N=1, by launches and links whose every number is known."""

import math

import pytest

from scalebench.analysis.attribution import attribute
from scalebench.analysis.prediction_scores import interval_of_row, score
from scalebench.analysis.rows.fields import Unavailable, with_fields
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.prediction import FIELDS, predict_row, step_at_one_rank
from scalebench.analysis.rows.what_if import what_ifs
from scalebench.analysis.step_shape import NoShape, shape_of
from scalebench.costmodel.links.fitting import fit_links
from scalebench.costmodel.links.times import LinkModel
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import PredictedStep, StepShape, predict_step
from scalebench.records.rank import Block
from scalebench.records.rows.prediction import ChangedStep
from scalebench.spec import Ddp, Fsdp, Fsdp1, Pipeline
from tests.builders.link_sweeps import sizes, sweep
from tests.builders.runs import make_cell, make_result
from tests.builders.summaries import make_prediction, make_row
from tests.builders.traced import make_operation, make_trace, make_traced_record, make_traced_result

SECONDS_PER_BYTE = 1e-8
BUCKET = 1_000_000  # 10 ms on the link


def the_link(*world_sizes):
    """Links on which D bytes take D·10 ns, whatever N."""
    size = sizes(12, 1 << 10, 1 << 24)
    points = [p for n in world_sizes for p in sweep(size, size * SECONDS_PER_BYTE, world_size=n)]
    return LinkModel(fit_links(points).fits)


def ask(at, ordinal=0, phase="backward", num_bytes=BUCKET, **changes):
    return make_operation(
        at + 0.1, at + 0.2, ordinal=ordinal, phase=phase, num_bytes=num_bytes, group_size=1,
        enqueued_ns=round(at * 1e6), **changes,
    )  # fmt: skip


def at_one(*operations, clean=100, part_ms=None, batch=32):
    """The strategy at N=1: steps of 100 ms; ``part_ms``: samples → a step on so many of them."""
    record = make_traced_record(0, make_trace(operations, [(0, 100)]), clean=clean)
    for samples, step in (part_ms or {}).items():
        block = Block(phase="part", first=len(record.step_s), count=2, num_samples=samples)
        record = record.model_copy(
            update={
                "step_s": [*record.step_s, 5.0, step / 1e3],
                "loss": [*record.loss, 1.0, 1.0],
                "blocks": [*record.blocks, block],
            }
        )
    return make_traced_result(record, rank_batch=batch, global_batch=batch)


def shape(*results):
    return shape_of([attribute(result) for result in results])


BUCKETS = (ask(60), ask(80, 1), ask(90, 2))


def test_the_shape_of_a_step_is_when_it_asks_and_what_for():
    found = shape(at_one(*BUCKETS))
    assert [r.ready_s for r in found.requests] == pytest.approx([0.06, 0.08, 0.09])
    assert {r.needed_s for r in found.requests} == {found.batch_s}
    assert (found.batch_s, found.fixed_s) == pytest.approx((0.09, 0.01))


def test_a_traced_step_is_as_long_as_a_clean_one():
    found = shape(at_one(*BUCKETS, clean=50))
    assert found.computing_s == pytest.approx(0.05)
    assert found.requests[0].ready_s == pytest.approx(0.03)


def test_without_smaller_batches_forward_and_backward_shrink_in_proportion():
    quarter = shape(at_one(*BUCKETS)).with_batch(8)
    assert quarter.computing_s == pytest.approx(0.09 / 4 + 0.01)
    assert quarter.requests[0].ready_s == pytest.approx(0.06 / 4)


def test_a_smaller_batch_takes_what_it_was_measured_to_take():
    found = shape(at_one(*BUCKETS, part_ms={8: 40}))
    assert found.with_batch(8).computing_s == pytest.approx(0.04)
    assert found.with_batch(8).batch_s == pytest.approx(0.03)
    assert found.with_batch(8).requests[2].ready_s == pytest.approx(0.03)


def test_between_measured_batches_the_line_holds():
    found = shape(at_one(*BUCKETS, part_ms={16: 60, 8: 40}))  # 20 ms + 2.5 ms for each sample
    assert found.with_batch(4).computing_s == pytest.approx(0.03)
    assert found.with_batch(2).computing_s == pytest.approx(0.025)


def test_the_spread_is_the_standard_error_of_the_steps_logarithm():
    """Of two launches half of what their logarithms differ by."""
    first, second = at_one(*BUCKETS, clean=100), at_one(*BUCKETS, clean=121)
    assert step_at_one_rank(Launches(first.cell, measured={0: first})).spread == 0.0
    both = step_at_one_rank(Launches(first.cell, measured={0: first, 1: second}))
    assert both.spread == pytest.approx(math.log(1.21) / 2)


def test_launches_are_averaged():
    found = shape(at_one(*BUCKETS), at_one(ask(40), ask(60, 1), ask(70, 2)))
    assert [r.ready_s for r in found.requests] == pytest.approx([0.05, 0.07, 0.08])


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


def test_no_launch_no_shape():
    with pytest.raises(NoShape, match="N=1"):
        shape_of([])


def test_a_step_is_its_computation_and_what_the_link_does_not_hide():
    found = predict_step(shape(at_one(*BUCKETS)), the_link(2).time, 2, 32)
    # 60 to 70, 80 to 90, 90 to 100 ms; backward ends at 90, the optimizer takes 10 more.
    assert found.step_s == pytest.approx(0.11, rel=1e-3)
    assert found.stalled_s == pytest.approx(0.01, rel=1e-2)
    assert found.low_s <= found.step_s <= found.high_s


def test_what_forward_asks_for_is_needed_at_once():
    gathered = shape(at_one(ask(10, phase="forward"), ask(90, 1)))
    assert predict_step(gathered, the_link(2).time, 2, 32).stalled_s == pytest.approx(
        0.02, rel=1e-2
    )


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


def test_each_operation_stands_beside_the_transfer_that_was_measured():
    """Three all-reduces of one size, which last 8, 12 and 15 ms."""
    spans = ((20, 28), (40, 52), (60, 75))
    found = [make_operation(*span, ordinal=i, num_bytes=BUCKET) for i, span in enumerate(spans)]
    measured = make_traced_result(*(make_traced_record(r, make_trace(found)) for r in range(2)))
    first = at_one(*BUCKETS)
    row = predict_row(
        Launches(measured.cell, measured={0: measured}),
        Launches(first.cell, measured={0: first}),
        the_link(2),
        0.1,
    )
    told = row["prediction"].operations
    assert [op.measured_s for op in told] == pytest.approx([0.008, 0.012, 0.015])


@pytest.mark.parametrize("facts", [{}, {"group_elements": [1000, 1000, 500]}])
def test_without_a_list_of_groups_all_parameters_are_one(facts):
    cell = make_cell("fsdp", 1, strategy=Fsdp())
    record = make_traced_record(0, make_trace(BUCKETS), facts=facts, num_parameters=2500)
    of = make_result(cell, ranks=[record])
    groups = step_at_one_rank(Launches(cell, measured={0: of})).groups
    assert (groups.inner, groups.root) == (((1000, 1000), 500) if facts else ((2500,), 0))


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


def test_the_efficiency_that_a_prediction_means():
    (row,) = with_intervals([row_with(2, 0.25, efficiency=0.8)])
    assert row.prediction.efficiency == pytest.approx(0.64)


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


def test_errors_of_opposite_signs_do_not_cancel():
    rows = [row_with(n, 0.0, efficiency=e) for n, e in ((2, 0.9), (4, 0.8))]
    rows.append(row_with(8, 0.0, left_out=0.03, efficiency=0.7))
    rows += [row.model_copy(update={"case": "other"}) for row in rows[:2]]
    rows.append(row_with(8, 0.0, left_out=-0.05, efficiency=0.7, case="other"))
    assert score(rows)["left_out_mean_error"]["cost model"] == pytest.approx(0.04)


def test_a_shape_survives_a_batch_of_its_own():
    found = StepShape((), 0.1, 0.0, 32, {})
    assert found.with_batch(32) == found


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


@pytest.mark.parametrize(
    ("gradients_mib", "tried"), [(0.2, [0.25]), (3, [0.25, 1, 4]), (110, [0.25, 1, 4, 100])]
)
def test_buckets_are_tried_up_to_the_first_that_holds_all_gradients(gradients_mib, tried):
    """And not the size that was measured: 25 MiB, DDP's default."""
    times = {"step_s": 0.1, "low_s": 0.1, "high_s": 0.1, "computing_s": 0.1, "stalled_s": 0.0}
    whole = CommRequest("all_reduce", round(gradients_mib * 2**20), 0.1, 0.1)
    step = PredictedStep(**times, requests=(whole,), times=(), world_sizes=(2,))
    told = what_ifs(make_cell("ddp", 2), lambda *_: step, the_link(2), step)
    assert [one.bucket_mb for one in told if one.bucket_mb is not None] == tried


@pytest.mark.parametrize(("rank_batch", "twice"), [(16, [8]), (8, [8]), (12, []), (4, [])])
def test_a_pipeline_is_asked_for_twice_the_microbatches_where_the_batch_allows(rank_batch, twice):
    cell = make_cell("1f1b", 2, strategy=Pipeline(microbatches=4), rank_batch=rank_batch)
    times = {"step_s": 0.1, "low_s": 0.1, "high_s": 0.1, "computing_s": 0.1, "stalled_s": 0.0}
    step = PredictedStep(**times, requests=(), times=(), world_sizes=(2,))
    told = what_ifs(cell, lambda *_: step, the_link(2), step)
    assert [one.microbatches for one in told if one.microbatches is not None] == twice
    assert not any(one.gradient_bits or one.bucket_mb for one in told)


def test_a_changed_row_has_the_efficiency_that_its_step_means():
    row = row_with(2, 0.0, efficiency=0.8)
    changed = ChangedStep(change="faster", step_s=row.step_s.value * 0.9, gain=0.1)
    told = row.prediction.model_copy(update={"what_if": [changed]})
    (found,) = with_intervals([row.model_copy(update={"prediction": told})])
    assert found.prediction.what_if[0].efficiency == pytest.approx(0.8 / 0.9)
