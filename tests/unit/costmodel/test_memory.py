"""Predicted memory: ZeRO's published totals, and arithmetic by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.memory import (
    FP32_ADAM,
    MIXED_PRECISION_ADAM,
    Division,
    MeasuredBaseline,
    MemoryPrediction,
    divided_part,
    in_flight_part,
    predict_memory,
    predict_state_bytes,
    savings_of,
    zero_state,
)
from scalebench.records.rank import Memory
from scalebench.spec import Ddp, Plain

PSI = 1000


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_paper_figure_1(stage, gigabytes):
    """7.5 billion parameters on 64 ranks, mixed precision, Adam."""
    state = zero_state(stage, 7_500_000_000, 64, MIXED_PRECISION_ADAM)
    assert state.total / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_float32_by_the_law_for_each_stage():
    n = 8
    totals = [zero_state(stage, PSI, n, FP32_ADAM).total for stage in range(4)]
    assert totals == [16 * PSI, 8 * PSI + 8 * PSI / n, 4 * PSI + 12 * PSI / n, 16 * PSI / n]


def measured(activations=400, activations_peak=5000, gradients=4 * PSI, batch=16, **strategy):
    """A plain baseline that peaked when backward was through, unless told otherwise."""
    memory = Memory(
        allocated_bytes=0,
        gradients_bytes=gradients,
        activations_bytes=activations,
        activations_peak_bytes=activations_peak,
        data_bytes=7,
    )
    return MeasuredBaseline(Plain(**strategy), batch, memory)


def test_plain_at_the_baselines_own_batch_is_what_was_measured_at_whichever_moment():
    early = measured(activations=5000, activations_peak=5000, gradients=0)
    late = measured(activations=400, activations_peak=4200, gradients=4 * PSI)
    for baseline, in_flight in ((early, 5000), (late, 4 * PSI + 400)):
        predicted = predict_memory(Plain(), PSI, 16, "AdamW", baseline)
        assert predicted.total_bytes == 4 * PSI + 8 * PSI + in_flight + 7


def test_activations_follow_the_batch_and_gradients_do_not():
    baseline = measured(activations=400, activations_peak=4200)
    doubled = predict_memory(Plain(), PSI, 32, "AdamW", baseline)
    assert (doubled.gradients_bytes, doubled.activations_bytes) == (0, 8400)  # the peak moved
    halved = predict_memory(Plain(), PSI, 8, "AdamW", baseline)
    assert (halved.gradients_bytes, halved.activations_bytes) == (4 * PSI, 200)


@pytest.mark.parametrize(
    ("optimizer", "per_parameter"),
    [("SGD", 0), ("SGD with momentum", 4), ("AdamW", 8), ("Adam with amsgrad", 12)],
)
def test_state_is_that_of_the_actual_optimizer(optimizer, per_parameter):
    predicted = predict_memory(Plain(), PSI, 16, optimizer, measured())
    assert predicted.optimizer_bytes == per_parameter * PSI


@pytest.mark.parametrize("optimizer", ["Muon", "SGD with momentum and amsgrad", None])
def test_an_unknown_optimizer_has_no_total_but_a_reason(optimizer):
    predicted = predict_memory(Plain(), PSI, 16, optimizer, measured())
    assert predicted.optimizer_bytes is None
    assert predicted.total_bytes is None
    assert str(optimizer) in predicted.reason


def test_without_a_baseline_the_state_is_known_and_the_total_is_not():
    predicted = predict_memory(Ddp(), PSI, 16)
    assert (predicted.parameters_bytes, predicted.optimizer_bytes) == (4 * PSI, 8 * PSI)
    assert predicted.total_bytes is None
    assert predicted.reason == "no plain baseline was measured"


@pytest.mark.parametrize(
    ("setting", "word"),
    [("autocast", "precision"), ("compile", "compilation"), ("checkpointing", "checkpointing")],
)
def test_a_baseline_that_computes_otherwise_has_other_activations(setting, word):
    predicted = predict_memory(Ddp(**{setting: True}), PSI, 16, "AdamW", measured())
    assert predicted.total_bytes is None
    assert word in predicted.reason


def test_the_forecasts_state_is_that_of_the_full_prediction():
    for strategy in (Plain(), Ddp(gradient_as_bucket_view=False)):
        parts = predict_memory(strategy, PSI, 16)
        known = parts.parameters_bytes + parts.optimizer_bytes + parts.communication_bytes
        assert predict_state_bytes(strategy, PSI) == known + 4 * PSI


ONE = MemoryPrediction(400, 200, 600, 0, 1000, 50)


def test_each_dimension_acts_on_what_those_before_it_leave():
    shard, tensor = savings_of(
        ONE, [Division("shard", 2, 0.5, 0.5), Division("tensor", 4, 0.25, 1.0)]
    )
    assert (shard.state_bytes, shard.activations_bytes) == (600, 500)
    assert (tensor.state_bytes, tensor.activations_bytes) == (450, 0)


@given(
    st.lists(st.tuples(st.integers(1, 8), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5)
)
def test_nothing_is_taken_off_twice(parts):
    divisions = [Division(f"axis {i}", *part) for i, part in enumerate(parts)]
    savings = savings_of(ONE, divisions)
    assert all(one.state_bytes >= 0 and one.activations_bytes >= 0 for one in savings)
    assert sum(one.state_bytes for one in savings) <= 1200 + 1e-6
    assert sum(one.activations_bytes for one in savings) <= 1000 + 1e-6


@pytest.mark.parametrize(
    ("schedule", "stage", "part"),
    [("gpipe", 0, 1.0), ("1f1b", 0, 0.5), ("1f1b", 3, 0.125), ("interleaved-1f1b", 0, None)],
)
def test_microbatches_that_a_stage_of_four_keeps_of_eight(schedule, stage, part):
    assert in_flight_part(schedule, stage, 4, 8) == part


def test_only_what_is_divided_gets_smaller():
    assert divided_part([(80, True), (20, False)], 4) == pytest.approx(0.4)
    assert divided_part([], 4) == 1.0
