"""What is tried with one thing changed, and what ranks played at the nearest number of ranks."""

import pytest

from scalebench.analysis.rows.played import longer_beside_work_s, nearest_played
from scalebench.analysis.rows.what_if import what_ifs
from scalebench.costmodel.links.times import NoFit
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import PredictedStep
from scalebench.records.probes import RehearsedStep
from scalebench.spec import Compressed, Ddp, Expert, Fsdp, Pipeline
from tests.builders.runs import make_cell
from tests.unit.analysis.rows.test_prediction import BUCKET, the_link


def played(world_size, exposed_s, case="ddp", suite="ddp"):
    message = {"op": "all_reduce", "size_bytes": BUCKET, "ready_s": 0.05, "needed_s": 0.05}
    return RehearsedStep.model_validate(
        {
            "suite": suite,
            "case": case,
            "world_size": world_size,
            "plan": {"computing_s": 0.06, "operations": [message]},
            "exposed_s": [exposed_s],
        }
    )


def test_the_nearest_number_of_ranks_is_by_its_logarithm():
    links = the_link(2)
    steps = [played(n, 0.1) for n in (2, 8)]
    links.rehearsals = (played(4, 0.1, "other"), played(4, 0.1, suite="z"), *steps)
    sizes = {
        n: nearest_played(RehearsedStep, links, make_cell("ddp", n, rank_batch=9)).world_size
        for n in (2, 3, 5, 6, 64)
    }
    assert sizes == {2: 2, 3: 2, 5: 8, 6: 8, 64: 8}  # 5/2 is 1.32 doublings, 8/5 only 0.68
    transfer_s = links.time("all_reduce", 2, BUCKET).time_s
    assert longer_beside_work_s(links, make_cell("ddp", 2)) == pytest.approx(0.1 - transfer_s)
    links.rehearsals = ()
    assert longer_beside_work_s(links, make_cell("ddp", 2)) is None


def step_of(size_bytes, step_s=0.5, op="all_reduce"):
    fields = {"low_s": 0.1, "high_s": 0.1, "computing_s": 0.1, "stalled_s": 0.0}
    requests = (CommRequest(op, size_bytes, 0.1, 0.1),)
    return PredictedStep(step_s=step_s, **fields, requests=requests, times=(), world_sizes=(2,))


def changes_of(strategy, step=None, rank_batch=12):
    """What is tried, as bucket, bits, microbatches and bandwidth; each step is 400 ms long."""
    asked = []

    def predict(times, what_if):
        asked.append(times("all_reduce", 2, 1 << 22).time_s)
        return step_of(1, 0.4)

    links = the_link(2)
    of = make_cell("case", 2, strategy=strategy, rank_batch=rank_batch)
    found = what_ifs(of, predict, links, step or step_of(1))
    assert all(one.step_s == 0.4 and one.gain == pytest.approx(0.2) for one in found)
    for time_s, one in zip(asked, found, strict=True):
        size = round((1 << 22) / one.times_bandwidth)
        assert time_s == pytest.approx(links.time("all_reduce", 2, size).time_s)
    return [
        (one.bucket_mb, one.gradient_bits, one.microbatches, one.times_bandwidth) for one in found
    ]


FASTER = [(None, None, None, 2.0), (None, None, None, 4.0)]
HALF = (None, 16, None, 1.0)


def test_what_is_tried_of_each_strategy():
    buckets = [(size, None, None, 1.0) for size in (0.25, 1.0, 4.0, 100.0)]
    assert changes_of(Ddp(), step_of(26 << 20)) == [*buckets, HALF, *FASTER]
    assert changes_of(Ddp(), step_of(25 << 20)) == [*buckets[:3], HALF, *FASTER]
    assert changes_of(Ddp(), step_of((1 << 20) + 1)) == [*buckets[:3], HALF, *FASTER]
    assert changes_of(Ddp(), step_of(1 << 20)) == [*buckets[:2], HALF, *FASTER]
    assert changes_of(Ddp(), step_of(200 << 20)) == [*buckets, HALF, *FASTER]
    # What is no all-reduce is in no bucket; 1 MiB is as it was measured.
    assert changes_of(Ddp(bucket_mb=0.25), step_of(9 << 20, op="broadcast")) == [HALF, *FASTER]
    assert changes_of(Fsdp()) == [HALF, *FASTER]
    assert changes_of(Fsdp(reduce_dtype="bfloat16")) == FASTER
    assert changes_of(Compressed(method="sign")) == changes_of(Expert()) == FASTER
    twice = (None, None, 6, 1.0)
    assert changes_of(Pipeline(microbatches=3)) == [twice, *FASTER]
    assert changes_of(Pipeline(microbatches=4)) == FASTER  # 12 samples have no 8 parts


def test_what_no_fit_supports_is_left_out():
    def predict(times, what_if):
        if what_if.gradient_bits is not None:
            raise NoFit("unknown")
        return step_of(1)

    found = what_ifs(make_cell("fsdp", 2, strategy=Fsdp()), predict, the_link(2), step_of(1))
    assert [one.change for one in found] == ["2 times the bandwidth", "4 times the bandwidth"]
    assert [one.gain for one in found] == [0.0, 0.0]
