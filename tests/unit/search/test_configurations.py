"""Shapes of public configurations, compared with the parameters that their model cards publish."""

import json

import pytest

from scalebench.errors import UsageError
from scalebench.search.model import model_of_configuration
from scalebench.spec.presets import NAMED, resolve_workload
from tests.examples import cases

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
MISTRAL = LLAMA | {"model_type": "mistral", "vocab_size": 32000}
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
    "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "n_routed_experts": 256,
    "moe_intermediate_size": 2048, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "vocab_size": 129280, "max_position_embeddings": 163840,
}  # fmt: skip
PUBLISHED = {
    "Llama-3-8B": (LLAMA, 8.03e9),
    "Mistral-7B-v0.1": (MISTRAL, 7.24e9),
    "Mixtral-8x7B-v0.1": (
        MISTRAL | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
        46.7e9,
    ),
    "Qwen2.5-7B": (
        LLAMA
        | {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28}
        | {"num_attention_heads": 28, "num_key_value_heads": 4}
        | {"intermediate_size": 18944, "vocab_size": 152064},
        7.61e9,
    ),
    "gemma-2b": (
        LLAMA
        | {"model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18, "head_dim": 256}
        | {"num_attention_heads": 8, "num_key_value_heads": 1}
        | {"intermediate_size": 16384, "vocab_size": 256000, "tie_word_embeddings": True},
        2.51e9,
    ),
    "gemma-7b": (
        LLAMA
        | {"model_type": "gemma", "hidden_size": 3072, "num_hidden_layers": 28, "head_dim": 256}
        | {"num_attention_heads": 16, "num_key_value_heads": 16}
        | {"intermediate_size": 24576, "vocab_size": 256000, "tie_word_embeddings": True},
        8.54e9,
    ),
    "DeepSeek-V2-Lite": (
        DEEPSEEK
        | {"model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27}
        | {"num_attention_heads": 16, "q_lora_rank": None, "intermediate_size": 10944}
        | {"moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2}
        | {"num_experts_per_tok": 6, "first_k_dense_replace": 1, "vocab_size": 102400},
        15.7e9,
    ),
    "DeepSeek-V3": (DEEPSEEK, 671e9),
    "gpt-neox-20b": (
        {"model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44}
        | {"num_attention_heads": 64, "intermediate_size": 24576, "vocab_size": 50432}
        | {"max_position_embeddings": 2048, "tie_word_embeddings": False},
        20.55e9,
    ),
    "gpt2": (
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
        | {"vocab_size": 50257},
        124.4e6,
    ),
}
"""Model → what its config.json has, and its parameters as its card gives them."""


def written(tmp_path, content):
    (tmp_path / "config.json").write_text(json.dumps(content))
    return f"hf:{tmp_path}"


@cases("name", *PUBLISHED)
def test_the_parameters_are_those_that_are_published(name, tmp_path):
    config, parameters = PUBLISHED[name]
    model = model_of_configuration(written(tmp_path, config))
    assert model.num_parameters == pytest.approx(parameters, rel=0.01)


@cases(
    "name, tables, active",
    ("Mixtral-8x7B-v0.1", 2, 12.9e9),  # Jiang et al. 2024, section 2
    ("DeepSeek-V2-Lite", 1, 2.4e9),  # DeepSeek-AI 2024 (V2), appendix B
    ("DeepSeek-V3", 1, 37e9),  # DeepSeek-AI 2024 (V3), abstract,
)
def test_a_token_of_a_mixture_works_with_the_parameters_that_are_active(
    name, tables, active, tmp_path
):
    model = model_of_configuration(written(tmp_path, PUBLISHED[name][0]))
    works = model.layers * model.matrix_flops / 2 / model.context
    assert works + tables * model.table_parameters == pytest.approx(active, rel=0.025)


@cases(
    "config, word",
    ({"model_type": "mamba"}, "not known here. Known: llama"),
    (DEEPSEEK | {"kv_lora_rank": None}, "lacks or misstates"),
    ({"model_type": "llama"}, "hidden_size"),
    ([], "no configuration"),
)  # fmt: skip
def test_what_is_not_counted_is_refused(config, word, tmp_path):
    with pytest.raises(UsageError, match=word):
        model_of_configuration(written(tmp_path, config))


def test_a_folder_is_as_good_as_its_file_and_a_missing_one_is_refused(tmp_path):
    name = written(tmp_path, LLAMA)
    for given in (name, f"{name}/config.json"):
        assert resolve_workload(given, "cpu").module == NAMED
    with pytest.raises(UsageError, match="nothing is downloaded"):
        resolve_workload("hf:meta-llama/Llama-3-8B", "cpu")
