"""A model from its configuration alone, trained on two ranks: its gradients, size and refusals."""

import importlib.util
import json

import pytest

from tests.builders.repository.frameworks import PYTHON, REQUIRED, need
from tests.conftest import PATIENCE_S
from tests.examples import cases
from tests.forks import forks
from tests.integration.conftest import complaint

CONFIG = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512},
    **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 256},
    **{"tie_word_embeddings": False, "attention_dropout": 0.1},
}
COUNT = """
import transformers as t
c = t.AutoConfig.from_pretrained("model")
print(sum(p.numel() for p in t.AutoModelForCausalLM.from_config(c).parameters()))
"""
ROWS = ("--only", "ddp.plain.n1", "--only", "ddp.ddp.n2")
SHORT = ("--quick", "--steps", "2", "--no-trace", "--no-report", "--isolated")


FOR_THE_CPU = """
import runpy, sys
class Declared:
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch
            for kind in ("nms", "qnms"):
                declared = f"torchvision::{kind}"
                torch.library.define(declared, "(Tensor a, Tensor b, float c) -> Tensor")
sys.meta_path.insert(0, Declared())
runpy.run_module("scalebench", run_name="__main__", alter_sys=True)
"""
"""The registry's torchvision is built for CUDA and cannot load its operators for boxes next to
torch for the CPU. No classifier has any; here they are declared before it is imported."""


IMAGES = PYTHON.parents[1] / "images"


def forked(*words, cwd, module="scalebench"):
    variables = {"HOME": str(cwd), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(IMAGES)}
    return forks(PYTHON).run(module, words, cwd, PATIENCE_S, variables)


@pytest.fixture
def configuration(tmp_path):
    need(PYTHON, "transformers")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))


@pytest.mark.usefixtures("configuration")
def test_a_configuration_of_hugging_face_is_trained_and_checked(tmp_path):
    (tmp_path / "count.py").write_text(COUNT)
    counted = forked(cwd=tmp_path, module="count")
    assert counted.returncode == 0, counted.stderr
    words = ("run", "ddp", "--gpus", "1,2", "--workload", "hf:model+context-32", *ROWS, *SHORT)
    done = forked(*words, "--out", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plain, ddp = json.loads((tmp_path / "r" / "summary.json").read_text())["rows"]
    assert ddp["num_parameters"] == plain["num_parameters"] == int(counted.stdout)
    assert ddp["correctness"]["status"] == "verified"
    assert ddp["tokens_per_s"]["value"] == pytest.approx(32 * ddp["throughput"]["value"])


@pytest.mark.usefixtures("configuration")
def test_search_measures_a_configuration_here_and_project_takes_its_run(tmp_path):
    words = ("search", "--gpus", "2", "--workload", "hf:model+context-32")
    found = forked(*words, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "data 2" in found.stdout and "shard 2 (ZeRO-3)" in found.stdout
    projected = forked("project", "--gpus", "4", cwd=tmp_path)
    assert projected.returncode == 0, projected.stderr
    assert "fsdp" in projected.stdout and "predicted, not measured" in projected.stdout


@cases("workload", "torchvision:mobilenet_v3_small+image-32", "timm:test_resnet+image-32")
def test_an_image_model_by_name_is_trained(workload, tmp_path):
    library = workload.partition(":")[0]
    if not (IMAGES / library).is_dir():
        assert not REQUIRED, f"{PYTHON} lacks {library}: make frameworks-env"
        pytest.skip(f"{PYTHON} lacks {library}; make frameworks-env installs it")
    words = ("run", "ddp", "--gpus", "1,2", "--workload", workload, *ROWS, *SHORT)
    (tmp_path / "on_images.py").write_text(FOR_THE_CPU)
    done = forked(*words, "--out", "r", cwd=tmp_path, module="on_images")
    assert done.returncode == 0, done.stderr
    plain, ddp = json.loads((tmp_path / "r" / "summary.json").read_text())["rows"]
    assert ddp["status"] == "ok" and ddp["num_parameters"] == plain["num_parameters"] > 4e5
    assert ddp["correctness"]["status"] == "unverified"  # BatchNorm sees a part of the batch
    assert ddp["global_batch"] == 8 and ddp["loss_first"] == pytest.approx(6.9, abs=0.7)


@cases(
    "workload, library, told",
    ("torchvision:resnet18+image-x", None, "number of pixels"),
    ("timm:resnet10t+image-1", None, "number of pixels"),
    *(
        (workload, library, f"pip install 'scalebench[{library}]'")
        for library, workload in (
            *(("torchvision", "torchvision:resnet18"), ("timm", "timm:resnet18")),
            ("transformers", "hf:config.json"),
        )
    ),
)
def test_what_cannot_be_is_refused_in_one_line(scalebench, project, workload, library, told):
    if library and importlib.util.find_spec(library):
        pytest.skip(f"this environment has {library}")
    (project / "config.json").write_text(json.dumps(CONFIG))
    done = scalebench("run", "ddp", "--gpus", "1", "--workload", workload, *SHORT)
    assert told in complaint(done)
