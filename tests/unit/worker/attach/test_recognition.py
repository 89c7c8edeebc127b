"""How a script is distributed is recognised by what exists in its process."""

import ast
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

def ddp():
    model = DistributedDataParallel(nn.Linear(8, 8), find_unused_parameters=True)
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
    model, search = ddp()
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


def test_how_training_is_distributed_is_seen():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (ddp,) = told["ddp"]
    assert ddp["kind"] == "DistributedDataParallel"
    assert ddp["find_unused_parameters"] is True and ddp["gradient_as_bucket_view"] is False
    assert (ddp["hook"], ddp["unused_bytes"]) == ("fp16_compress_hook", 0)
    assert told["num"] == 3 and told["searched"] > 0
    of_kind = {one["kind"]: one for one in (*told["fsdp"], *told["rest"])}
    assert of_kind["FSDPModule"]["modules"] == 1
    assert list(of_kind["FSDPModule"]["mesh"].values()) == [1]
    assert [(one["mesh"], one["placements"]) for one in told["tp"]] == [
        ({"tp": 1}, ["Shard(dim=0)"])
    ]
    assert "ZeroRedundancyOptimizer" in of_kind
    schedule = of_kind["_PipelineSchedule"]
    assert (schedule["schedule"], schedule["microbatches"]) == ("ScheduleGPipe", 3)
    groups = {one["name"]: one["ranks"] for one in told["groups"]}
    assert (groups["world"], groups["experts"]) == (1, 1)


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
