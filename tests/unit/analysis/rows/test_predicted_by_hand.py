"""What is predicted of a row, field by field, over links whose every number is known."""

import math

import pytest

from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.prediction import (
    FIELDS,
    IS_BASE,
    SENDS_TOO_LITTLE,
    StepAtOneRank,
    predict_row,
    step_at_one_rank,
)
from scalebench.analysis.rows.prediction_base import prediction_base
from scalebench.analysis.step_shape import NoShape
from scalebench.costmodel.links.times import LinkTime
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import PredictedStep, StepShape
from scalebench.costmodel.what_if import WhatIf
from scalebench.spec import Compressed, Ddp, Fsdp, Plain, Script
from scalebench.spec.script import ScriptTarget
from tests.builders.runs import make_cell, make_failed, make_result
from tests.builders.traced import make_operation, make_trace, make_traced_record, make_traced_result
from tests.unit.analysis.rows.test_prediction import BUCKET, BUCKETS, ask, at_one, the_link
from tests.unit.analysis.rows.test_what_if import played

REDUCED = CommRequest("all_reduce", 600, 0.2, 0.3)
SHAPE = StepShape((REDUCED,), 0.3, 0.1, 30)
"""400 ms on 30 samples, of which 100 do not depend on them."""


def link(op, world_size, size_bytes):
    """A millisecond for each byte and rank; half to twice as long, told by 2 and N ranks."""
    time_s = size_bytes * world_size / 1e3
    return LinkTime(time_s, time_s / 2, 2 * time_s, (2, world_size), dof=5.0)


def cell(world_size=3, rank_batch=30, **changes):
    batch = {"rank_batch": rank_batch, "global_batch": rank_batch * world_size}
    return make_cell("ddp", world_size, **batch | changes)


def test_contention_and_what_was_played_lengthen_a_step():
    """The link takes 1.8 s from ms 200 on; then the optimizer's 100 ms."""
    bare = StepAtOneRank(SHAPE, 0.0, 1)
    found = bare.predict(cell(), link)
    assert found.step_s == pytest.approx(0.2 + 1.8 + 0.1)
    assert (found.low_s, found.high_s) == pytest.approx((0.2 + 0.9 + 0.1, 0.2 + 3.6 + 0.1))
    assert found.world_sizes == (2, 3)
    crowded = StepAtOneRank(SHAPE, 0.0, 1, contention=1.5, longer_s=0.25).predict(cell(), link)
    assert crowded.step_s == pytest.approx(0.3 + 1.8 + 0.15 + 0.25)
    assert crowded.computing_s == pytest.approx(0.6)


def test_a_shard_that_was_measured_stands_for_the_batch():
    """A shard of 250 ms has 150 that its batch takes: everything in it is half as late."""
    bare = StepAtOneRank(SHAPE, 0.0, 1)
    assert bare.shape_of(cell(rank_batch=15)).computing_s == pytest.approx(0.25)  # in proportion
    assert bare.shape_of(cell(rank_batch=10)).computing_s == pytest.approx(0.2)
    measured = StepAtOneRank(SHAPE, 0.0, 1, shard_s=0.25)
    for found in (
        measured.shape_of(cell(rank_batch=10)),
        bare.shape_of(cell(rank_batch=10), shard_s=0.25),
        measured.shape_of(cell(rank_batch=10), shard_s=0.25),
    ):
        assert found.computing_s == pytest.approx(0.25) and found.num_samples == 10
        assert found.requests[0].ready_s == pytest.approx(0.1)
    given = measured.shape_of(cell(rank_batch=10), shard_s=0.4)
    assert given.computing_s == pytest.approx(0.4)
    assert measured.predict(cell(rank_batch=10), link, shard_s=0.4).computing_s == 0.4
    half = measured.shape_of(cell(), WhatIf(gradient_bits=16))
    assert half.requests[0].size_bytes == 300


def shard(step_s, repeat=0):
    return make_result(cell(1, purpose="shard", repeat=repeat), step_s)


def test_shards_tell_their_median_and_scatter():
    bare = StepAtOneRank(SHAPE, 0.5, 9)
    assert bare.with_shards([]) is bare
    found = bare.with_shards([shard(0.1), shard(0.4), shard(0.2)])
    assert (found.shard_s, found.num_launches) == (pytest.approx(0.2), 3)
    logs = [math.log(x / 0.2) for x in (0.1, 0.4, 0.2)]
    variance = sum((x - sum(logs) / 3) ** 2 for x in logs) / 2
    assert found.spread == pytest.approx((variance / 3) ** 0.5)
    one = bare.with_shards([shard(0.3)])
    assert (one.shard_s, one.spread, one.num_launches) == (pytest.approx(0.3), 0.0, 1)


def test_a_compressed_step_decodes_the_messages_of_all():
    gathered = StepShape((CommRequest("all_gather", 600, 0.3, 0.3),), 0.3, 0.1, 30)
    bare = StepAtOneRank(gathered, 0.0, 1, decode_s=0.02)
    found = bare.at(cell(5), 5)
    assert found.fixed_s == pytest.approx(0.1 + 4 * 0.02) and found.requests[0].size_bytes == 3000
    assert StepAtOneRank(SHAPE, 0.0, 1).at(cell(5), 5) is SHAPE
    free = StepAtOneRank(gathered, 0.0, 1, decode_s=0.0).at(cell(5), 5)
    assert free.requests[0].size_bytes == 3000


def test_the_textbook_hides_nothing_and_has_no_latency():
    """On 15 of 30 samples half of 400 ms; 2 · 2/3 of 1 MB at 10 ns a byte of the link at N=2."""
    bare = StepAtOneRank(SHAPE, 0.0, 1)
    asked = (CommRequest("all_reduce", BUCKET, 0, 0), CommRequest("all_reduce", 2 * BUCKET, 0, 0))
    fields = dict.fromkeys(("step_s", "low_s", "high_s", "computing_s", "stalled_s"), 9.0)
    told = PredictedStep(**fields, requests=asked, times=(), world_sizes=())
    links = the_link(2)
    terms = [links.bandwidth_term("all_reduce", 3, size) for size in (BUCKET, 2 * BUCKET)]
    assert bare.textbook_s(cell(3, 15), told, links) == pytest.approx(0.2 + sum(terms))


def launches(*results, of=None):
    return Launches(of or results[0].cell, measured=dict(enumerate(results)))


def predicted(measured_s=0.125, contention=None, base=None, row=None, links=None):
    links = the_link(2) if links is None else links
    base = launches(at_one(*BUCKETS), at_one(*BUCKETS, clean=121)) if base is None else base
    return predict_row(row or Launches(cell(3, 32)), base, links, measured_s, contention)


def test_every_field_of_a_prediction():
    found = predicted(contention=1.25)
    told = found.values["prediction"]
    step_s = found.values["predicted_step_s"]
    assert found.values["prediction_error"] == pytest.approx(step_s / 0.125 - 1)
    assert told.base_world_size == 1
    # Steps of 100 and 121 ms: the mean, and a quarter longer beside others.
    assert told.computing_s == pytest.approx(1.25 * 0.1105)
    assert (told.contention, told.longer_s, told.bubble_s) == (1.25, None, 0.0)
    assert told.exposed_comm_s == pytest.approx(step_s - told.computing_s)
    assert told.link_low_s <= step_s <= told.link_high_s
    assert told.link_world_sizes == [2] and told.outside == []
    assert told.launch_spread == pytest.approx(math.log(1.21) / 2) and told.launch_dof == 1
    assert [(op.op, op.size_bytes, op.measured_s) for op in told.operations] == [
        ("all_reduce", BUCKET, None)
    ] * 3
    time = the_link(2).time("all_reduce", 3, BUCKET)
    assert told.link_dof == (time.dof if math.isfinite(time.dof) else None)
    for op in told.operations:
        assert (op.predicted_s, op.low_s, op.high_s) == (time.time_s, time.low_s, time.high_s)
    ready = [op.ready_s for op in told.operations]
    assert ready == pytest.approx([1.25 * 1.105 * s for s in (0.06, 0.08, 0.09)], rel=0.01)
    assert len(told.what_if) == 6  # three sizes of buckets, 16 bits, twice and four times the link


def test_a_step_that_was_played_keeps_its_contention():
    links = the_link(2)
    links.rehearsals = (played(2, 0.5),)
    told = predicted(contention=1.25, links=links).values["prediction"]
    plain = predicted(contention=1.25).values
    longer_s = 0.5 - links.time("all_reduce", 2, BUCKET).time_s
    assert (told.contention, told.longer_s) == (1.25, pytest.approx(longer_s, rel=1e-3))
    found = predicted(contention=1.25, links=links).values["predicted_step_s"]
    assert found == pytest.approx(plain["predicted_step_s"] + longer_s, rel=1e-3)


def test_without_a_measured_step_or_fewer_ranks_the_reason_is_told():
    found = predicted(measured_s=None)
    assert found.reasons == {"prediction_error": "there is no measured step to compare it with"}
    left_out = found.values["prediction"].left_out
    assert (left_out.prediction_error, left_out.reason) == (None, None)
    alone = predicted(row=Launches(cell(2, 32))).values["prediction"].left_out
    assert alone.reason == "no link was calibrated at fewer ranks"
    assert (alone.predicted_step_s, alone.prediction_error) == (None, None)


def test_a_row_is_also_predicted_without_links_of_as_many_ranks():
    found = predicted(links=the_link(2, 3))
    whole, left_out = found.values["prediction"], found.values["prediction"].left_out
    assert (whole.link_world_sizes, left_out.link_world_sizes) == ([3], [2])
    assert left_out.prediction_error == pytest.approx(left_out.predicted_step_s / 0.125 - 1)
    assert left_out.link_low_s <= left_out.predicted_step_s <= left_out.link_high_s
    term = the_link(2).bandwidth_term("all_reduce", 3, BUCKET)
    assert left_out.textbook_step_s == pytest.approx(0.1105 + 3 * term, rel=1e-6)


def test_shards_of_the_row_are_its_computation():
    row = Launches(cell(3, 32), shards=(shard(0.2), shard(0.3)))
    told = predicted(row=row).values["prediction"]
    assert told.computing_s == pytest.approx((0.2 * 0.3) ** 0.5)
    assert told.launch_dof == 1 and told.launch_spread == pytest.approx(math.log(1.5) / 2)


@pytest.mark.parametrize(
    ("row", "changes", "why"),
    [
        (cell(3, strategy=Plain()), {}, "the plain model does not communicate"),
        (cell(1), {}, "the prediction starts from the strategy at N=1"),
        (cell(3, oversubscribed=True), {}, "the model does not cover ranks that share a device"),
        (cell(3), {"links": "no link"}, "no link"),
        (cell(3), {"base": Launches(cell(1))}, "no launch of the strategy at N=1 succeeded"),
        (
            cell(3),
            {"base": launches(make_failed(cell(1)))},
            "no launch of the strategy at N=1 succeeded",
        ),
    ],
)
def test_why_a_row_is_not_predicted(row, changes, why):
    found = predicted(row=Launches(row), **changes)
    assert found.reasons == dict.fromkeys(FIELDS, why) and found.values == {}


TARGET = ScriptTarget(name="train", program="train.py")


def scripted(world_size, kinds=("all_reduce",), traced=True, num_bytes=1000):
    """A script's launch whose ranks send these kinds."""
    operations = [
        make_operation(40 + 10 * i, 45 + 10 * i, kind=kind, ordinal=i, group_size=world_size,
                       num_bytes=num_bytes)
        for i, kind in enumerate(kinds)
    ]  # fmt: skip
    records = [
        make_traced_record(rank, make_trace(operations, [(0, 35)])) for rank in range(world_size)
    ]
    batch = {"rank_batch": 4, "global_batch": 4 * world_size}
    settings = {"strategy": Script(), "workload": TARGET, **batch}
    result = make_traced_result(*records, case="script", **settings)
    return result if traced else make_result(result.cell)


def table_of(*results):
    return {result.cell.row_key: launches(result) for result in results}


def test_a_script_is_predicted_from_the_smallest_size_that_shows_what_it_sends():
    one, two, three, five = (
        scripted(1, ()), scripted(2, traced=False), scripted(3), scripted(5)
    )  # fmt: skip
    table = table_of(five, three, two, one)
    row = table["ddp", "script", 5]
    assert prediction_base(row, table) is table["ddp", "script", 3]
    # One rank sends as much: then N=1 it is; what carries nothing does not count.
    same = table_of(scripted(1), five, three)
    assert prediction_base(row, same) is same["ddp", "script", 1]
    empty = table_of(scripted(1, num_bytes=0), five, three)
    assert prediction_base(row, empty) is empty["ddp", "script", 3]
    more = table_of(scripted(1), scripted(3, ("all_reduce", "all_gather")), five)
    assert prediction_base(row, more) is more["ddp", "script", 3]
    without = table_of(three, five)
    assert prediction_base(row, without) is without["ddp", "script", 3]
    assert prediction_base(row, {}) is None
    only = table_of(one, two)
    assert prediction_base(row, only) is only["ddp", "script", 1]
    other = {("ddp", "other", 3): table["ddp", "script", 3]}
    assert prediction_base(row, other) is None


def test_anything_else_is_predicted_from_one_rank():
    table = {("ddp", "ddp", n): Launches(cell(n)) for n in (3, 2, 1)}
    assert prediction_base(table["ddp", "ddp", 3], table) is table["ddp", "ddp", 1]
    assert prediction_base(table["ddp", "ddp", 3], {}) is None


def test_a_script_starts_from_its_base_and_larger_sizes_alone():
    base = launches(scripted(3))
    bare = step_at_one_rank(base)
    assert (bare.world_size, bare.num_launches, bare.spread) == (3, 1, 0.0)

    def reason(world_size, start=base):
        row = Launches(scripted(world_size).cell)
        return predicted(row=row, base=start).reasons.get("predicted_step_s")

    assert reason(3) == IS_BASE
    assert reason(2) == reason(1) == SENDS_TOO_LITTLE.format(n=3)
    assert reason(1, launches(scripted(1))) == "the prediction starts from the strategy at N=1"
    found = predicted(row=Launches(scripted(5).cell), base=base).values["prediction"]
    assert found.base_world_size == 3


def test_which_strategies_may_be_silent_and_which_say_nothing():
    def at(strategy, device="cpu", *asks):
        result = at_one(*asks)
        changes = {"strategy": strategy, "device": device}
        changed = result.cell.model_copy(update=changes)
        return step_at_one_rank(launches(result.model_copy(update={"cell": changed})))

    assert at(Fsdp()).groups is not None and at(Fsdp()).decode_s is None
    assert at(Ddp(), "cuda", *BUCKETS).groups is None
    noop = at(Compressed(method="noop"))
    assert noop.shape.requests == () and noop.decode_s == 0.0
    for strategy in (Ddp(), Compressed(method="top-k")):
        with pytest.raises(NoShape):
            at(strategy)
    with pytest.raises(Unavailable, match="gathers run ahead"):
        at(Fsdp(), "cuda")
    with pytest.raises(Unavailable, match="does not mark when it encodes"):
        at(Compressed(method="powersgd"), "cpu", ask(60))


def test_an_operation_is_the_median_of_its_own_transfers():
    """Of four launches one cannot part wait and transfer; of the third operation none is asked."""

    def launch(first, second, other, clock_error_s=0.0):
        found = [
            make_operation(20, 20 + first, ordinal=0, num_bytes=BUCKET),
            make_operation(40, 40 + second, ordinal=1, num_bytes=BUCKET),
            make_operation(60, 60 + other, ordinal=2, num_bytes=5),
        ]
        trace = make_trace(found).model_copy(update={"clock_error_s": clock_error_s})
        return make_traced_result(*(make_traced_record(r, trace) for r in range(2)))

    row = launches(launch(4, 6, 9), launch(5, 8, 9), launch(9, 7, 9), launch(19, 19, 19, 1.0))
    found = predicted(row=row, links=the_link(2)).values["prediction"].operations
    assert [op.measured_s for op in found[:2]] == pytest.approx([0.005, 0.007])
    assert found[2].measured_s is None
