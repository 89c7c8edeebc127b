import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.memory import (
    BytesPerParameter,
    Division,
    MeasuredBaseline,
    MemoryPrediction,
    predict_memory,
    predict_state_bytes,
    savings_of,
    zero_state,
)
from scalebench.records.measured.rank import Memory
from scalebench.spec import Accelerate, Ddp, DeepSpeed, Fabric, FairScale, Fsdp, Plain, Zero1
from tests.examples import cases

PSI = 1000


@cases("stage, gigabytes", (0, 120), (1, 31.4), (2, 16.6), (3, 1.9))
def test_zero_paper_figure_1(stage, gigabytes):
    """7.5 billion parameters on 64 ranks, mixed precision, Adam."""
    state = zero_state(stage, 7_500_000_000, 64, BytesPerParameter(2, 2, 12))
    assert state.total / 1e9 == pytest.approx(gigabytes, abs=0.05)


KEPT = {"activations_bytes": 400, "activations_peak_bytes": 5000, "gradients_bytes": 4 * PSI}
MEASURED = MeasuredBaseline(Plain(), 16, Memory(allocated_bytes=0, data_bytes=7, **KEPT))


@cases("optimizer", "Muon", "SGD with momentum and amsgrad", None)
def test_an_unknown_optimizer_has_no_total_but_a_reason(optimizer):
    predicted = predict_memory(Plain(), PSI, 16, optimizer, MEASURED)
    assert predicted.optimizer_bytes is None
    assert predicted.total_bytes is None
    assert str(optimizer) in predicted.reason


def test_without_a_baseline_the_state_is_known_and_the_total_is_not():
    predicted = predict_memory(Ddp(), PSI, 16)
    assert (predicted.parameters_bytes, predicted.optimizer_bytes) == (4 * PSI, 8 * PSI)
    assert predicted.total_bytes is None
    assert predicted.reason == "no plain baseline was measured"


@cases(
    "setting, word",
    *(("autocast", "precision"), ("compile", "compilation"), ("checkpointing", "checkpointing")),
)
def test_a_baseline_that_computes_otherwise_has_other_activations(setting, word):
    predicted = predict_memory(Ddp(**{setting: True}), PSI, 16, "AdamW", MEASURED)
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


GPT_TINY = 437_760
"""Parameters."""
ALONE = MeasuredBaseline(
    Plain(),
    16,
    Memory(
        gradients_bytes=0,
        data_bytes=4_062_435,
        activations_bytes=21_045_768,
        activations_peak_bytes=21_045_768,
    ),
)
"""gpt-tiny on one rank, batch 16, as it was measured."""


@cases(
    "strategy, world_size, measured, within",
    (DeepSpeed(stage=0), 2, 19_838_815, 0.001),
    (DeepSpeed(stage=1), 2, 44_781_819, 0.01),
    (DeepSpeed(stage=2), 2, 44_780_795, 0.01),
    (DeepSpeed(stage=2), 1, 57_139_451, 0.022),  # the bucket is made after the first frees
    (DeepSpeed(stage=3), 2, 45_177_600, 0.001),
    (DeepSpeed(stage=3), 1, 60_077_824, 0.001),
    (FairScale(), 2, 19_936_035, 0.006),
)
def test_memory_is_as_it_was_measured_on_cpu_ranks(strategy, world_size, measured, within):
    """Of DeepSpeed 0.19.8 and FairScale 0.4.13."""
    batch = 16 // world_size
    found = predict_memory(
        strategy, GPT_TINY, batch, baseline=ALONE, world_size=world_size, optimizer="AdamW"
    )
    assert found.total_bytes == pytest.approx(measured, rel=within)


@given(n=st.integers(1, 512), psi=st.integers(1, 10**12))
def test_state_is_divided_as_zero_divides_it(n, psi):
    assert predict_state_bytes(Fsdp(), psi, n) == pytest.approx(16 * psi / n, abs=1)
    assert predict_state_bytes(Zero1(), psi, n) == pytest.approx(8 * psi + 8 * psi / n, abs=1)
    assert predict_state_bytes(Fsdp(shard_size=1), psi, n) == 16 * psi
    assert predict_state_bytes(Ddp(), psi, n) == 16 * psi
    assert predict_state_bytes(Ddp(gradient_as_bucket_view=False), psi, n) == 20 * psi
    assert predict_state_bytes(Fabric(), psi, n) >= 16 * psi
    for fsdp2 in (Fabric(sharding="fsdp2"), Accelerate(plugin="fsdp2")):
        assert predict_state_bytes(fsdp2, psi, n) == predict_state_bytes(Fsdp(), psi, n)
