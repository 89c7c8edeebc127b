"""The transformer of `gpt` with a mixture of experts in place of every MLP.

A router chooses for each token the experts that work on it (Shazeer et al. 2017). Everything that
depends on other tokens is worked out within a sample: an expert's capacity and the balancing loss.
A sample is what GShard calls a group (Lepikhin et al. 2020, §2.2). So a sample has the same
experts, the same dropped tokens and the same loss in whatever batch, and on whatever rank, it is.

Shape legend: B samples, T tokens of a sample, W width, E experts, k experts of a token, V
vocabulary, n tokens that go to experts: those of B·T·k that are not dropped.
"""

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from scalebench.spec.presets import MoeShape
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.workloads.batches import Batch
from scalebench.worker.workloads.gpt import Attention, embed, text_batches

BALANCE = 0.01
"""Weight of the balancing loss of each layer: α of Fedus et al. 2021, §2.2."""


class Routing(NamedTuple):
    """Which tokens of a batch go to which experts, in the order of the experts.

    Attributes:
        token: Index into the batch's tokens, int64, ``[n]``.
        weight: Of the expert's result in the token's, ``[n]``.
        counts: Tokens that each expert has, ``[E]``.
        chosen: Tokens that chose each expert, those included that found it full, ``[E]``.
        balance: The balancing loss, shape ().
    """

    token: torch.Tensor
    weight: torch.Tensor
    counts: list[int]
    chosen: list[int]
    balance: torch.Tensor


def route(logits: torch.Tensor, top_k: int, capacity: int | None) -> Routing:
    """Return which experts work on which tokens.

    A token goes to the k experts with the largest probabilities. Those are the weights for k = 1
    (Fedus et al. 2021, eq. 2), and are scaled to a sum of 1 for more (Lepikhin et al. 2020,
    algorithm 1). Where more tokens of a sample choose an expert than it takes, first choices come
    before second ones, and then earlier tokens before later ones; the rest are dropped, and only
    the residual stream carries them on.

    ``logits``: of the router, ``[B, T, E]``. ``capacity``: tokens of a sample that an expert takes;
    None: any number.
    """
    samples, tokens, experts = logits.shape
    probabilities = logits.float().softmax(-1)
    weight, expert = probabilities.topk(top_k, dim=-1)  # [B, T, k]
    if top_k > 1:
        weight = weight / weight.sum(-1, keepdim=True)
    weight, expert = (of.transpose(1, 2).flatten(1) for of in (weight, expert))  # [B, k·T]
    picked = F.one_hot(expert, experts)  # [B, k·T, E]
    place = picked.cumsum(1).gather(2, expert.unsqueeze(-1)).squeeze(-1)  # from 1
    kept = torch.ones_like(expert, dtype=torch.bool) if capacity is None else place <= capacity
    token = torch.arange(samples * tokens, device=logits.device).view(samples, tokens)
    token = token.repeat(1, top_k)  # [B, k·T]
    order = expert[kept].argsort(stable=True)
    totals = torch.stack((picked[kept].sum(0), picked.sum((0, 1)))).tolist()
    counts, chosen = totals
    return Routing(
        token=token[kept][order],
        weight=weight[kept][order],
        counts=counts,
        chosen=chosen,
        balance=balancing_loss(probabilities, picked.float().mean(1)),
    )


def balancing_loss(probabilities: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return ``E · Σ f·P``, the mean over samples; 1 where all experts are chosen alike.

    Source: Fedus et al. 2021, eq. 4 to 6.

    ``probabilities``: of the router, ``[B, T, E]``; P is their mean over a sample's tokens.
    ``chosen``: f, the part of a sample's choices that fell on each expert, ``[B, E]``.
    """
    experts = probabilities.shape[-1]
    return experts * (chosen * probabilities.mean(1)).sum(-1).mean()


class Experts(nn.Module):
    """The experts of a layer: for each an MLP with GELU, four times as wide inside.

    The experts are the first dimension of every parameter.
    """

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.expand = nn.Parameter(torch.empty(experts, width, 4 * width))
        self.expand_bias = nn.Parameter(torch.empty(experts, 4 * width))
        self.output = nn.Parameter(torch.empty(experts, 4 * width, width))
        self.output_bias = nn.Parameter(torch.empty(experts, width))

    def forward(self, tokens: torch.Tensor, counts: list[int], chosen: list[int]) -> torch.Tensor:
        """Map tokens ``[n, W]`` in the order of their experts to ``[n, W]``.

        Tokens of the first expert come first, and so on. ``counts``: how many each expert here has.
        ``chosen``: how many chose each expert of the layer; not looked at.
        """
        results = []
        for number, part in enumerate(tokens.split(counts)):
            hidden = torch.addmm(self.expand_bias[number], part, self.expand[number])
            results.append(
                torch.addmm(self.output_bias[number], F.gelu(hidden), self.output[number])
            )
        return torch.cat(results)


class Mixture(nn.Module):
    """A router and its experts."""

    def __init__(self, shape: MoeShape) -> None:
        super().__init__()
        self.top_k, self.capacity = shape.top_k, shape.capacity
        self.router = nn.Linear(shape.width, shape.experts, bias=False)
        self.experts = Experts(shape.experts, shape.width)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map ``[B, T, W]`` to ``[B, T, W]``, and the balancing loss.

        How many tokens an expert has is asked of the device: the host waits for it. The router
        computes in float32 (Fedus et al. 2021, §2.4).
        """
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(x.float(), self.router.weight.float())
            routing = route(logits, self.top_k, self.capacity)
        flat = x.flatten(0, 1)  # [B·T, W]
        results = self.experts(flat[routing.token], routing.counts, routing.chosen)
        weighted = results * routing.weight.unsqueeze(-1)
        mixed = torch.zeros_like(flat).index_add(0, routing.token, weighted.to(flat.dtype))
        return mixed.view_as(x), routing.balance


class MoeBlock(nn.Module):
    """Attention and a mixture of experts, each normalised before (pre-norm)."""

    def __init__(self, shape: MoeShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape.width, shape.heads)
        self.mixture_norm = nn.LayerNorm(shape.width)
        self.mixture = Mixture(shape)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map ``[B, T, W]`` to ``[B, T, W]``, and the balancing loss."""
        x = x + self.attention(self.attention_norm(x))
        mixed, balance = self.mixture(self.mixture_norm(x))
        return x + mixed, balance


class MoeGpt(nn.Module):
    """The whole model. Can be built on the meta device, see `scalebench.worker.workloads.gpt`."""

    def __init__(self, shape: MoeShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(MoeBlock(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.reset_parameters()

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map token ids ``[B, T]`` to logits ``[B, T, V]``, and the sum of the balancing losses."""
        x = embed(tokens, self.tokens, self.positions)  # [B, T, W]
        losses = []
        for block in self.blocks:
            x, balance = block(x)
            losses.append(balance)
        return F.linear(self.norm(x), self.tokens.weight), torch.stack(losses).sum()

    def reset_parameters(self) -> None:
        """Draw every parameter again, as that of `gpt` does."""
        std = 0.02 / math.sqrt(2 * len(self.blocks))
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            if isinstance(module, Experts):
                nn.init.normal_(module.expand, std=0.02)
                nn.init.normal_(module.output, std=std)
                nn.init.zeros_(module.expand_bias)
                nn.init.zeros_(module.output_bias)
        for module in self.modules():
            if isinstance(module, Attention):
                nn.init.normal_(module.output.weight, std=std)


def balanced_cross_entropy(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross entropy in nats, and `BALANCE` times the balancing losses; over samples.

    ``module`` is a `MoeGpt`; inputs and targets are int64 ``[B, T]``.
    """
    inputs, targets = batch
    logits, balance = module(inputs)
    loss: torch.Tensor = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
    loss = loss + BALANCE * balance
    return loss


def build_moe(spec: MoeShape, shard: Shard) -> Workload:
    """Return the transformer with experts and its text, which is that of `gpt`.

    Raises:
        UsageError: The heads do not divide the width; too few samples for a global batch.
        EnvironmentUnfit: The corpus is not on this machine.
    """
    batches, evaluation = text_batches(spec, shard)
    module = MoeGpt(spec)
    return Workload(
        module=module,
        batches=batches,
        loss=balanced_cross_entropy,
        tokens_per_sample=spec.context,
        blocks=tuple(module.blocks),
        evaluation=evaluation,
        experts=tuple(block.mixture.experts for block in module.blocks),  # type: ignore[union-attr,misc]
    )
