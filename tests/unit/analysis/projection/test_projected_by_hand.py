"""A projected row, field by field: its parts, its interval, its time to a loss, its assumptions."""

import math

import pytest

from scalebench.analysis.convergence.projected import Training, time_to_loss
from scalebench.analysis.prediction_intervals import Compared, half_width, known_of_step
from scalebench.analysis.projection.contention import MeasuredContention, told_contention
from scalebench.analysis.projection.project import (
    _check,
    _links,
    _no_job,
    _noise_scale,
    _own_links,
    _plain_step,
    _predicted,
    _reach,
    _row,
    _with_interval,
    _with_time_to_loss,
    project,
)
from scalebench.analysis.projection.rows import MeasuredShard, Projection
from scalebench.analysis.projection.starts import Start, cases_at_one, cell_at, start_of
from scalebench.analysis.rows.launches import Launches, grouped
from scalebench.analysis.rows.prediction import PipelineAtOneRank, StepAtOneRank
from scalebench.costmodel.links.times import LinkTime, NoFit
from scalebench.costmodel.links.topology import TOPOLOGIES
from scalebench.costmodel.pipelines.step import PipelineShape
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import PredictedStep, StepShape
from scalebench.costmodel.what_if import AS_MEASURED, WhatIf
from scalebench.errors import UsageError
from scalebench.spec import Context, Ddp, Expert, Fsdp, Mesh, Pipeline, Plain, Tensor
from scalebench.spec.presets import PRESETS
from scalebench.stats import Estimate, Variance
from tests.builders.runs import make_cell, make_result, make_run
from tests.builders.summaries import make_row
from tests.unit.analysis.projection.test_project import the_profile
from tests.unit.analysis.rows.test_predicted_by_hand import scripted
from tests.unit.analysis.rows.test_prediction import BUCKETS, at_one

CELL = make_cell("ddp", 5, global_batch=35, rank_batch=7)


def step(step_s=0.5, sizes=(2, 4), **changes):
    fields = {
        "step_s": step_s,
        "low_s": 0.9 * step_s,
        "high_s": 1.1 * step_s,
        "computing_s": 0.3,
        "stalled_s": 0.2,
        "requests": (),
        "times": (),
        "world_sizes": sizes,
        "outside": ("beyond",),
        "bubble_s": 0.06,
    }
    return PredictedStep(**fields | changes)


def test_the_parts_of_a_step_sum_to_it():
    """The plain model takes 600 ms for 21 samples: of 35 samples on 5 ranks 200 ms each."""
    row = _row(CELL, step(), (0.6, 21))
    assert (row.suite, row.case, row.world_size) == ("ddp", "ddp", 5)
    assert (row.global_batch, row.rank_batch, row.step_s) == (35, 7, 0.5)
    assert row.throughput == pytest.approx(70)
    assert row.ideal_s == pytest.approx(0.2) and row.efficiency == pytest.approx(0.4)
    assert row.compute_inflation_s == pytest.approx(0.3 - 0.06 - 0.2)
    assert (row.bubble_s, row.exposed_transfer_s) == (0.06, 0.2)
    parts = row.ideal_s + row.compute_inflation_s + row.bubble_s + row.exposed_transfer_s
    assert parts == pytest.approx(0.5)
    assert (row.calibrated_world_sizes, row.outside) == ((2, 4), ("beyond",))
    bare = _row(CELL, step(), None)
    assert (bare.throughput, bare.ideal_s, bare.efficiency) == (pytest.approx(70), None, None)
    refused = _row(CELL, "no link", (0.6, 21))
    assert (refused.step_s, refused.reason, refused.rank_batch) == (None, "no link", 7)
    none = _no_job(CELL, 9, "why")
    assert (none.world_size, none.global_batch, none.rank_batch, none.reason) == (9, 35, 0, "why")
    assert (none.suite, none.case) == ("ddp", "ddp")


COMPARED = [Compared(0.1, Variance(0.001, 3)), Compared(-0.2, Variance(0.002, 4))]
BARE = StepAtOneRank(StepShape((), 0.1, 0.0, 32), 0.02, 3)


@pytest.mark.parametrize(
    ("sizes", "world_size", "doublings"),
    [((2, 4), 5, 1.0), ((2, 4), 8, 1.0), ((2, 4), 32, 3.0), ((2,), 12, math.log2(6)), ((), 8, 3.0)],
)
def test_the_interval_counts_the_doublings_beyond_the_largest_calibrated_size(
    sizes, world_size, doublings
):
    of = step(sizes=sizes)
    known = known_of_step(of, 0.02, 3)
    found = _reach(of, BARE, COMPARED, None, world_size)
    assert found == pytest.approx(half_width(known, COMPARED, doublings))


def test_why_there_is_no_interval():
    assert "nominal" in _reach(step(), BARE, COMPARED, TOPOLOGIES["dgx-h100"], 8)
    why = _reach(step(), BARE, [], None, 8)
    assert why == "no prediction of this run could be compared with a measurement"
    row = _with_interval(_row(CELL, step(), None), 0.5, why)
    assert (row.interval_reason, row.low_s, row.high_s) == (why, None, None)
    row = _with_interval(row, 0.5, math.log(2))
    assert (row.low_s, row.high_s) == pytest.approx((0.25, 1.0))


def test_the_time_to_a_loss_is_that_of_speed_and_noise():
    row = _row(CELL, step(), (0.6, 21)).model_copy(update={"low_s": 0.4, "high_s": 0.8})
    scale = Estimate(value=100, low=80, high=150, n=3)
    found = _with_time_to_loss(row, (0.6, 21), scale)
    expected = time_to_loss(Training(35, 70.0, 35 / 0.8, 35 / 0.4), Training(21, 35.0), scale)
    assert found.noise_scale == scale
    assert found.statistical_efficiency == pytest.approx(expected.statistical_efficiency)
    assert found.speedup_to_loss == pytest.approx(expected.speedup)
    assert found.speedup_to_loss_low == pytest.approx(expected.low)
    assert found.speedup_to_loss_high == pytest.approx(expected.high)
    assert found.speedup_to_loss_low < found.speedup_to_loss < found.speedup_to_loss_high
    one_sided = _with_time_to_loss(row.model_copy(update={"low_s": None}), (0.6, 21), scale)
    assert one_sided.speedup_to_loss_high is None and one_sided.speedup_to_loss_low is not None
    for missing in (
        _with_time_to_loss(row, None, scale),
        _with_time_to_loss(row, (0.6, 21), None),
        _with_time_to_loss(row.model_copy(update={"throughput": None}), (0.6, 21), scale),
    ):
        assert missing.speedup_to_loss is None
    assert _noise_scale(50.0, [], "x") == Estimate(value=50.0, low=50.0, high=50.0, n=1)
    assert _noise_scale(None, [], "x") is None


def test_the_plain_step_is_that_of_the_rows_own_baseline():
    plain = make_row("plain", 1, strategy="plain")
    named = make_row("ddp", 1, baseline=("ddp", "plain", 1))
    found = _plain_step([named, plain], ("ddp", "ddp", 1))
    assert found == (plain.step_s.value, plain.rank_batch)
    unmeasured = plain.model_copy(update={"step_s": None})
    assert _plain_step([named, unmeasured], ("ddp", "ddp", 1)) is None
    assert _plain_step([named], ("ddp", "ddp", 1)) is None
    assert _plain_step([plain], ("ddp", "ddp", 1)) is None


def link(op, world_size, size_bytes):
    time_s = size_bytes * world_size / 1e3
    return LinkTime(time_s, time_s, time_s, (world_size,))


def no_link(*_):
    raise NoFit("nothing was calibrated")


SENDING = StepAtOneRank(StepShape((CommRequest("all_reduce", 10, 0.3, 0.3),), 0.3, 0.0, 7), 0.0, 1)


def test_a_step_is_predicted_with_its_shard_or_says_why_not():
    found = _predicted(CELL, SENDING, link, AS_MEASURED, None, None)
    assert found.step_s == pytest.approx(0.3 + 0.05)
    shard = MeasuredShard(suite="ddp", case="ddp", world_size=5, step_s=0.6)
    assert _predicted(CELL, SENDING, link, AS_MEASURED, shard, None).step_s == pytest.approx(0.65)
    half = _predicted(CELL, SENDING, link, WhatIf(gradient_bits=16), None, None)
    assert half.step_s == pytest.approx(0.325)
    assert _predicted(CELL, SENDING, no_link, AS_MEASURED, None, None) == "nothing was calibrated"


@pytest.mark.parametrize(
    ("accumulate", "why"),
    [(7, None), (1, None), (3, "7 samples cannot be split into 3 microbatches")],
)
def test_samples_have_to_be_a_multiple_of_the_microbatches(accumulate, why):
    cell = CELL.model_copy(update={"strategy": Ddp(accumulate=accumulate)})
    found = _predicted(cell, SENDING, link, AS_MEASURED, None, None)
    assert (found if isinstance(found, str) else None) == why


def test_a_pipelines_microbatches_may_be_changed():
    of = Pipeline(schedule="gpipe", microbatches=6)
    cell = make_cell("gpipe", 2, strategy=of, global_batch=24, rank_batch=24)
    bare = PipelineAtOneRank(PipelineShape.__new__(PipelineShape), 0.0, 1)
    assert _predicted(cell, bare, link, WhatIf(microbatches=5), None, None) == (
        "24 samples cannot be split into 5 microbatches"
    )
    odd = cell.model_copy(update={"rank_batch": 23})
    assert _predicted(odd, bare, link, AS_MEASURED, None, None) == (
        "23 samples cannot be split into 6 microbatches"
    )
    # Of any other strategy the change does not split the batch.
    found = _predicted(CELL, SENDING, link, WhatIf(microbatches=5), None, None)
    assert not isinstance(found, str)


def test_links_are_those_given_or_the_runs_own_made_faster():
    run = make_run([], link=None)
    run.link = the_profile(2)
    size = 1 << 22
    slow = _links(run, None, None, AS_MEASURED)("all_reduce", 2, size).time_s
    fast = _links(run, None, None, WhatIf(4.0))("all_reduce", 2, size).time_s
    assert fast == pytest.approx(slow / 4, rel=1e-3)
    other = _links(run, None, the_profile(3), AS_MEASURED)("all_reduce", 3, size)
    assert other.world_sizes == (3,)
    top = TOPOLOGIES["dgx-h100"]
    for what_if in (AS_MEASURED, WhatIf(2.0), WhatIf(hierarchical=True)):
        nominal = _links(run, top, None, what_if)("all_reduce", 16, size)
        scaled = top.faster(what_if.times_bandwidth)
        assert nominal == scaled.time("all_reduce", 16, size, what_if.hierarchical)
    assert _own_links(run).world_sizes == (2,)
    run.link = None
    assert _own_links(run) is None


def test_two_ranks_are_the_fewest():
    _check([2, 3], None, AS_MEASURED)
    with pytest.raises(UsageError, match="--gpus 1: a projection is for 2 ranks or more"):
        _check([5, 1, 0], None, AS_MEASURED)
    _check([2], TOPOLOGIES["dgx-h100"], WhatIf(hierarchical=True))


def test_what_a_projection_takes_for_granted():
    run = make_run([make_result(make_cell("plain", 1), 0.1), at_one(*BUCKETS)])
    run.link = the_profile(2)
    found = project(run, [8, 4], what_if=WhatIf(2.0, 16))
    assert found.run_id == run.info.run_id
    assert [row.world_size for row in found.rows] == [8, 4]
    assert found.assumptions == (
        "links as this run calibrated them",
        "2 times the bandwidth",
        "gradients of 16 bits, conversion not counted",
        "no waiting, no stalls, no contention",
    )
    elsewhere = the_profile(2).model_copy(update={"created": "2024-05-01T12:00:00+00:00"})
    given = project(run, [4], profile=elsewhere).assumptions[0]
    assert given == "links as calibrated 2024-05-01 (gloo)"
    nominal = project(run, [4], TOPOLOGIES["dgx-h100"]).assumptions[0]
    assert nominal == "nominal links of the topology"
    empty = Projection.without_steps("run", "why")
    assert (empty.assumptions, empty.num_scored, empty.rows) == (("why",), 0, ())


def test_contention_is_told_with_its_sizes_and_range():
    one, two, three = (
        MeasuredContention(factor, n) for factor, n in ((1.05, 4), (0.9, 2), (1.2004, 4))
    )
    assert told_contention([]) == ("no waiting, no stalls, no contention",)
    nothing = "no waiting, no stalls"
    at_four = "contention as measured at N = 4 (+5.0 %)"
    assert told_contention([one]) == (nothing, at_four)
    assert told_contention([one, MeasuredContention(1.0501, 4)]) == (nothing, at_four)
    assert told_contention([one, three, two])[1] == (
        "contention as measured at N = 2 and 4 (-10.0 to +20.0 %)"
    )


def test_cases_start_at_one_rank_or_where_a_script_first_sends():
    results = [
        make_result(make_cell("plain", 1)), at_one(*BUCKETS), make_result(make_cell("ddp", 2)),
        make_result(make_cell("zero1", 3)), scripted(1, ()), scripted(3), scripted(5),
    ]  # fmt: skip
    run = make_run(results)
    table = grouped(run)
    cases = cases_at_one(run)
    assert [one.cell.case for one in cases] == ["ddp", "script"]
    ddp, script = (start_of(one, table) for one in cases)
    assert (ddp.cell, ddp.smallest, ddp.assumption) == (results[1].cell, 1, "")
    assert ddp.cell_at(2).world_size == 2
    assert (script.smallest, script.base) == (3, table["ddp", "script", 3])
    assert script.assumption == "started from N=3, not from N=1"
    # Strong scaling: of 3 ranks' 12 samples one rank would have all.
    assert (script.cell.world_size, script.cell.rank_batch, script.cell.global_batch) == (1, 12, 12)
    why = "the projection starts from N=3: N=1 does not show what is sent"
    assert script.cell_at(3) == script.cell_at(2) == why
    assert script.cell_at(4).rank_batch == 3
    weak = scripted(3).cell.model_copy(update={"scaling": "weak"})
    base = Launches(weak, measured=table["ddp", "script", 3].measured)
    weakly = start_of(cases[1], {**table, ("ddp", "script", 3): base}).cell
    assert (weakly.rank_batch, weakly.global_batch) == (4, 4)
    bare = Start(CELL, None)
    assert (bare.smallest, bare.assumption) == (1, "")


def one_of(strategy, batch=12, **changes):
    return make_cell("case", 1, strategy=strategy, global_batch=batch, rank_batch=batch, **changes)


def test_the_cell_at_another_number_of_ranks_is_that_of_the_rank_with_most_samples():
    found = cell_at(one_of(Ddp()), 5)
    assert (found.world_size, found.global_batch, found.rank_batch) == (5, 12, 3)
    assert cell_at(one_of(Ddp()), 12).rank_batch == 1
    assert cell_at(one_of(Ddp()), 13).startswith(
        "strong scaling: a global batch of 12 has no sample for each of 13 ranks"
    )
    weak = cell_at(one_of(Ddp(), scaling="weak"), 13)
    assert (weak.global_batch, weak.rank_batch) == (156, 12)
    grouped_in_two = cell_at(one_of(Tensor(size=2)), 4)
    assert grouped_in_two.rank_batch == 6


@pytest.mark.parametrize(
    ("strategy", "world_size", "why"),
    [
        (Fsdp(shard_size=2), 3, "3 ranks"),
        (Tensor(size=2), 3, "cannot be divided into groups"),
        (Tensor(), 3, "3"),  # of four heads
        (Tensor(), 4, None),
        (Context(), 3, "3"),
        (Context(), 4, None),
        (Mesh(tensor=3), 3, "3"),
        (Mesh(tensor=2), 4, None),
        (Mesh(context=2, tensor=2), 4, None),
        (Mesh(pipeline=5), 5, "layers"),
        (Expert(), 3, "gpt-tiny has no experts"),
        (Mesh(expert=2), 2, "gpt-tiny has no experts"),
        (Ddp(), 3, None),
    ],
)
def test_jobs_that_cannot_be_say_why(strategy, world_size, why):
    found = cell_at(one_of(strategy), world_size)
    if why is None:
        assert found.world_size == world_size
    else:
        assert isinstance(found, str) and why in found


def test_of_a_workload_without_a_plan_its_shard_tells():
    for strategy in (Tensor(), Context(), Mesh(tensor=2)):
        found = cell_at(one_of(strategy, workload=PRESETS["cnn-8"]), 2)
        assert found.world_size == 2
    assert cell_at(one_of(Plain()), 2).rank_batch == 6
