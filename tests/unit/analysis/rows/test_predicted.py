import pytest

from scalebench.analysis.rows.against_uncompressed import replayed_break_even
from scalebench.analysis.rows.at_one_rank import NO_SHARD, step_at_one_rank
from scalebench.analysis.rows.axes import NO_MEMORY_MESH, memory_by_axis
from scalebench.analysis.rows.launches import Launches, Unavailable
from scalebench.analysis.rows.prediction import FIELDS, predict_row
from scalebench.costmodel.links.fitted import LinkModel
from scalebench.costmodel.links.profile import profile_of
from scalebench.costmodel.memory import MeasuredBaseline
from scalebench.costmodel.tensor_layers import model_of_preset
from scalebench.records.measured.rank import Memory
from scalebench.spec import Ddp, Fsdp, Fsdp1, Mesh, Plain, Tensor
from scalebench.spec.presets import GptShape
from scalebench.spec.world import VirtualHosts
from tests.builders.rows.predictions import BUCKETS, ask, at_one, the_link
from tests.builders.runs import make_cell, make_record, make_result
from tests.examples import cases

ALONE = MeasuredBaseline(
    Plain(),
    32,
    Memory(
        rss_bytes=1,
        parameters_bytes=4000,
        gradients_bytes=0,
        optimizer_bytes=8000,
        activations_bytes=16000,
        activations_peak_bytes=16000,
        data_bytes=100,
    ),
)
"""1,000 parameters and AdamW; 500 bytes of activations for each of 32 samples."""
LAYERS = {"optimizer": "AdamW", "parameters": [[600, True], [400, False]]}


def result(strategy, world_size, facts=LAYERS):
    cell = make_cell("mesh", world_size, strategy=strategy, global_batch=32, rank_batch=32)
    ranks = [make_record(r, num_parameters=1000, facts=facts) for r in range(world_size)]
    return make_result(cell, ranks=ranks)


@cases(
    "strategy, facts, reason",
    (Ddp(), LAYERS, NO_MEMORY_MESH),
    (Mesh(tensor=2), {"optimizer": "AdamW"}, "no launch told which layers are divided"),
    (Mesh(expert=2), LAYERS, "experts"),
    (
        Mesh(pipeline=2, microbatches=4, chunks=2, schedule="interleaved-1f1b"),
        LAYERS,
        "interleaved-1f1b",
    ),
    (Mesh(tensor=2), {**LAYERS, "optimizer": "Adafactor"}, "Adafactor"),
)
def test_what_cannot_be_told_has_a_reason(strategy, facts, reason):
    with pytest.raises(Unavailable, match=reason):
        memory_by_axis(result(strategy, 2, facts), None, ALONE, ())


GPT = GptShape(name="g", layers=2, heads=4, width=64, context=64, batch_size=8)
MODEL = model_of_preset(GPT, 8)
FACTS = {
    "divided_layers": [vars(layer) | {"parameters": [*layer.parameters]} for layer in MODEL.layers],
    "divided_samples": 8,
    "divided_logits": True,
    "parameters": [[*one] for one in MODEL.parameters],
}


DIVIDED = Tensor(loss=True)  # sends nothing but all-reduces, which the link knows


def test_without_a_shard_there_is_no_prediction_and_the_reason():
    told = {"strategy": DIVIDED, "workload": GPT, "global_batch": 8, "rank_batch": 8}
    one, two = (make_cell("tensor", n, **told) for n in (1, 2))
    alone = Launches(one, measured={0: make_result(one, ranks=[make_record(0, facts=FACTS)])})
    found = predict_row(Launches(two), alone, the_link(2), 0.05)
    assert str(found["predicted_step_s"]) == NO_SHARD


@cases(
    "why, arguments",
    ("no link was calibrated", {"link": "no link was calibrated in this run"}),
    ("no all_reduce was calibrated", {"link": LinkModel([])}),
    ("starts from the strategy at N=1", {"world_size": 1}),
    ("share a device", {"oversubscribed": True}),
    ("no communication at N=1", {"first": at_one()}),
)
def test_a_row_without_a_prediction_says_why(why, arguments):
    told = {"link": the_link(2), "first": at_one(*BUCKETS), "world_size": 2, **arguments}
    link, first = told.pop("link"), told.pop("first")
    wrapped = Launches(first.cell, measured={0: first})
    row = predict_row(Launches(make_cell("ddp", **told)), wrapped, link, 0.1)
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


N2 = make_cell("ddp", 2, global_batch=64, rank_batch=32)
"""As large a batch per rank as at N=1, so that computing takes as long."""


def launches(*results):
    return Launches(results[0].cell, measured=dict(enumerate(results)))


EXACT = launches(at_one(ask(90, num_bytes=4_000_000), clean=100))
SMALLER = launches(at_one(ask(90, num_bytes=1_000_000), clean=120))


def test_it_says_what_is_missing():
    with pytest.raises(Unavailable, match="no launch of the strategy at N=1"):
        replayed_break_even(N2, None, EXACT, the_link(2))
    nothing = LinkModel(profile_of([], (), created="", version="", device="", backend="").fits)
    with pytest.raises(Unavailable, match="no all_reduce was calibrated"):
        replayed_break_even(N2, SMALLER, EXACT, nothing)
