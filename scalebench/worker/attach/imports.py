"""A call as soon as a module has been imported: the script imports it when it likes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any


def after_import_of(name: str, call: Callable[[], None]) -> None:
    """Call something once, as soon as a module has been imported: when the script likes."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _AfterImport(name, call))


class _AfterImport(MetaPathFinder):
    """Finds one module as the other finders do, and has its loader call something at the end.

    It stays until the module has run to its end: many ask ``find_spec`` whether a module exists
    before they import it, and an import that fails may be tried again. The loader is the one that
    was found, with another ``exec_module``: code that asks it for the module's file gets an answer.
    """

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self.name = name
        self.call = call
        self.is_done = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> Any:
        if fullname != self.name:
            return None
        for finder in sys.meta_path:
            ask = getattr(finder, "find_spec", None)
            spec = None if finder is self or ask is None else ask(fullname, path, target)
            if spec is not None:
                self._have_called(spec.loader)
                return spec
        return None

    def _have_called(self, loader: Any) -> None:
        run = getattr(loader, "exec_module", None)

        def exec_module(module: ModuleType) -> None:
            with suppress(AttributeError):
                del loader.exec_module
            run(module)  # type: ignore[misc]
            if not self.is_done:
                self.is_done = True
                with suppress(ValueError):  # the script has put other finders there
                    sys.meta_path.remove(self)
                self.call()

        with suppress(AttributeError, TypeError):  # a namespace has none; a class is everybody's
            if run is not None and not isinstance(loader, type):
                loader.exec_module = exec_module
