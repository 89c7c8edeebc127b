"""Predicted traffic and memory of sharded strategies: the papers' laws, and arithmetic by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.memory import MeasuredBaseline, predict_memory, predict_state_bytes
from scalebench.costmodel.traffic import predict_traffic
from scalebench.records.rank import Memory
from scalebench.spec import Ddp, Fsdp, Fsdp1, Plain, Zero1

PSI = 1200
GROUPS = (500, 500, 200)
"""Two blocks and the root."""


def sent(strategy, world_size, groups=GROUPS, num_parameters=PSI):
    return predict_traffic(strategy, num_parameters, world_size, groups).total_bytes


def test_zero_costs_what_its_authors_say():
    """ZeRO §7: stages 1 and 2 as much as data parallel in their count, stage 3 half as much again.

    Their stage 1 scatters gradients; torch's all-reduces them and broadcasts parameters besides.
    """
    n = 64
    replicas = sent(Ddp(), n)
    assert sent(Fsdp(), n, groups=None) == pytest.approx(1.5 * replicas)
    assert sent(Fsdp(reshard_after_forward=False), n, groups=None) == pytest.approx(replicas)
    assert sent(Zero1(), n) == pytest.approx(1.5 * replicas)


def test_the_root_is_gathered_once():
    assert sent(Fsdp(), 2) == 0.5 * 4 * (2 * 1000 + 200 + PSI)
    assert sent(Fsdp1(), 2) == sent(Fsdp(), 2)


def test_what_is_gathered_has_its_dtype_and_what_is_reduced_its_own():
    strategy = Fsdp(param_dtype="bfloat16")
    assert sent(strategy, 2) == 0.5 * (2 * (2 * 1000 + 200) + 4 * PSI)
    both = Fsdp(param_dtype="bfloat16", reduce_dtype="bfloat16")
    assert sent(both, 2) == sent(Fsdp(), 2) / 2


def test_replicas_reduce_their_shards_besides():
    found = predict_traffic(Fsdp(shard_size=2), PSI, 8, GROUPS)
    assert found.all_gather_bytes == 0.5 * 4 * 2200
    assert found.reduce_scatter_bytes == 0.5 * 4 * PSI
    assert found.all_reduce_bytes == 2 * 3 / 4 * 4 * PSI / 2
    nothing_divided = predict_traffic(Fsdp(shard_size=1), PSI, 8, GROUPS)
    assert nothing_divided == predict_traffic(Ddp(), PSI, 8)


@given(
    strategy=st.sampled_from([Plain(), Ddp(), Fsdp(), Fsdp(shard_size=1), Fsdp1(), Zero1()]),
    n=st.integers(1, 512),
)
def test_one_rank_sends_nothing_and_more_ranks_never_less(strategy, n):
    assert sent(strategy, 1) == 0
    assert sent(strategy, n + 1) >= sent(strategy, n) * (1 - 1e-12)


@given(n=st.integers(1, 512), psi=st.integers(1, 10**12))
def test_state_is_divided_as_zero_divides_it(n, psi):
    assert predict_state_bytes(Fsdp(), psi, n) == pytest.approx(16 * psi / n, abs=1)
    assert predict_state_bytes(Zero1(), psi, n) == pytest.approx(8 * psi + 8 * psi / n, abs=1)
    assert predict_state_bytes(Fsdp(shard_size=1), psi, n) == 16 * psi
    assert predict_state_bytes(Ddp(), psi, n) == 16 * psi


def baseline(activations, gradients):
    memory = Memory(
        allocated_bytes=0,
        gradients_bytes=gradients,
        activations_bytes=activations,
        activations_peak_bytes=activations,
        data_bytes=7,
    )
    return MeasuredBaseline(Plain(), 16, memory)


def predicted(strategy, activations, gradients, world_size=4, groups=GROUPS):
    return predict_memory(
        strategy, PSI, 4, "AdamW", baseline(activations, gradients), world_size, groups
    )


def test_a_peak_of_activations_has_the_groups_of_forward_beside_it():
    found = predicted(Fsdp(), 1_000_000, 0)
    assert (found.parameters_bytes, found.optimizer_bytes) == (PSI, 2 * PSI)
    assert (found.gradients_bytes, found.activations_bytes) == (0, 250_000)
    assert found.communication_bytes == 4 * 700
    assert found.total_bytes == 3 * PSI + 250_000 + 4 * 700 + 7


def test_a_peak_in_backward_has_a_shard_of_the_gradients_and_the_groups_of_backward():
    found = predicted(Fsdp(), 8000, 2000)
    assert (found.gradients_bytes, found.activations_bytes) == (500, 2000)
    assert found.communication_bytes == 4 * 1900
    last = predicted(Fsdp(), 8, 2000)
    assert (last.gradients_bytes, last.activations_bytes) == (PSI, 0)


def test_zero1_keeps_all_gradients_in_buckets_and_a_part_of_the_optimizer():
    found = predicted(Zero1(), 8000, 0)
    assert (found.parameters_bytes, found.gradients_bytes) == (4 * PSI, 4 * PSI)
    assert found.optimizer_bytes == 2 * PSI
    assert found.communication_bytes == 0


def test_what_is_offloaded_is_not_on_the_device():
    found = predicted(Fsdp(cpu_offload=True), 8000, 2000)
    assert (found.parameters_bytes, found.gradients_bytes, found.optimizer_bytes) == (0, 0, 0)
    assert found.total_bytes == 2000 + 4 * 1900 + 7
    assert predict_state_bytes(Fsdp(cpu_offload=True), PSI, 4) == 0
