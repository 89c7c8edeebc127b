"""What is to be run, as data: suites, cases, strategies, the plan of steps, cells.

Everything here is frozen, hashable, and serialises to JSON and back. Nothing here runs anything.
"""

from scalebench.spec.base import Device, FloatDtype, Name, Scaling, Spec
from scalebench.spec.jobs import Cell, Job, Purpose, SharedLaunch
from scalebench.spec.strategies import (
    STRATEGIES,
    Compressed,
    Context,
    Ddp,
    DiLoCo,
    ElasticAveraging,
    Execution,
    Fsdp,
    Fsdp1,
    Gossip,
    Grouped,
    LayerWise,
    LocalSgd,
    Pipeline,
    Plain,
    ScheduleName,
    Script,
    Strategy,
    Tensor,
    WithoutLockstep,
    Zero1,
)
from scalebench.spec.suites import Case, Collectives, Loader, StepPlan, Suite

__all__ = [
    "STRATEGIES",
    "Case",
    "Cell",
    "Collectives",
    "Compressed",
    "Context",
    "Ddp",
    "Device",
    "DiLoCo",
    "ElasticAveraging",
    "Execution",
    "FloatDtype",
    "Fsdp",
    "Fsdp1",
    "Gossip",
    "Grouped",
    "Job",
    "LayerWise",
    "Loader",
    "LocalSgd",
    "Name",
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
]
