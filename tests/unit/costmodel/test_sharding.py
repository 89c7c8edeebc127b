"""Predicted traffic and memory of sharded strategies: the papers' laws, and arithmetic by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.memory import predict_state_bytes
from scalebench.costmodel.traffic import predict_traffic
from scalebench.spec import Accelerate, Ddp, Fabric, Fsdp, Fsdp1, Plain, Zero1

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
    assert predict_state_bytes(Ddp(gradient_as_bucket_view=False), psi, n) == 20 * psi
    assert predict_state_bytes(Fabric(), psi, n) >= 16 * psi
    for fsdp2 in (Fabric(sharding="fsdp2"), Accelerate(plugin="fsdp2")):
        assert predict_state_bytes(fsdp2, psi, n) == predict_state_bytes(Fsdp(), psi, n)
