"""Predicted memory: ZeRO's published totals, and arithmetic by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.memory import (
    BytesPerParameter,
    Division,
    MeasuredBaseline,
    MemoryPrediction,
    predict_memory,
    savings_of,
    zero_state,
)
from scalebench.records.measured.rank import Memory
from scalebench.spec import Ddp, Plain

PSI = 1000


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_paper_figure_1(stage, gigabytes):
    """7.5 billion parameters on 64 ranks, mixed precision, Adam."""
    state = zero_state(stage, 7_500_000_000, 64, BytesPerParameter(2, 2, 12))
    assert state.total / 1e9 == pytest.approx(gigabytes, abs=0.05)


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
