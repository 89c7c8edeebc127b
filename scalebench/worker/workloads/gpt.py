"""A decoder-only transformer that predicts the next byte of Python source.

Shape legend: B samples, T tokens of a sample, W width, H heads, D = W/H, V vocabulary.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from scalebench.errors import UsageError
from scalebench.spec.presets import GptShape, MoeShape
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.workloads.batches import Batch, ResidentBatches, mean_cross_entropy
from scalebench.worker.workloads.loaded import HeldOut
from scalebench.worker.workloads.text import load_corpus, load_held_out


class CausalAttention(nn.Module):
    """Each token's mean of the values so far; a module, so that a strategy can put in its own."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Map queries, keys and values ``[B, H, T, D]`` to ``[B, H, T, D]``."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    """Causal self-attention with several heads (Vaswani et al. 2017, §3.2)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = CausalAttention()
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[B, T, W]`` to ``[B, T, W]``."""
        # One matrix product makes queries, keys and values of all heads, head by head: a part of
        # its columns is a part of the heads. H is the number of heads that are here.
        qkv = self.qkv(x).unflatten(-1, (-1, 3, self.head_width))  # [B, T, H, 3, D]
        q, k, v = qkv.permute(3, 0, 2, 1, 4).unbind()  # each [B, H, T, D]
        mixed = self.mix(q, k, v)
        joined = mixed.transpose(1, 2).flatten(2)  # [B, T, W]
        return self.output(joined)  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Two linear layers with GELU between, four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.expand = nn.Linear(width, 4 * width)
        self.output = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[B, T, W]`` to ``[B, T, W]``."""
        return self.output(F.gelu(self.expand(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and MLP, each normalised before and added to the residual stream (pre-norm)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = Mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[B, T, W]`` to ``[B, T, W]``."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


def embed(tokens: torch.Tensor, table: nn.Embedding, positions: nn.Embedding) -> torch.Tensor:
    """Map token ids ``[B, T]`` to ``[B, T, W]``: a vector for each token plus one for its place."""
    places = torch.arange(tokens.shape[1], device=tokens.device)
    return table(tokens) + positions(places)  # type: ignore[no-any-return]


class _Embedding(nn.Module):
    """The first layer of a `Gpt`, sharing its parameters."""

    def __init__(self, tokens: nn.Embedding, positions: nn.Embedding) -> None:
        super().__init__()
        self.tokens, self.positions = tokens, positions

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map token ids ``[B, T]`` to ``[B, T, W]``."""
        return embed(tokens, self.tokens, self.positions)


class _Output(nn.Module):
    """The last layer of a `Gpt`, sharing its parameters."""

    def __init__(self, norm: nn.LayerNorm, tokens: nn.Embedding) -> None:
        super().__init__()
        self.norm, self.tokens = norm, tokens

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[B, T, W]`` to logits ``[B, T, V]``."""
        return F.linear(self.norm(x), self.tokens.weight)


class Gpt(nn.Module):
    """The whole model (Radford et al. 2019, §2.3).

    Can be built on the meta device; ``reset_parameters`` then gives it its values.
    """

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.reset_parameters()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map token ids ``[B, T]`` to logits of the next token, ``[B, T, V]``."""
        x = embed(tokens, self.tokens, self.positions)  # [B, T, W]
        for block in self.blocks:
            x = block(x)
        # Tied weights (Press & Wolf 2017): the embedding is the output matrix too. It is used
        # twice rather than stored under two names, so that no wrapper can separate the two.
        return F.linear(self.norm(x), self.tokens.weight)

    def layers(self) -> tuple[nn.Module, ...]:
        """Return the model as a sequence; its first and last layer share the embedding."""
        first, last = _Embedding(self.tokens, self.positions), _Output(self.norm, self.tokens)
        return (first, *self.blocks, last)

    def reset_parameters(self) -> None:
        """Draw every parameter again (Radford et al. 2019, §2.3).

        Matrices N(0, 0.02²), biases 0. The two matrices of a block that write to the residual
        stream are scaled by 1/√(2·layers), since that many of them add up in it.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        std = 0.02 / math.sqrt(2 * len(self.blocks))
        for module in self.modules():
            if isinstance(module, Attention | Mlp):
                nn.init.normal_(module.output.weight, std=std)


def build_gpt(spec: GptShape, shard: Shard) -> Workload:
    """Return the transformer and its text; a sample is ``context`` tokens.

    Batches are (inputs, targets), both ``[B, T]`` int64, targets one byte ahead of the inputs.

    Raises:
        UsageError: The heads do not divide the width; too few samples for a global batch.
        EnvironmentUnfit: The corpus is not on this machine.
    """
    batches, evaluation = text_batches(spec, shard)
    module = Gpt(spec)
    return Workload(
        module=module,
        batches=batches,
        loss=mean_cross_entropy,
        tokens_per_sample=spec.context,
        blocks=tuple(module.blocks),
        layers=module.layers(),
        evaluation=evaluation,
        tensor_plan=spec.tensor_plan,
        context_plan=spec.context_plan,
    )


def text_batches(spec: GptShape | MoeShape, shard: Shard) -> tuple[ResidentBatches, HeldOut]:
    """Return batches of text to train on, and those that are never trained on.

    Raises:
        UsageError: The heads do not divide the width; too few samples for a global batch.
        EnvironmentUnfit: The corpus is not on this machine.
    """
    if spec.width % spec.heads:
        raise UsageError(
            f"{spec.name}: {spec.heads} heads do not divide the width {spec.width}. "
            "Choose a width that is a multiple of the heads."
        )
    # Windows overlap by the one byte that is the last target of one and the first input of the
    # next: every byte is predicted once in an epoch.
    resident = _windows(load_corpus(), spec.context).to(shard.device)

    def gather(index: torch.Tensor) -> Batch:
        return _next_byte(resident.index_select(0, index))

    def held_out(count: int) -> list[torch.Tensor]:
        windows = _windows(load_held_out(), spec.context)
        return list(_next_byte(windows[:: max(1, len(windows) // count)][:count].to(shard.device)))

    return ResidentBatches(spec.name, len(resident), shard, gather), HeldOut(held_out)


def _windows(text: torch.Tensor, context: int) -> torch.Tensor:
    """Cut bytes into windows ``[windows, context + 1]``, uint8: an eighth of the token ids."""
    return text.unfold(0, context + 1, context).contiguous()


def _next_byte(windows: torch.Tensor) -> Batch:
    tokens = windows.long()
    return tokens[:, :-1], tokens[:, 1:]
