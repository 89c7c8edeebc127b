"""A row predicted from its strategy at N=1, by launches and links whose every number is known."""

import pytest

from scalebench.analysis.rows.at_one_rank import step_at_one_rank
from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.prediction import FIELDS, predict_row
from scalebench.costmodel.links.times import LinkModel
from scalebench.spec import Ddp, Fsdp, Fsdp1
from scalebench.spec.virtual_hosts import VirtualHosts
from tests.builders.rows.predictions import BUCKETS, at_one, the_link
from tests.builders.runs import make_cell
from tests.examples import cases


def predicted(link, world_size=2, measured_s=0.1, result=None, **changes):
    cell = make_cell("ddp", world_size, **changes)
    first = at_one(*BUCKETS) if result is None else result
    wrapped = Launches(first.cell, measured={0: first})
    return predict_row(Launches(cell), wrapped, link, measured_s)


@cases(
    "why, arguments",
    ("no link was calibrated", {"link": "no link was calibrated in this run"}),
    ("no all_reduce was calibrated", {"link": LinkModel([])}),
    ("starts from the strategy at N=1", {"world_size": 1}),
    ("share a device", {"oversubscribed": True}),
    ("no communication at N=1", {"result": at_one()}),
)
def test_a_row_without_a_prediction_says_why(why, arguments):
    row = predicted(**{"link": the_link(2), **arguments})
    assert set(row) == set(FIELDS)
    assert all(isinstance(told, Unavailable) and why in str(told) for told in row.values())


@cases("device", "cpu", "cuda")
@cases("strategy", Ddp(), Fsdp(), Fsdp1(), ids=lambda one: one.kind)
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


@cases(
    "strategy, slowdowns, batch, slow",
    (Ddp(), None, 4, 2),  # by their shares of a processor, 0.8 and 0.4
    (Ddp(), [1.0, 3.0], 4, 3),  # as measured
    (Ddp(balance="measured"), None, 6, 1),  # of 8 samples 6 and 2: 6 · 1 against 2 · 2
    (Ddp(balance="measured"), [1.0, 3.0], 6, 1),
    (Ddp(balance="measured"), [1.0, 1.0], 4, 1),
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
