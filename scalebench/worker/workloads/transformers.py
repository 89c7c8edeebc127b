"""Decoder-only transformers, dense and with experts, that predict Python source byte by byte.

Shape legend: B samples, T tokens of a sample, W width, H heads, D = W/H, V vocabulary.

The same transformer with a mixture of experts in place of every MLP.

A router chooses for each token the experts that work on it (Shazeer et al. 2017). Everything that
depends on other tokens is worked out within a sample: an expert's capacity and the balancing loss.
A sample is what GShard calls a group (Lepikhin et al. 2020, §2.2). So a sample has the same
experts, the same dropped tokens and the same loss in whatever batch, and on whatever rank, it is.

Shape legend: B samples, T tokens of a sample, W width, E experts, k experts of a token, V
vocabulary, n tokens that go to experts: those of B·T·k that are not dropped.
"""

import math
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.spec.presets import GptShape, MoeShape
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.workloads.batches import Batch, ResidentBatches, mean_cross_entropy
from scalebench.worker.workloads.loaded import HeldOut

CORPUS_BYTES = 4_000_000
HELD_OUT_BYTES = 1_000_000
_SKIPPED_FOLDERS = {
    "__pycache__",
    "dist-packages",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "site-packages",
    "test",
}
"""Not the library, or not in every distribution's package of it."""
BALANCE = 0.01
"""Weight of the balancing loss of each layer: α of Fedus et al. 2021, §2.2."""


def load_corpus() -> torch.Tensor:
    """Return the first ``CORPUS_BYTES`` of the library's sources, in the order of their paths.

    The text depends on nothing but the Python version.

    Returns:
        Bytes, shape ``[<= CORPUS_BYTES]``, uint8, on CPU.

    Raises:
        EnvironmentUnfit: The sources are not installed, or cannot be read.
    """
    return _read(sysconfig.get_paths()["stdlib"], CORPUS_BYTES)


def load_held_out() -> torch.Tensor:
    """Return the sources that follow the corpus: text of other modules.

    Returns:
        Bytes, shape ``[<= HELD_OUT_BYTES]``, uint8, on CPU.

    Raises:
        EnvironmentUnfit: The sources are not installed, cannot be read, or end before.
    """
    text = _read(sysconfig.get_paths()["stdlib"], CORPUS_BYTES + HELD_OUT_BYTES)
    held_out = text[CORPUS_BYTES:]
    if not len(held_out):
        raise EnvironmentUnfit(
            f"The sources of Python's standard library have fewer than {CORPUS_BYTES} bytes: "
            "nothing is left to evaluate on. Use another workload (cnn, mlp)."
        )
    return held_out


@cache
def _read(library: str, num_bytes: int) -> torch.Tensor:
    root = Path(library)
    corpus = bytearray()
    try:
        for path in _sources(root):
            corpus += path.read_bytes()
            if len(corpus) >= num_bytes:
                break
    except OSError as error:
        raise _unfit(root, str(error)) from error
    if not corpus:
        raise _unfit(root, "there are no *.py files")
    return torch.frombuffer(corpus[:num_bytes], dtype=torch.uint8)


def _sources(folder: Path) -> Iterator[Path]:
    """Yield the ``*.py`` files below ``folder``, in an order that is the same everywhere."""
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and path.is_file():
            yield path
        elif path.name not in _SKIPPED_FOLDERS and path.is_dir() and not path.is_symlink():
            yield from _sources(path)


def _unfit(root: Path, reason: str) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"The gpt workloads train on the sources of Python's standard library, but in {root} "
        f"{reason}. Use a Python that has its *.py files, or another workload (cnn, mlp)."
    )


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
    """The whole model. Can be built on the meta device."""

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
        """Draw every parameter again, as the dense one does."""
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
    """Return the transformer with experts and its text, which is that of the dense one.

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
