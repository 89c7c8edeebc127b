"""Benchmark and explain how distributed PyTorch training scales.

The names below are the public Python interface. They are loaded when first used, so that
``import scalebench`` costs nothing and a suite file never pulls in torch.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from scalebench.ending import Run
    from scalebench.session import run
    from scalebench.spec import (
        Case,
        Collectives,
        Compressed,
        Ddp,
        Fsdp,
        Fsdp1,
        Loader,
        Pipeline,
        Plain,
        StepPlan,
        Suite,
        Zero1,
    )
    from scalebench.workload import Shard, Workload

__all__ = [
    "Case",
    "Collectives",
    "Compressed",
    "Ddp",
    "Fsdp",
    "Fsdp1",
    "Loader",
    "Pipeline",
    "Plain",
    "Run",
    "Shard",
    "StepPlan",
    "Suite",
    "Workload",
    "Zero1",
    "run",
]

_HOME = {
    "Case": "scalebench.spec",
    "Collectives": "scalebench.spec",
    "Compressed": "scalebench.spec",
    "Ddp": "scalebench.spec",
    "Fsdp": "scalebench.spec",
    "Fsdp1": "scalebench.spec",
    "Loader": "scalebench.spec",
    "Pipeline": "scalebench.spec",
    "Plain": "scalebench.spec",
    "Run": "scalebench.ending",
    "Shard": "scalebench.workload",
    "StepPlan": "scalebench.spec",
    "Suite": "scalebench.spec",
    "Workload": "scalebench.workload",
    "Zero1": "scalebench.spec",
    "run": "scalebench.session",
}


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'scalebench' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
