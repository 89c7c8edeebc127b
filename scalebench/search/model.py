"""A model as the search sees it: a transformer whose work, parameters and memory are counted.

Of any other workload only what one rank has measured is known: ranks can divide its samples and its
state, not its matrices, tokens or layers. A configuration of Hugging Face is read for its shapes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from scalebench.errors import UsageError
from scalebench.search.prediction.links import Floats, Ints, by_number
from scalebench.spec.presets import GptShape, MoeShape, hf_configuration

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SearchModel:
    """A decoder-only transformer.

    Attributes:
        layers: Blocks.
        heads: Of each attention.
        width: Of the residual stream.
        context: Tokens of a sample.
        vocabulary: Rows of the embedding.
        kv_heads: Heads of keys and values; fewer than ``heads`` with grouped queries.
        inner: Width inside the MLP.
        gated: The MLP has a third matrix (SwiGLU).
        tied: The output matrix is the embedding.
        experts: MLPs of each block; 1: no mixture.
        top_k: Experts that work on a token.
        head_width: Of a head; of queries and values that differ, the mean. 0: ``width / heads``.
        attention_parameters: Of a block; 0: counted from the heads.
        shared: Experts that every token has besides.
        dense_layers: Blocks in front that have one MLP instead, of width ``dense_inner``. Blocks
            are taken as equal: each has the mean.
    """

    name: str
    layers: int
    heads: int
    width: int
    context: int
    vocabulary: int
    kv_heads: int
    inner: int
    gated: bool = False
    tied: bool = True
    experts: int = 1
    top_k: int = 1
    head_width: int = 0
    attention_parameters: int = 0
    shared: int = 0
    dense_layers: int = 0
    dense_inner: int = 0

    @classmethod
    def of_preset(cls, shape: GptShape | MoeShape) -> "SearchModel":
        """Return a built-in workload."""
        same = ("name", "layers", "heads", "width", "context", "vocabulary")
        routed = ("experts", "top_k") if isinstance(shape, MoeShape) else ()
        given: dict[str, Any] = {name: getattr(shape, name) for name in (*same, *routed)}
        return cls(**given, kv_heads=shape.heads, inner=4 * shape.width)

    @property
    def as_gpt(self) -> GptShape:
        """The preset whose layers send the same between the ranks of a group."""
        same = ("name", "layers", "heads", "width", "context")
        given: dict[str, Any] = {name: getattr(self, name) for name in same}
        return GptShape(**given, vocabulary=max(self.vocabulary, 256), batch_size=1)

    @property
    def as_mixture(self) -> MoeShape:
        """The same with its experts."""
        given = self.as_gpt.model_dump(exclude={"kind"})
        return MoeShape(**given, experts=self.experts, top_k=self.top_k, capacity_factor=None)

    @property
    def _expert(self) -> int:
        return (3 if self.gated else 2) * self.width * self.inner

    @property
    def heads_width(self) -> int:
        """Of all heads together; that of the model where heads are not wider or narrower."""
        return self.heads * self.head_width or self.width

    @property
    def attention_size(self) -> int:
        """Parameters of a block's attention."""
        keys = 2 * self.width * self.heads_width * self.kv_heads // self.heads
        return self.attention_parameters or 2 * self.width * self.heads_width + keys

    @property
    def _routed(self) -> float:
        """The part of the blocks that have a mixture."""
        return 1 - self.dense_layers / self.layers if self.experts > 1 else 0.0

    @property
    def always_inner(self) -> float:
        """Width of the MLPs that every token has, the mean of the blocks."""
        dense = (1 - self._routed) * (self.dense_inner or self.inner)
        return dense + self._routed * self.shared * self.inner

    @property
    def chosen_experts(self) -> float:
        """Experts that a router chooses for a token, the mean of the blocks; 0: no mixture."""
        return self._routed * self.top_k

    @property
    def active_inner(self) -> float:
        """Width of all MLPs that work on a token, the mean of the blocks."""
        return self.always_inner + self.chosen_experts * self.inner

    @property
    def block_parameters(self) -> int:
        """Parameters of a block that every expert rank has: attention, router; no small vectors.

        The MLPs that every token has as well.
        """
        router = self._routed * self.width * self.experts
        always = (3 if self.gated else 2) * self.width * self.always_inner
        return self.attention_size + round(router + always)

    @property
    def expert_parameters(self) -> int:
        """Parameters of all experts of a block that a router chooses; 0 without a mixture."""
        return round(self._routed * self.experts * self._expert)

    @property
    def table_parameters(self) -> int:
        """Parameters of the embedding."""
        return self.vocabulary * self.width

    @property
    def num_parameters(self) -> int:
        """All of them, biases and norms not counted."""
        tables = self.table_parameters * (1 if self.tied else 2)
        return tables + self.layers * (self.block_parameters + self.expert_parameters)

    @property
    def matrix_flops(self) -> float:
        """FLOPs of a block's matrix products in forward, one sample, attention's mixing not in it.

        Two for every parameter that works on a token (Narayanan et al. 2021, appendix).
        """
        active = self.block_parameters + self.chosen_experts * self._expert
        return 2.0 * active * self.context

    @property
    def mixing_flops(self) -> float:
        """FLOPs of scores and their sums in forward, one sample: ``4·s²·h``, the mask not used."""
        return 4.0 * self.context**2 * self.heads_width

    @property
    def head_flops(self) -> float:
        """FLOPs of the logits in forward, one sample."""
        return 2.0 * self.context * self.width * self.vocabulary

    @property
    def block_flops(self) -> float:
        """FLOPs of a block in forward, one sample."""
        return self.matrix_flops + self.mixing_flops

    @cached_property
    def flops_per_sample(self) -> float:
        """FLOPs of forward and backward, one sample, nothing recomputed."""
        return 3.0 * (self.layers * self.block_flops + self.head_flops)

    def fullest_stage(self, stages: int) -> tuple[int, float]:
        """Return layers and forward FLOPs (one sample) of the stage with most work.

        Equal layers in contiguous stages, the logits on the last one; the best such split, which
        is what `pipelines.stage_split.balanced_split` finds for equal layers and a last one.

        Raises:
            ValueError: There are fewer layers than stages.
        """
        if stages > self.layers:
            raise ValueError(f"{stages} stages need as many layers, and there are {self.layers}")
        if stages == 1:
            return self.layers, self.layers * self.block_flops + self.head_flops
        best: tuple[float, int] | None = None
        for last in range(self.layers - stages + 2):
            others = -(-(self.layers - last) // (stages - 1))
            work = max(others * self.block_flops, last * self.block_flops + self.head_flops)
            best = min(best or (work, max(others, last)), (work, max(others, last)))
        assert best is not None
        return best[1], best[0]

    def stages(self, numbers: Ints) -> Floats:
        """Return `fullest_stage` for each number of stages, one row each."""
        return by_number(numbers, self.fullest_stage)

    def alike(self, num_rows: int) -> Iterator[tuple["SearchModel", Mask]]:
        """Yield the model, and which of so many rows have it: all."""
        yield self, np.ones(num_rows, dtype=bool)


class Models:
    """Models of several rows as columns: each attribute of `SearchModel` is an array here."""

    def __init__(self, models: Sequence[SearchModel]) -> None:
        self.each = tuple(models)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        column = np.array([getattr(model, name) for model in self.each])
        self.__dict__[name] = column
        return column

    def stages(self, numbers: Ints) -> Floats:
        """Return `fullest_stage` of each row's model, one row each."""
        pairs = zip(self.each, numbers, strict=True)
        return np.array([model.fullest_stage(int(number)) for model, number in pairs], dtype=float)

    def alike(self, num_rows: int) -> Iterator[tuple[SearchModel, Mask]]:
        """Yield each distinct model, and which rows have it."""
        for model in dict.fromkeys(self.each):
            yield model, np.array([one == model for one in self.each])


AXES_OF_WHOLE = ("shard", "data")
"""Axes of a mesh that need to know nothing of the model's inside."""


@dataclass(frozen=True)
class WholeModel(SearchModel):
    """A model as numbers of the whole; what a transformer would have counts as one.

    Attributes:
        layers: Groups of parameters that are gathered together when they are sharded.
        parameters: Of the model.
        sample_flops: FLOPs of forward and backward, one sample; 1: not counted, and the measured
            time of a sample stands for it.
    """

    parameters: int = 0
    sample_flops: float = 1.0

    @classmethod
    def of(
        cls, name: str, parameters: int = 0, groups: int = 1, flops: float | None = None
    ) -> "WholeModel":
        """Return a model by its numbers; without parameters it is one that is not measured yet."""
        ones: dict[str, Any] = dict.fromkeys(
            ("heads", "width", "context", "vocabulary", "kv_heads"), 1
        )
        return cls(
            name=name, layers=groups, **ones, inner=4, parameters=parameters,
            sample_flops=flops or 1.0,
        )  # fmt: skip

    @property
    def is_counted(self) -> bool:
        """Whether its FLOPs are known."""
        return self.sample_flops != 1.0

    @property
    def block_parameters(self) -> int:
        """Of a group; all groups are taken as equal."""
        return self.parameters // self.layers

    @property
    def table_parameters(self) -> int:
        """0: there is no embedding apart from the groups."""
        return 0

    @property
    def num_parameters(self) -> int:
        """All of them."""
        return self.parameters

    @property
    def matrix_flops(self) -> float:
        """A third of a group's FLOPs: forward."""
        return self.sample_flops / 3 / self.layers

    @property
    def mixing_flops(self) -> float:
        """0: in the others."""
        return 0.0

    @property
    def head_flops(self) -> float:
        """0: in the others."""
        return 0.0


USUAL_CONTEXT = 2048

LATENT = ("deepseek_v2", "deepseek_v3")
"""Their attention keeps one latent vector a token (DeepSeek-AI 2024, §2.1)."""

GATED = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", *LATENT)
PLAIN = ("gpt2", "gpt_neox")
"""``model_type`` → whether its MLP has a third matrix; others are refused."""


def model_of_configuration(name: str) -> SearchModel:
    """Return the model of ``hf:config.json``.

    Raises:
        UsageError: It cannot be read, or is of a kind that is not counted here.
    """
    path, asked = hf_configuration(name)
    try:
        config: Any = json.loads(path.read_text("utf-8"))
        kind = config.get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"--workload {name}: {path} is no configuration: {error}.") from error
    if kind is None:
        raise UsageError(
            f"--workload {name}: {path} has no model_type, so its shapes are not known. Give the "
            f"config.json of a transformers model: {', '.join((*GATED, *PLAIN))}."
        )
    if kind not in (*GATED, *PLAIN):
        raise UsageError(
            f"--workload {name}: the shapes of a {kind!r} are not known here. Known: "
            f"{', '.join((*GATED, *PLAIN))}."
        )
    try:
        return _of_shapes(name, config, asked)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"--workload {name}: {path} lacks or misstates {error}.") from error


def _of_shapes(name: str, config: Mapping[str, Any], asked: int | None) -> SearchModel:
    old = config["model_type"] == "gpt2"
    width = int(config["n_embd" if old else "hidden_size"])
    heads = int(config["n_head" if old else "num_attention_heads"])
    longest = int(config.get("n_positions" if old else "max_position_embeddings", USUAL_CONTEXT))
    inner = config.get("n_inner") or 4 * width if old else config["intermediate_size"]
    return SearchModel(
        name=name,
        layers=int(config["n_layer" if old else "num_hidden_layers"]),
        heads=heads,
        width=width,
        context=asked or min(longest, USUAL_CONTEXT),
        vocabulary=int(config["vocab_size"]),
        kv_heads=int(config.get("num_key_value_heads") or heads),
        gated=config["model_type"] in GATED,
        tied=bool(config.get("tie_word_embeddings", old or config["model_type"][:5] == "gemma")),
        **(
            _latent(config, width, heads)
            if config["model_type"] in LATENT
            else {
                "inner": int(inner),
                "head_width": int(config.get("head_dim") or 0),
                "experts": int(config.get("num_local_experts", 1)),
                "top_k": int(config.get("num_experts_per_tok", 1)),
            }
        ),
    )


def _latent(config: Mapping[str, Any], width: int, heads: int) -> dict[str, int]:
    """Return attention through latent vectors, and experts of which some are shared."""
    turned, values = int(config["qk_rope_head_dim"]), int(config["v_head_dim"])
    keys, latent = int(config["qk_nope_head_dim"]), int(config["kv_lora_rank"])
    narrow = config.get("q_lora_rank")
    queries = heads * (keys + turned)
    asked = narrow * (width + queries) if narrow else width * queries
    kept = width * (latent + turned) + latent * heads * (keys + values)
    return {
        "head_width": (keys + turned + values) // 2,
        "attention_parameters": asked + kept + heads * values * width,
        "inner": int(config["moe_intermediate_size"]),
        "experts": int(config["n_routed_experts"]),
        "shared": int(config.get("n_shared_experts") or 0),
        "top_k": int(config["num_experts_per_tok"]),
        "dense_layers": int(config.get("first_k_dense_replace", 0)),
        "dense_inner": int(config["intermediate_size"]),
    }
