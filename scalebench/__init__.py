"""Benchmark and explain how distributed PyTorch training scales.

The names below are the public Python interface. They are loaded when first used, so that
``import scalebench`` costs nothing and a suite file never pulls in torch.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from scalebench.session.plan import Request
    from scalebench.session.results import compare, gate, load, trace
    from scalebench.session.run import run, watch
    from scalebench.session.storing.finish import Run
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
        PipeDream,
        PipeDream2BW,
        Pipeline,
        Plain,
        Script,
        Tensor,
        Zero1,
    )
    from scalebench.spec.recovery import Race, Recipe, Recovery
    from scalebench.spec.suites import Case, Collectives, Loader, StepPlan, Suite
    from scalebench.spec.workload import ContextPlan, Shard, TensorPlan, Workload
    from scalebench.worker.attach import step

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
    "PipeDream",
    "PipeDream2BW",
    "Pipeline",
    "Plain",
    "Race",
    "Recipe",
    "Recovery",
    "Request",
    "Run",
    "Script",
    "Shard",
    "StepPlan",
    "Suite",
    "Tensor",
    "TensorPlan",
    "Workload",
    "Zero1",
    "compare",
    "gate",
    "load",
    "run",
    "step",
    "trace",
    "watch",
]

_HOMES = {
    "scalebench.spec.suites": ("Case", "Collectives", "Loader", "StepPlan", "Suite"),
    "scalebench.spec.workload": ("ContextPlan", "Shard", "TensorPlan", "Workload"),
    "scalebench.spec.recovery": ("Race", "Recipe", "Recovery"),
    "scalebench.session.plan": ("Request",),
    "scalebench.session.storing.finish": ("Run",),
    "scalebench.session.results": ("compare", "load"),
    "scalebench.session.run": ("run", "watch"),
    "scalebench.worker.attach": ("step",),
    "scalebench": ("gate", "trace"),
    "scalebench.spec.strategies": __all__,
}
"""Module → the public names that it defines; all others are strategies."""


class CommandPackage(ModuleType):
    """A package that is called like the command of its name: ``scalebench.gate(new, baseline)``."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Do what the function of this name in `scalebench.session.results` does."""
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module("scalebench.session.results"), name)(*arguments, **options)


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'scalebench' has no attribute {name!r}")
    home = next(home for home, names in _HOMES.items() if name in names)
    return (
        import_module(f"scalebench.{name}")
        if home == "scalebench"
        else getattr(import_module(home), name)
    )


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
