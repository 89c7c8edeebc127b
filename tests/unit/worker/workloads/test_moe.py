"""Router and capacity: no token is lost or counted twice, whatever batch it is in."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.worker.workloads.moe import route


@st.composite
def routings(draw):
    samples, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    experts = draw(st.integers(1, 6))
    top_k = draw(st.integers(1, experts))
    capacity = draw(st.none() | st.integers(1, 8))
    random = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    logits = torch.randn(samples, tokens, experts, generator=random)
    logits[..., 0] += draw(st.sampled_from([0.0, 3.0]))  # an expert that most tokens choose
    return logits, top_k, capacity, route(logits, top_k, capacity)


def experts_of(routing):
    numbers = torch.arange(len(routing.counts))
    return numbers.repeat_interleave(torch.tensor(routing.counts))


@given(routings())
def test_every_choice_is_carried_out_once_or_is_a_dropped_one(found):
    logits, top_k, capacity, routing = found
    samples, tokens, num_experts = logits.shape
    assert sum(routing.chosen) == samples * tokens * top_k
    rows = list(zip(routing.token.tolist(), experts_of(routing).tolist(), strict=True))
    assert len(rows) == len(set(rows)) == sum(routing.counts)
    chosen = logits.flatten(0, 1).topk(top_k).indices
    assert all(expert in chosen[token] for token, expert in rows)
    for sample in range(samples):
        here = [(t, e) for t, e in rows if t // tokens == sample]
        of_sample = chosen[sample * tokens : (sample + 1) * tokens].flatten().tolist()
        for expert in range(num_experts):
            wanted = of_sample.count(expert)
            limit = wanted if capacity is None else min(wanted, capacity)
            assert sum(e == expert for _, e in here) == limit


@given(routings())
def test_weights_are_the_routers_probabilities(found):
    logits, top_k, capacity, routing = found
    probabilities = logits.softmax(-1).flatten(0, 1)
    expected = probabilities[routing.token, experts_of(routing)]
    if top_k > 1:
        expected = expected / probabilities.topk(top_k).values.sum(-1)[routing.token]
    assert torch.allclose(routing.weight, expected)
    if capacity is None:
        sums = torch.zeros(len(probabilities)).index_add(0, routing.token, routing.weight)
        assert top_k == 1 or torch.allclose(sums, torch.ones_like(sums))
