"""Zigzag order, merging by log-sum-exp, and attention in blocks, without processes."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.worker.strategies.mesh.ring import (
    Merging,
    attend,
    places_in_order,
    places_in_zigzag,
)

sizes = st.tuples(st.integers(1, 8), st.integers(1, 5))
"""Ranks, and tokens of a chunk."""


@given(sizes)
def test_every_token_is_on_one_rank(size):
    ranks, chunk = size
    tokens = 2 * ranks * chunk
    for order in (places_in_order, places_in_zigzag):
        told = [place for rank in range(ranks) for place in order(tokens, ranks, rank)]
        assert sorted(told) == list(range(tokens))


def drawn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(
    seed=st.integers(0, 1000),
    cuts=st.sets(st.integers(1, 11), max_size=4),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
)
def test_parts_merge_into_the_attention_to_all_keys(seed, cuts, scale):
    q = scale * drawn(seed, 2, 3, 5, 4)
    k, v = (scale * drawn(seed + i, 2, 3, 12, 4) for i in (1, 2))
    ends = [0, *sorted(cuts), 12]
    parts = [
        attend(q, k[:, :, a:b], v[:, :, a:b], causal=False) for a, b in itertools.pairwise(ends)
    ]
    merging = Merging(parts[0])
    for part in parts[1:]:
        merging.add(part, slice(None))
    scores = q.double() @ k.double().transpose(-1, -2) / 2
    largest = float((q.abs() @ k.abs().transpose(-1, -2)).max() / 2)
    rounded = 1e-5 + torch.finfo(torch.float32).eps * largest  # of an exponent: of its power
    wanted = scores.softmax(-1) @ v.double()
    found = merging.output.double(), merging.log_sum_exp.double()
    torch.testing.assert_close(found[0], wanted, rtol=0, atol=rounded * float(v.abs().max()))
    torch.testing.assert_close(found[1], scores.logsumexp(-1), rtol=0, atol=rounded)


def test_the_operators_of_a_gpu_are_called_as_torch_declares_them():
    """A new signature in torch has to be noticed where there is no GPU."""
    forward = torch.ops.aten._scaled_dot_product_flash_attention.default._schema
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward.default._schema
    names = [one.name for one in backward.arguments]
    assert names[:6] == ["grad_out", "query", "key", "value", "out", "logsumexp"]
    assert names[6:12] == ["cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal"]
    assert names[12:14] == ["philox_seed", "philox_offset"]
    assert [one.name for one in forward.arguments][:5] == [
        *("query", "key", "value", "dropout_p", "is_causal")
    ]
    told = [one.name for one in forward.returns]
    assert told[:6] == ["output", "logsumexp", "cum_seq_q", "cum_seq_k", "max_q", "max_k"]
    assert len(told) == 9
