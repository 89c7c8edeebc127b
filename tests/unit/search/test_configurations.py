import json
from pathlib import Path

import pytest

from scalebench.errors import UsageError
from scalebench.search.model import SearchModel, model_of_configuration
from scalebench.spec.presets import NAMED, resolve_workload
from tests.examples import cases

RECORDED = Path(__file__).parents[2] / "recorded" / "model_configurations.json"
PUBLISHED = json.loads(RECORDED.read_text())
"""Model → what its config.json has, and its parameters as its card gives them."""
LLAMA, DEEPSEEK = (PUBLISHED[name]["config"] for name in ("Llama-3-8B", "DeepSeek-V3"))


def written(tmp_path, content):
    (tmp_path / "config.json").write_text(json.dumps(content))
    return f"hf:{tmp_path}"


@cases("name", *PUBLISHED)
def test_the_parameters_are_those_that_are_published(name, tmp_path):
    model = model_of_configuration(written(tmp_path, PUBLISHED[name]["config"]))
    assert model.num_parameters == pytest.approx(PUBLISHED[name]["parameters"], rel=0.01)


@cases(
    "name, tables, active",
    ("Mixtral-8x7B-v0.1", 2, 12.9e9),  # Jiang et al. 2024, section 2
    ("DeepSeek-V2-Lite", 1, 2.4e9),  # DeepSeek-AI 2024 (V2), appendix B
    ("DeepSeek-V3", 1, 37e9),  # DeepSeek-AI 2024 (V3), abstract
)
def test_a_token_of_a_mixture_works_with_the_parameters_that_are_active(
    name, tables, active, tmp_path
):
    model = model_of_configuration(written(tmp_path, PUBLISHED[name]["config"]))
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


def test_a_mixture_by_hand():
    sizes = {"layers": 3, "heads": 2, "width": 8, "context": 16, "vocabulary": 100, "kv_heads": 2}
    mixture = SearchModel(name="mixture", **sizes, inner=32, experts=4, top_k=2)
    attention, router, expert = 4 * 8 * 8, 8 * 4, 2 * 8 * 32
    assert mixture.block_parameters == attention + router
    assert mixture.expert_parameters == 4 * expert
    assert mixture.num_parameters == 100 * 8 + 3 * (attention + router + 4 * expert)
    assert mixture.matrix_flops == 2 * (attention + router + 2 * expert) * 16
