"""A call as soon as a module has been imported: the script imports it when it likes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def after_import_of(name: str, call: Callable[[], None]) -> None:
    """Call something as soon as a module has been imported: the script imports it when it likes."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _AfterImport(name, call))


class _AfterImport(MetaPathFinder):
    """Finds one module as it is found without it, and has it loaded with a call at the end."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self.name = name
        self.call = call

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> Any:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self.call)
        return spec


class _CallingLoader(Loader):
    """Another loader, and a call when it is done."""

    def __init__(self, inner: Any, call: Callable[[], None]) -> None:
        self.inner = inner
        self.call = call

    def create_module(self, spec: Any) -> Any:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = module.__loader__ = self.inner
        self.inner.exec_module(module)
        self.call()
