"""A row predicted from its strategy at N=1, by launches and links whose every number is known."""

import pytest

from scalebench.analysis.prediction_scores import interval_of_row, score
from scalebench.analysis.rows.at_one_rank import step_at_one_rank
from scalebench.analysis.rows.fields import Unavailable, with_fields
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.prediction import FIELDS, predict_row, what_ifs
from scalebench.analysis.shapes import NoShape
from scalebench.costmodel.links.times import LinkModel
from scalebench.costmodel.step import PredictedStep
from scalebench.spec import Ddp, Fsdp, Fsdp1, Pipeline
from scalebench.spec.virtual_hosts import VirtualHosts
from tests.builders.predictions import BUCKETS, ask, at_one, shape, the_link
from tests.builders.runs import make_cell
from tests.builders.summaries import make_prediction, make_row


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


def predicted(link, world_size=2, measured_s=0.1, result=None, **changes):
    cell = make_cell("ddp", world_size, **changes)
    first = at_one(*BUCKETS) if result is None else result
    wrapped = Launches(first.cell, measured={0: first})
    return predict_row(Launches(cell), wrapped, link, measured_s)


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


@pytest.mark.parametrize(
    ("strategy", "slowdowns", "batch", "slow"),
    [
        (Ddp(), None, 4, 2),  # by their shares of a processor, 0.8 and 0.4
        (Ddp(), [1.0, 3.0], 4, 3),  # as measured
        (Ddp(balance="measured"), None, 6, 1),  # of 8 samples 6 and 2: 6 · 1 against 2 · 2
        (Ddp(balance="measured"), [1.0, 3.0], 6, 1),
        (Ddp(balance="measured"), [1.0, 1.0], 4, 1),
    ],
)
def test_unequal_ranks_wait_for_the_slowest(strategy, slowdowns, batch, slow):
    hosts = VirtualHosts(link_bit_per_s=(10**9,), cpu_shares=(0.8, 0.4))
    changes = {"global_batch": 8, "rank_batch": 4, "strategy": strategy}
    first = at_one(*BUCKETS)
    cell = make_cell("ddp", 2, virtual_hosts=hosts, **changes)
    wrapped = Launches(first.cell, measured={0: first})
    found = predict_row(Launches(cell), wrapped, the_link(2), 0.1, 1.5, slowdowns)
    bare = step_at_one_rank(wrapped).shape
    shape = bare.slowed(slow, batch)
    assert found["prediction"].computing_s == pytest.approx(shape.computing_s)
    assert found["prediction"].contention == slow


def with_intervals(rows):
    return [with_fields(row, interval_of_row(row, rows, None)) for row in rows]


def row_with(world_size, error, left_out=None, case="ddp", efficiency=0.8):
    row = make_row(case, world_size, efficiency=efficiency)
    step = row.step_s.value * (1 + error)
    told = make_prediction(step, left_out={"prediction_error": left_out})
    return row.model_copy(
        update={"predicted_step_s": step, "prediction_error": error, "prediction": told}
    )


def test_the_interval_of_a_prediction_knows_how_far_the_others_were_off():
    alone = with_intervals([row_with(2, 0.0)])[0].prediction
    beside = with_intervals([row_with(2, 0.0), row_with(4, 0.2)])[0].prediction
    assert (alone.typical_error, alone.low_s) == (None, None)
    better = with_intervals([row_with(2, 0.0), row_with(4, 0.01)])[0].prediction
    assert better.high_s / better.low_s < beside.high_s / beside.low_s
    far_off = with_intervals([row_with(2, 0.3), row_with(4, 0.01)])
    assert score(far_off)["num_within"] == 1  # 4's interval knows of 2's error, not the reverse


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
