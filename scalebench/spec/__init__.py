"""What is to be run, as data: suites, cases, strategies, the plan of steps, cells.

Everything here is frozen, hashable, and serialises to JSON and back. Nothing here runs anything.
"""

from scalebench.spec.base import Device, FloatDtype, Name, Scaling, Spec
from scalebench.spec.jobs import Cell, Job, Purpose, SharedLaunch
from scalebench.spec.strategies import STRATEGIES, Grouped, Strategy, expert_groups
from scalebench.spec.strategies.data_parallel import Compressed, Ddp, Fsdp, Fsdp1, Zero1
from scalebench.spec.strategies.execution import Execution, Plain, Script
from scalebench.spec.strategies.frameworks import (
    Accelerate,
    DeepSpeed,
    Fabric,
    FairScale,
    FromFramework,
    Horovod,
)
from scalebench.spec.strategies.groups import Context, Expert, Tensor
from scalebench.spec.strategies.mesh import AXES, LayerWise, Mesh, Pipeline, ScheduleName
from scalebench.spec.strategies.without_lockstep import (
    DiLoCo,
    ElasticAveraging,
    FedAvg,
    Gossip,
    LocalSgd,
    ParameterServer,
    PipeDream,
    PipeDream2BW,
    WithoutLockstep,
)
from scalebench.spec.suites import Case, Collectives, Loader, StepPlan, Suite

__all__ = [
    "AXES",
    "STRATEGIES",
    "Accelerate",
    "Case",
    "Cell",
    "Collectives",
    "Compressed",
    "Context",
    "Ddp",
    "DeepSpeed",
    "Device",
    "DiLoCo",
    "ElasticAveraging",
    "Execution",
    "Expert",
    "Fabric",
    "FairScale",
    "FedAvg",
    "FloatDtype",
    "FromFramework",
    "Fsdp",
    "Fsdp1",
    "Gossip",
    "Grouped",
    "Horovod",
    "Job",
    "LayerWise",
    "Loader",
    "LocalSgd",
    "Mesh",
    "Name",
    "ParameterServer",
    "PipeDream",
    "PipeDream2BW",
    "Pipeline",
    "Plain",
    "Purpose",
    "Scaling",
    "ScheduleName",
    "Script",
    "SharedLaunch",
    "Spec",
    "StepPlan",
    "Strategy",
    "Suite",
    "Tensor",
    "WithoutLockstep",
    "Zero1",
    "expert_groups",
]
