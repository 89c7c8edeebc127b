"""Router and capacity: no token is lost or counted twice, whatever batch it is in."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.spec.presets import PRESETS, MoeShape
from scalebench.spec.workload import Shard
from scalebench.worker.workloads import build_workload
from scalebench.worker.workloads.moe import Mixture, Routing, route

SHAPE = MoeShape(
    name="m", layers=2, heads=2, width=8, context=6, experts=4, capacity_factor=0.75, batch_size=4
)


@st.composite
def routings(draw: st.DrawFn) -> tuple[torch.Tensor, int, int | None, Routing]:
    """Router's logits, top_k and capacity, and what came of them."""
    samples, tokens = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    experts = draw(st.integers(1, 6))
    top_k = draw(st.integers(1, experts))
    capacity = draw(st.none() | st.integers(1, 8))
    random = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    logits = torch.randn(samples, tokens, experts, generator=random)
    logits[..., 0] += draw(st.sampled_from([0.0, 3.0]))  # an expert that most tokens choose
    return logits, top_k, capacity, route(logits, top_k, capacity)


def experts_of(routing: Routing) -> torch.Tensor:
    """Return the expert of each row."""
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


def test_a_mixture_is_the_weighted_sum_of_its_experts():
    torch.manual_seed(0)
    mixture = Mixture(SHAPE.model_copy(update={"capacity_factor": None}))
    for parameter in mixture.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 6, 8)
    mixed, _ = mixture(x)
    experts = mixture.experts
    for token, result in zip(x.flatten(0, 1), mixed.flatten(0, 1), strict=True):
        weights, chosen = mixture.router(token).softmax(-1).topk(2)
        expected = torch.zeros(8)
        for weight, e in zip(weights / weights.sum(), chosen, strict=True):
            hidden = torch.nn.functional.gelu(token @ experts.expand[e] + experts.expand_bias[e])
            expected += weight * (hidden @ experts.output[e] + experts.output_bias[e])
        assert torch.allclose(result, expected, atol=1e-5)


def test_every_parameter_has_a_gradient_and_the_preset_knows_their_number():
    shard = Shard(0, 1, 4, 0, torch.device("cpu"))
    workload = build_workload(SHAPE, shard)
    workload.loss(workload.module, next(iter(workload.batches))).backward()
    assert all(p.grad is not None for p in workload.module.parameters())
    with torch.device("meta"):
        for shape in (SHAPE, PRESETS["gpt-moe-8x124m"]):
            module = type(workload.module)(shape)
            assert sum(p.numel() for p in module.parameters()) == shape.num_parameters
    (first, second) = workload.experts
    assert all(len(parameter) == SHAPE.experts for parameter in first.parameters())
    assert first is not second
