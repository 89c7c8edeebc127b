"""A model from its configuration alone, trained on two ranks: its gradients, size and refusals."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

from tests.builders.frameworks import PYTHON, REQUIRED, ROOT
from tests.conftest import PATIENCE_S, Scalebench

CONFIG = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512},
    **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 256},
    **{"tie_word_embeddings": False, "attention_dropout": 0.1},
}
COUNT = (
    "import transformers as t; c = t.AutoConfig.from_pretrained('model'); "
    "print(sum(p.numel() for p in t.AutoModelForCausalLM.from_config(c).parameters()))"
)
ROWS = ("--only", "ddp.plain.n1", "--only", "ddp.ddp.n2")
SHORT = ("--quick", "--steps", "2", "--no-trace", "--no-report", "--isolated")


def there(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    variables = {"PYTHONPATH": str(ROOT), "HOME": str(cwd), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [PYTHON, *words], cwd=cwd, env=variables, capture_output=True, text=True, timeout=PATIENCE_S
    )


def test_a_configuration_of_hugging_face_is_trained_and_checked(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    counted = there("-c", COUNT, cwd=tmp_path) if PYTHON.exists() else None
    if counted is None or counted.returncode != 0:
        assert not REQUIRED, f"{PYTHON} lacks transformers: make frameworks-env"
        pytest.skip(f"{PYTHON} lacks transformers; make frameworks-env installs them")
    words = ("run", "ddp", "--gpus", "1,2", "--workload", "hf:model+context-32", *ROWS, *SHORT)
    done = there("-m", "scalebench", *words, "--out", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plain, ddp = json.loads((tmp_path / "r" / "summary.json").read_text())["rows"]
    assert ddp["num_parameters"] == plain["num_parameters"] == int(counted.stdout)
    assert ddp["correctness"]["status"] == "verified"
    assert ddp["tokens_per_s"]["value"] == pytest.approx(32 * ddp["throughput"]["value"])


def test_without_transformers_one_line_says_what_to_install(
    scalebench: Scalebench, project: Path
) -> None:
    if importlib.util.find_spec("transformers"):
        pytest.skip("this environment has transformers")
    (project / "config.json").write_text(json.dumps(CONFIG))
    done = scalebench("run", "ddp", "--gpus", "1", "--workload", "hf:config.json", *SHORT)
    assert done.returncode == 2 and "pip install 'scalebench[transformers]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
