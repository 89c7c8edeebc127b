"""A configuration of Hugging Face as the search sees it: shapes alone, without transformers."""

import json
from collections.abc import Mapping
from typing import Any

from scalebench.errors import UsageError
from scalebench.search.model import SearchModel
from scalebench.spec.presets import hf_configuration

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
        return _model(name, config, asked)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"--workload {name}: {path} lacks or misstates {error}.") from error


def _model(name: str, config: Mapping[str, Any], asked: int | None) -> SearchModel:
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
