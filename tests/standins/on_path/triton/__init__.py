"""Stands in for triton where there is no GPU: whoever asks for the active driver touches CUDA.

Everything else can be imported and is an empty class: torch asks for some as it is imported.
"""

import ctypes
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

SUBMODULES = ("backends", "compiler", "language", "runtime", "testing", "tools")
__version__ = "3.5.0"


class _Driver:
    @property
    def active(self) -> Any:
        ctypes.CDLL("libcuda.so.1").cuInit(0)
        raise RuntimeError("0 active drivers ([]). There should only be one.")


class _Empty(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return __getattr__(name, self.__name__)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        ours = name.startswith(f"{__name__}.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


def __getattr__(name: str, package: str = __name__) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "driver":
        return _Driver()
    if name in SUBMODULES:
        return importlib.import_module(f"{package}.{name}")
    return type(name, (), {})


sys.meta_path.insert(0, _Finder())
