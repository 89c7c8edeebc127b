"""What each dimension of a mesh saves of memory, and the reason where that is not known."""

import pytest

from scalebench.analysis.rows.at_one_rank import NO_SHARD
from scalebench.analysis.rows.fields import Unavailable
from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.prediction import predict_row
from scalebench.analysis.rows.strategies.memory_axes import NO_MESH, memory_by_axis
from scalebench.costmodel.layers.tensor_layers import model_of_preset
from scalebench.costmodel.memory import MeasuredBaseline
from scalebench.records.measured.rank import Memory
from scalebench.spec import Ddp, Mesh, Plain, Tensor
from scalebench.spec.presets import GptShape
from tests.builders.rows.predictions import the_link
from tests.builders.runs import make_cell, make_record, make_result

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


@pytest.mark.parametrize(
    ("strategy", "facts", "reason"),
    [
        (Ddp(), LAYERS, NO_MESH),
        (Mesh(tensor=2), {"optimizer": "AdamW"}, "no launch told which layers are divided"),
        (Mesh(expert=2), LAYERS, "experts"),
        (
            Mesh(pipeline=2, microbatches=4, chunks=2, schedule="interleaved-1f1b"),
            LAYERS,
            "interleaved-1f1b",
        ),
        (Mesh(tensor=2), {**LAYERS, "optimizer": "Adafactor"}, "Adafactor"),
    ],
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


def cell(world_size, strategy=DIVIDED, batch=8, **changes):
    return make_cell(
        case="tensor", strategy=strategy, workload=GPT, world_size=world_size,
        global_batch=batch, rank_batch=batch, **changes,
    )  # fmt: skip


def at_one(**changes):
    result = make_result(cell(1), ranks=[make_record(0, facts=FACTS)], **changes)
    return Launches(cell(1), measured={0: result})


def test_without_a_shard_there_is_no_prediction_and_the_reason():
    found = predict_row(Launches(cell(2)), at_one(), the_link(2), 0.05)
    assert str(found["predicted_step_s"]) == NO_SHARD
