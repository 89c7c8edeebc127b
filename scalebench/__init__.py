"""Benchmark and explain how distributed PyTorch training scales.

The names below are the public Python interface. They are loaded when first used, so that
``import scalebench`` costs nothing and a suite file never pulls in torch.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from scalebench.session.run import run
    from scalebench.session.storing.finish import Run
    from scalebench.session.watching import watch
    from scalebench.spec import (
        Accelerate,
        Compressed,
        Context,
        Ddp,
        DeepSpeed,
        DiLoCo,
        ElasticAveraging,
        Expert,
        Fabric,
        FairScale,
        FedAvg,
        Fsdp,
        Fsdp1,
        Gossip,
        Horovod,
        LayerWise,
        LocalSgd,
        Mesh,
        ParameterServer,
        Pipeline,
        Plain,
        Script,
        Tensor,
        Zero1,
    )
    from scalebench.spec.race import Race, Recipe
    from scalebench.spec.recovery import Recovery
    from scalebench.spec.suites import Case, Collectives, Loader, StepPlan, Suite
    from scalebench.spec.workload import ContextPlan, Shard, TensorPlan, Workload
    from scalebench.worker.attach.interface import step

__all__ = [
    "Accelerate",
    "Case",
    "Collectives",
    "Compressed",
    "Context",
    "ContextPlan",
    "Ddp",
    "DeepSpeed",
    "DiLoCo",
    "ElasticAveraging",
    "Expert",
    "Fabric",
    "FairScale",
    "FedAvg",
    "Fsdp",
    "Fsdp1",
    "Gossip",
    "Horovod",
    "LayerWise",
    "Loader",
    "LocalSgd",
    "Mesh",
    "ParameterServer",
    "Pipeline",
    "Plain",
    "Race",
    "Recipe",
    "Recovery",
    "Run",
    "Script",
    "Shard",
    "StepPlan",
    "Suite",
    "Tensor",
    "TensorPlan",
    "Workload",
    "Zero1",
    "run",
    "step",
    "watch",
]

_HOME = {
    "Case": "scalebench.spec.suites",
    "Collectives": "scalebench.spec.suites",
    "ContextPlan": "scalebench.spec.workload",
    "Loader": "scalebench.spec.suites",
    "Race": "scalebench.spec.race",
    "Recipe": "scalebench.spec.race",
    "Recovery": "scalebench.spec.recovery",
    "Run": "scalebench.session.storing.finish",
    "Shard": "scalebench.spec.workload",
    "StepPlan": "scalebench.spec.suites",
    "Suite": "scalebench.spec.suites",
    "TensorPlan": "scalebench.spec.workload",
    "Workload": "scalebench.spec.workload",
    "run": "scalebench.session.run",
    "step": "scalebench.worker.attach.interface",
    "watch": "scalebench.session.watching",
}
"""Public name → the module that defines it; the other names are strategies."""


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'scalebench' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME.get(name, "scalebench.spec.strategies")), name)
