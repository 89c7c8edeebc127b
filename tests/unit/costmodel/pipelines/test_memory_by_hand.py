"""Predicted memory of pipelines whose layers all differ, worked out by hand."""

from dataclasses import replace

import pytest

from scalebench.costmodel.memory import MeasuredBaseline
from scalebench.costmodel.pipelines.layers import Layers, TiedParameter
from scalebench.costmodel.pipelines.memory import _fullest_moment, predict_pipeline_memory
from scalebench.costmodel.pipelines.schedule import Action
from scalebench.records.rank import Memory
from scalebench.spec import Pipeline, Plain

SIX = Layers(
    costs=(1.0,) * 6,
    output_bytes=(1, 20, 3, 400, 5, 600),
    tied=(TiedParameter((0, 5), 7), TiedParameter((1, 2), 9)),
    parameter_bytes=(100, 200, 300, 400, 500, 600),
    kept_bytes=(10, 20, 30, 40, 50, 60),
)


def predicted(num_ranks, layers=SIX, peak=None, data=5, batch=12, optimizer="AdamW", **settings):
    """With what the layers keep, on 3 microbatches of 4 samples, measured to the byte."""
    strategy = Pipeline(**{"schedule": "gpipe", "microbatches": 3, "split": "even", **settings})
    counted = sum(layers.kept_bytes) + 2 * layers.output_bytes[-1]
    memory = Memory(
        gradients_bytes=0,
        activations_bytes=0,
        activations_peak_bytes=counted * batch // 4 if peak is None else peak,
        data_bytes=data,
    )
    baseline = MeasuredBaseline(Plain(), batch, memory)
    return predict_pipeline_memory(strategy, layers, num_ranks, 12, optimizer, baseline)


def test_three_stages_by_hand():
    """The last one: layers 4 and 5, parameters of 1100, 50 + 60 + 1200 kept of a microbatch."""
    found = predicted(3)
    assert found.parameters_bytes == 1100
    assert found.optimizer_bytes == 2 * 1100
    assert (found.gradients_bytes, found.activations_bytes) == (0, 3 * 1310)
    assert found.communication_bytes == 3 * 400  # the output of the stage before
    assert found.data_bytes == 5
    assert found.total_bytes == 1100 + 2200 + 3930 + 1200 + 5


def test_a_stage_in_the_middle_receives_from_both_sides():
    """The second of three: 20 from the first, 400 back from the last, of each microbatch."""
    middle = replace(SIX, parameter_bytes=(1, 1, 90_000, 90_000, 1, 1))
    found = predicted(3, middle)
    assert found.parameters_bytes == 180_000
    assert found.communication_bytes == 3 * (20 + 400)
    # The first backward pass makes the gradients while two more microbatches wait.
    assert (found.gradients_bytes, found.activations_bytes) == (180_000, 2 * 70)


def test_a_rank_with_all_stages_passes_every_message_to_itself():
    """Three chunks of two layers: 20 and 400 forwards, and the same backwards."""
    found = predicted(1, schedule="interleaved-1f1b", chunks=3)
    assert found.communication_bytes == 3 * 2 * (20 + 400)
    assert found.parameters_bytes == 2100 - 7 - 9
    assert predicted(1).communication_bytes == 0


def test_what_two_chunks_of_a_rank_share_is_there_once_and_what_others_hold_is_not_taken_off():
    """Four chunks on two ranks, layers 0 to 1, 2 to 3, 4 and 5: the second has 2, 3 and 5."""
    tied = (TiedParameter((2, 3, 5), 11), TiedParameter((0, 2), 13), TiedParameter((1, 4), 17))
    found = predicted(
        2, replace(SIX, tied=tied), microbatches=2, schedule="interleaved-1f1b", chunks=2
    )
    assert found.parameters_bytes == 300 + 400 + 600 - 2 * 11


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "AdamW with amsgrad"])
def test_the_optimizer_has_its_own_number_of_states(optimizer):
    states = {"SGD": 0, "Adagrad": 1, "AdamW with amsgrad": 3}[optimizer]
    assert predicted(3, optimizer=optimizer).optimizer_bytes == states * 1100


def test_a_baseline_of_another_batch_counts_in_proportion():
    assert predicted(3, batch=4) == predicted(3, batch=28) == predicted(3)
    doubled = predicted(3, peak=2 * 3 * (210 + 1200))
    assert doubled.activations_bytes == 2 * 3 * 1310


def test_a_model_that_was_measured_to_need_nothing_is_predicted_to_need_nothing():
    found = predicted(3, peak=0, data=None)
    assert (found.activations_bytes, found.data_bytes) == (0, 0)
    assert found.gradients_bytes == found.parameters_bytes == 1100


def passes(text):
    return [Action.parse(one) for one in text.split()]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("", (0.0, 0)),
        ("0F0 0F1 0B0 0B1", (2 * 15.0, 0)),
        ("2F0 2B0 0F0 0F1", (2 * 15.0, 300)),  # gradients stay
        ("0F0 2F0 2B0 0B0", (15.0, 300)),
        ("0F0 0I0 0F1 0W0 0W1", (2 * 15.0, 0)),
        ("0F0 0B0 2F0 2B0", (0.0, 310)),
    ],
)
def test_the_fullest_moment_by_hand(order, expected):
    """Stage 0 keeps 10 bytes and has 10 of gradients, stage 2 keeps 3 and has 300; 1.5 a byte."""
    assert _fullest_moment(passes(order), [10, 0, 3], {0: 10, 2: 300}, 1.5) == expected
