"""Benchmark and explain how distributed PyTorch training scales.

The names below are the public Python interface. They are loaded when first used, so that
``import scalebench`` costs nothing and a suite file never pulls in torch.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from scalebench.session import Run, run
    from scalebench.spec import Case, Compressed, Ddp, Loader, Plain, StepPlan, Suite
    from scalebench.workload import Shard, Workload

__all__ = [
    "Case",
    "Compressed",
    "Ddp",
    "Loader",
    "Plain",
    "Run",
    "Shard",
    "StepPlan",
    "Suite",
    "Workload",
    "run",
]

_HOME = {
    "Case": "scalebench.spec",
    "Compressed": "scalebench.spec",
    "Ddp": "scalebench.spec",
    "Loader": "scalebench.spec",
    "Plain": "scalebench.spec",
    "Run": "scalebench.session",
    "Shard": "scalebench.workload",
    "StepPlan": "scalebench.spec",
    "Suite": "scalebench.spec",
    "Workload": "scalebench.workload",
    "run": "scalebench.session",
}


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'scalebench' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
