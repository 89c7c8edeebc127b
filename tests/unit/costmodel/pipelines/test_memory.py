"""Predicted memory of pipelines, by hand: eight equal layers, a gradient of 100 B each."""

from dataclasses import replace

import pytest

from scalebench.costmodel.memory import MeasuredBaseline
from scalebench.costmodel.pipelines.layers import Layers, TiedParameter
from scalebench.costmodel.pipelines.memory import predict_pipeline_memory
from scalebench.records.rank import Memory
from scalebench.spec import Pipeline, Plain

LAYERS, PARAMETERS, KEPT, OUTPUT = 8, 100, 1000, 10
BATCH, MICROBATCHES = 16, 4
EIGHT = Layers(
    costs=(1.0,) * LAYERS,
    output_bytes=(*(OUTPUT,) * (LAYERS - 1), 0),
    parameter_bytes=(PARAMETERS,) * LAYERS,
    kept_bytes=(KEPT,) * LAYERS,
)
DATA = 7


def alone(batch=BATCH, per_byte=1.0, strategy=None, peak=None):
    """The whole model on one rank: what it took, for each byte that its layers keep."""
    kept = per_byte * LAYERS * KEPT * MICROBATCHES * batch / BATCH
    memory = Memory(
        gradients_bytes=0,
        activations_bytes=round(kept),
        activations_peak_bytes=round(kept) if peak is None else peak,
        data_bytes=DATA,
    )
    return MeasuredBaseline(strategy or Plain(), batch, memory)


def predicted(strategy, num_ranks, layers=EIGHT, baseline=None, optimizer="AdamW"):
    return predict_pipeline_memory(
        strategy, layers, num_ranks, BATCH, optimizer, baseline or alone()
    )


def pipeline(schedule, **settings):
    return Pipeline(schedule=schedule, **{"microbatches": MICROBATCHES, **settings})


def test_gpipe_keeps_all_microbatches_before_the_first_gradient():
    found = predicted(pipeline("gpipe"), 2)
    assert found.activations_bytes == MICROBATCHES * 4 * KEPT
    assert found.gradients_bytes == 0
    assert found.parameters_bytes == 4 * PARAMETERS
    assert found.optimizer_bytes == 2 * 4 * PARAMETERS
    assert found.communication_bytes == MICROBATCHES * OUTPUT
    assert found.data_bytes == DATA


def test_1f1b_keeps_as_many_microbatches_as_ranks_beside_the_gradients():
    four = predicted(pipeline("1f1b"), 4)
    assert four.activations_bytes == 4 * 2 * KEPT  # the first rank's
    assert four.gradients_bytes == 0  # with as many microbatches as ranks, all forwards come first
    more = predicted(pipeline("1f1b", microbatches=8), 4, baseline=alone(per_byte=2))
    assert more.activations_bytes == 4 * 2 * KEPT
    assert more.gradients_bytes == 2 * PARAMETERS


def test_what_layers_of_a_rank_share_is_there_once():
    ends = TiedParameter((0, LAYERS - 1), 60)
    tied = Layers(EIGHT.costs, EIGHT.output_bytes, (ends,), EIGHT.parameter_bytes, EIGHT.kept_bytes)
    assert predicted(pipeline("gpipe"), 1, tied).parameters_bytes == LAYERS * PARAMETERS - 60
    assert predicted(pipeline("gpipe"), 2, tied).parameters_bytes == 4 * PARAMETERS


def test_what_operators_need_besides_comes_from_the_measured_baseline():
    found = predicted(pipeline("gpipe"), 2, baseline=alone(per_byte=1.25))
    assert found.activations_bytes == 1.25 * MICROBATCHES * 4 * KEPT
    half = predicted(pipeline("gpipe"), 2, baseline=alone(batch=BATCH // 2, per_byte=1.25))
    assert half == found


def test_a_pipeline_on_one_rank_is_a_baseline_too():
    """1F1B alone has one microbatch under way: a fourth of what the plain model has."""
    settings = {"checkpointing": True}
    one = alone(strategy=pipeline("1f1b", **settings), peak=2 * LAYERS * KEPT)
    found = predicted(pipeline("1f1b", **settings), 2, baseline=one)
    assert found.activations_bytes == 2 * 2 * 4 * KEPT

    half = alone(strategy=pipeline("1f1b", **settings), batch=BATCH // 2, peak=LAYERS * KEPT)
    assert predicted(pipeline("1f1b", **settings), 2, baseline=half) == found


def test_the_last_stage_keeps_the_output_and_its_loss():
    logits = 500
    ends = replace(EIGHT, output_bytes=(*(OUTPUT,) * (LAYERS - 1), logits))
    whole = LAYERS * KEPT + 2 * logits
    measured = alone(peak=MICROBATCHES * whole)
    found = predicted(pipeline("gpipe"), 2, ends, measured)
    assert found.activations_bytes == MICROBATCHES * (4 * KEPT + 2 * logits)


@pytest.mark.parametrize(
    ("strategy", "changes", "why"),
    [
        (pipeline("zbv", chunks=2), {}, "only torch knows the order of zbv"),
        (pipeline("gpipe"), {"layers": Layers(EIGHT.costs, EIGHT.output_bytes)}, "keep for their"),
        (pipeline("gpipe"), {"optimizer": "Adafactor"}, "Adafactor is not known"),
        (pipeline("gpipe", checkpointing=True), {}, "differs in checkpointing"),
    ],
)
def test_what_cannot_be_predicted_says_why(strategy, changes, why):
    with pytest.raises(ValueError, match=why):
        predicted(strategy, 2, **changes)
