"""Predicted memory, every part of it, at the borders of each law."""

import pytest

from scalebench.costmodel.memory import (
    MeasuredBaseline,
    MemoryPrediction,
    StateBytes,
    predict_memory,
    predict_state_bytes,
    why_unfit,
    zero_state,
)
from scalebench.records.rank import Memory
from scalebench.spec import Compressed, Ddp, DeepSpeed, Fsdp, Plain

PSI = 1000


def baseline(activations=300, peak=5000, gradients=4 * PSI, data=7, batch=16):
    memory = Memory(
        gradients_bytes=gradients,
        activations_bytes=activations,
        activations_peak_bytes=peak,
        data_bytes=data,
    )
    return MeasuredBaseline(Plain(), batch, memory)


def parts(found):
    """Parameters, gradients, optimizer, communication, activations, data."""
    return (
        *(found.parameters_bytes, found.gradients_bytes, found.optimizer_bytes),
        *(found.communication_bytes, found.activations_bytes, found.data_bytes),
    )


@pytest.mark.parametrize(
    ("optimizer", "tensors"),
    [
        ("SGD", 0),
        ("SGD with momentum", 1),
        ("Adagrad", 1),
        ("RMSprop", 1),
        ("RMSprop with momentum", 2),
        ("Adam", 2),
        ("AdamW", 2),
        ("NAdam", 2),
        ("RAdam", 2),
        ("Adam with amsgrad", 3),
        ("AdamW with amsgrad", 3),
    ],
)
def test_an_optimizer_has_so_many_tensors_of_a_parameters_size(optimizer, tensors):
    found = predict_memory(Plain(), PSI, 16, optimizer, baseline())
    assert found.optimizer_bytes == 4 * PSI * tensors
    divided = predict_memory(Fsdp(), 1200, 16, optimizer, baseline(), world_size=3)
    assert divided.optimizer_bytes == 4 * 1200 * tensors // 3


def test_the_state_is_kept_by_kind():
    assert zero_state(2, 900, 3) == StateBytes(3600, 1200, 2400)
    assert StateBytes(1, 20, 300).total == 321


def test_where_no_number_of_ranks_is_given_there_is_one():
    assert predict_memory(Fsdp(), PSI, 16).parameters_bytes == 4 * PSI
    assert predict_state_bytes(Fsdp(), PSI) == 16 * PSI


@pytest.mark.parametrize(
    ("strategy", "vectors"),
    [
        (Compressed(method="top-k", error_feedback=True), 1),
        (Compressed(method="top-k", error_feedback=False), 0),
        (Compressed(method="dgc"), 2),
        (Ddp(), 0),
        (Ddp(gradient_as_bucket_view=False), 1),
    ],
)
def test_what_compression_did_not_send_is_kept_beside_the_state(strategy, vectors):
    assert predict_memory(strategy, PSI, 16).communication_bytes == 4 * PSI * vectors
    assert predict_state_bytes(strategy, PSI, 4) == 16 * PSI + 4 * PSI * vectors


def test_compressed_gradients_live_in_buckets():
    found = predict_memory(Compressed(method="dgc"), PSI, 8, "Adam", baseline())
    assert parts(found) == (4 * PSI, 4 * PSI, 8 * PSI, 8 * PSI, 2500, 7)
    assert (found.total_bytes, found.reason) == (24 * PSI + 2507, None)


@pytest.mark.parametrize(
    ("strategy", "gradients", "activations", "communication"),
    [
        (Ddp(), 4 * PSI, 5000, 0),
        (Ddp(accumulate=2), 4 * PSI, 2500 + 4 * PSI, 0),
        (Ddp(gradient_as_bucket_view=False), 0, 5000, 4 * PSI),
        (Ddp(accumulate=2, gradient_as_bucket_view=False), 4 * PSI, 2500, 4 * PSI),
    ],
)
def test_views_and_accumulation_each_keep_the_gradients(
    strategy, gradients, activations, communication
):
    found = predict_memory(strategy, PSI, 16, "SGD", baseline())
    assert parts(found) == (4 * PSI, gradients, 0, communication, activations, 7)


def test_a_buffer_for_the_shard_of_the_gradients_has_no_groups_in_flight_beside_it():
    strategy = DeepSpeed(stage=3, bucket_mb=3)
    found = predict_memory(strategy, PSI, 8, "AdamW", baseline(), world_size=4)
    # parameters once more, as the copy that is updated
    assert parts(found) == (2 * PSI, PSI, 2 * PSI, 3 * 2**20, 2500, 7)


@pytest.mark.parametrize("strategy", [DeepSpeed(stage=3, bucket_mb=3), Ddp()])
def test_a_model_that_keeps_no_activations_has_none(strategy):
    found = predict_memory(strategy, PSI, 16, "AdamW", baseline(activations=0, peak=0, data=None))
    assert (found.activations_bytes, found.data_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("measured", "gradients", "activations"),
    [
        # before the first gradient 5000; at the measured peak 3000 + 1500; after the last 4000
        (baseline(activations=1500, peak=5000, gradients=3000), 0, 5000),
        (baseline(activations=2500, peak=5000, gradients=3000), 3000, 2500),
        (baseline(activations=900, peak=3900, gradients=3000), 4 * PSI, 0),
        (baseline(activations=0, peak=0, gradients=5000), 5000, 0),  # more than there should be
    ],
)
def test_the_peak_is_the_largest_of_three_moments(measured, gradients, activations):
    found = predict_memory(Plain(), PSI, 16, "SGD", measured)
    assert (found.gradients_bytes, found.activations_bytes) == (gradients, activations)


def test_without_a_baseline_the_reason_is_said():
    assert why_unfit(Plain(), None) == "no plain baseline was measured"
    assert why_unfit(Plain(), baseline()) is None


@pytest.mark.parametrize(
    "missing", ["activations_peak_bytes", "activations_bytes", "gradients_bytes"]
)
def test_a_baseline_with_one_number_missing_tells_nothing(missing):
    whole = baseline()
    memory = whole.memory.model_copy(update={missing: None})
    reason = why_unfit(Plain(), MeasuredBaseline(Plain(), 16, memory))
    assert reason == "the activations of the plain baseline were not measured"


def test_a_total_needs_every_part_and_its_reasons_are_said_once():
    whole = MemoryPrediction(1, 20, 300, 4000, 50_000, 600_000)
    assert (whole.total_bytes, whole.reason) == (654_321, None)
    zeros = MemoryPrediction(1, 0, 0, 0, 0, 0)
    assert zeros.total_bytes == 1
    why = {"optimizer_bytes": "a", "activations_bytes": "b", "data_bytes": "a"}
    unknown = MemoryPrediction(1, 20, None, 4000, None, None, why)
    assert (unknown.total_bytes, unknown.reason) == (None, "a; b")
