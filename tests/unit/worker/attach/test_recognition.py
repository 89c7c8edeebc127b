"""How a script is distributed is recognised by what exists in its process."""

import ast
import gc
import importlib
import importlib.util
import json
import subprocess
import sys
import threading
from importlib.metadata import distributions
from pathlib import Path

import pytest

from scalebench.worker import attach, portable
from scalebench.worker.attach import facts as recognition
from scalebench.worker.attach.imports import after_import_of
from scalebench.worker.attach.nested import launched

pytestmark = pytest.mark.slow

PROGRAM = """
import json, sys, tempfile, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel
from scalebench.worker.attach import facts as recognition
from scalebench.worker.attach.instruments import UnusedSearch

class Branch(nn.Module):
    def __init__(self, uses_all):
        super().__init__()
        self.used, self.other, self.uses_all = nn.Linear(8, 8), nn.Linear(8, 8), uses_all
    def forward(self, x):
        return self.other(self.used(x)) if self.uses_all else self.used(x)

def ddp(uses_all):
    model = DistributedDataParallel(Branch(uses_all), find_unused_parameters=True)
    model.register_comm_hook(None, fp16_compress_hook)
    search = UnusedSearch()
    for step in range(3):
        search.begin()
        model(torch.ones(2, 8)).sum().backward()
        search.end()
    return model, search

def tensor_parallel():
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    return parallelize_module(nn.Linear(8, 8), mesh, ColwiseParallel())

with tempfile.NamedTemporaryFile() as file:
    dist.init_process_group("gloo", store=dist.FileStore(file.name, 1), rank=0, world_size=1)
    model, search = ddp(sys.argv[1] == "uses all")
    told = {"ddp": recognition.wrappers(), "searched": search.found(3), "num": search.num_searches}
    del model
    sharded = fully_shard(nn.Linear(8, 8))
    told["fsdp"] = recognition.wrappers()
    del sharded
    model = tensor_parallel()
    told["tp"] = recognition.layouts([torch.optim.SGD(model.parameters())])
    del model
    zero = ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), torch.optim.SGD)
    stage = PipelineStage(nn.Linear(8, 8), 0, 1, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=3, loss_fn=nn.MSELoss())
    dist.new_group([0], group_desc="experts")
    told["rest"] = recognition.wrappers()
    told["groups"] = recognition.groups()
    json.dump(told, sys.stdout)
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def told():
    program = [sys.executable, "-c", PROGRAM, "uses all"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def kinds(found):
    return {one["kind"]: one for one in found}


def test_ddp_with_its_settings_and_its_needless_search(told):
    (ddp,) = told["ddp"]
    assert ddp["kind"] == "DistributedDataParallel"
    assert ddp["find_unused_parameters"] is True and ddp["gradient_as_bucket_view"] is False
    assert ddp["hook"] == "fp16_compress_hook"
    assert ddp["unused_bytes"] == 0
    assert told["num"] == 3 and told["searched"] > 0


def test_sharding_over_a_mesh(told):
    fsdp = kinds(told["fsdp"])["FSDPModule"]
    assert fsdp["modules"] == 1 and list(fsdp["mesh"].values()) == [1]
    assert [(one["mesh"], one["placements"]) for one in told["tp"]] == [
        ({"tp": 1}, ["Shard(dim=0)"])
    ]


def test_optimizers_and_pipelines(told):
    rest = kinds(told["rest"])
    assert "ZeroRedundancyOptimizer" in rest
    assert rest["_PipelineStageBase"]["of"] == 1
    assert rest["_PipelineSchedule"]["schedule"] == "ScheduleGPipe"
    assert rest["_PipelineSchedule"]["microbatches"] == 3


def test_process_groups_by_name_and_size(told):
    groups = {one["name"]: one for one in told["groups"]}
    assert groups["world"]["ranks"] == 1
    assert groups["experts"] == {"name": "experts", "ranks": 1, "count": 1}


def test_deepspeed_says_its_stage():
    made = {"__module__": "deepspeed.runtime.engine", "zero_optimization_stage": lambda self: 2}
    engine = type("DeepSpeedEngine", (), made)()
    gc.collect()
    assert kinds(recognition.wrappers())["DeepSpeedEngine"]["stage"] == 2
    del engine


def test_a_class_of_the_same_name_is_not_taken_for_torchs():
    own = type("FSDPModule", (), {})()
    assert "FSDPModule" not in kinds(recognition.wrappers())
    del own


NAME = "lately_imported"


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the call saw in the module, once for each call."""
    (tmp_path / f"{NAME}.py").write_text("value = 1\nraise_once()\nvalue = 2\n")
    monkeypatch.setattr("builtins.raise_once", lambda: None, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    seen: list[int] = []
    after_import_of(NAME, lambda: seen.append(sys.modules[NAME].value))
    return seen


def in_a_thread() -> None:
    thread = threading.Thread(target=importlib.import_module, args=(NAME,))
    thread.start()
    thread.join()


def lazily() -> None:
    spec = importlib.util.find_spec(NAME)
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    assert module.value == 2


def with_other_finders() -> None:
    sys.meta_path = [finder for finder in sys.meta_path if finder is not None]
    importlib.import_module(NAME)


@pytest.mark.parametrize(
    "load", [lambda: importlib.import_module(NAME), in_a_thread, lazily, with_other_finders]
)
def test_questions_before_the_import_change_nothing(called, load):
    for _ in range(2):
        spec = importlib.util.find_spec(NAME)
        assert spec is not None and spec.loader.get_filename(NAME) == spec.origin
    assert list(distributions()) and not called
    load()
    assert called == [2]
    importlib.reload(sys.modules[NAME])
    assert called == [2]
    assert "exec_module" not in vars(sys.modules[NAME].__spec__.loader)


def test_an_import_that_fails_may_be_tried_again(called, monkeypatch):
    monkeypatch.setattr("builtins.raise_once", lambda: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            importlib.import_module(NAME)
    assert not called
    monkeypatch.setattr("builtins.raise_once", lambda: None)
    importlib.import_module(NAME)
    assert called == [2]


def test_a_module_that_is_not_there_or_is_there_already(called):
    after_import_of("json", lambda: called.append(7))
    assert called == [7]
    after_import_of("not_anywhere", lambda: called.append(8))
    assert importlib.util.find_spec("not_anywhere") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_anywhere")
    assert called == [7]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("torchrun --nproc-per-node 2 t.py --lr 1", ("torchrun", "t.py --lr 1")),
        ("/e/bin/python -m torch.distributed.run t.py", ("torch.distributed.run", "t.py")),
        ("/e/bin/accelerate launch t.py", ("accelerate launch", "t.py")),
        ("/e/bin/python /e/bin/accelerate launch t.py", ("accelerate launch", "t.py")),
        ("deepspeed --num_gpus 2 -m pack", ("deepspeed", "train.py")),
        ("accelerate config", None),
        ("python t.py torchrun", None),
        ("git log torchrun", None),
        ("nvidia-smi", None),
    ],
)
def test_a_command(words: str, found: tuple[str, str] | None) -> None:
    assert launched(words.split(), {}) == found


def test_ranks_of_torchrun_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    words = ["python", "-u", "t.py", "1"]
    env = {b"RANK": b"0", b"TORCHELASTIC_RUN_ID": b"x"}
    assert launched(words, env) == ("torchrun", "t.py 1")
    assert launched(words, {"RANK": "0"}) is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")  # scalebench itself runs under torchrun
    assert launched(words, env) is None


MODULES = [*sorted(Path(attach.__file__).parent.glob("*.py")), Path(portable.__file__)]
OURS = ("scalebench.worker.attach", "scalebench.worker.portable")
ON_THE_WAY = [Path(attach.__file__).parents[up] / "__init__.py" for up in (1, 2)]


@pytest.mark.parametrize("path", [*MODULES, *ON_THE_WAY], ids=lambda p: f"{p.parent.name}.{p.stem}")
def test_it_imports_nothing_else(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    typing_only = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            root = name.partition(".")[0]
            known = root in sys.stdlib_module_names or root == "torch"
            assert known or name.startswith(OURS), name


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.stem)
def test_annotations_are_not_evaluated_where_python_3_9_could_not(path):
    tree = ast.parse(path.read_text())
    unions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.BitOr)
        and isinstance(node.right, ast.Constant)
        and node.right.value is None
    ]
    if unions:
        assert "from __future__ import annotations" in path.read_text()
