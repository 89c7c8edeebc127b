"""How a script is distributed is recognised by what exists in its process."""

import gc
import json
import subprocess
import sys

import pytest

from scalebench.worker.attach import facts as recognition

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
