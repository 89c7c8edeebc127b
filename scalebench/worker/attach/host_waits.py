"""Where a script has the host wait for the device: ``.item()``, ``.cpu()``, ``synchronize()``.

Looked for while steps are traced, and at no other time. Each call costs the host the time until
the device has done everything that was queued before; on CPU there is nothing to wait for.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Callable
from typing import Any

import torch

ON_TENSORS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__")
CUDA_FUNCTIONS = ("synchronize",)
CUDA_CLASSES = ("Stream", "Event")

SHOWN = {"__bool__": "bool(tensor)", "__float__": "float(tensor)", "__int__": "int(tensor)"}

_TORCH = os.path.dirname(torch.__file__) + os.sep
_INSTALLED = tuple(
    {
        os.path.realpath(path) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        for path in (sysconfig.get_path(name),)
        if path
    }
)
_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep

COMPILED = "the script uses torch.compile, and the hooks would have it compile again"


class HostWaits:
    """Counts calls that wait for the device, and notes where each stands in the user's code.

    Attributes:
        num_calls: So far.
        seconds: That the host spent in them.
        places: ``file:line, call`` → how often; in the order in which they were first seen.
        unavailable: Why nothing is looked for; None: something is.
    """

    def __init__(self) -> None:
        self.num_calls = 0
        self.seconds = 0.0
        self.places: dict[tuple[str, int, str], int] = {}
        self.unavailable: str | None = None
        self._undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Look from now on."""
        if self._undo:
            return
        if _compiles():
            self.unavailable = COMPILED
            return
        for name in ON_TENSORS:
            self._replace(torch.Tensor, name, SHOWN.get(name, f".{name}()"))
        cuda: Any = torch.cuda
        for name in CUDA_FUNCTIONS:
            self._replace(cuda, name, f"torch.cuda.{name}()")
        for kind in CUDA_CLASSES:
            self._replace(getattr(cuda, kind), "synchronize", f"torch.cuda.{kind}.synchronize()")

    def end(self) -> None:
        """Look no longer: everything is as before."""
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: Any, name: str, shown: str) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        own = vars(owner).get(name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            noted = self._note(args[0] if args else None, shown, sys._getframe(1))
            before = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - before if noted else 0.0

        setattr(owner, name, watched)
        if own is None:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, own))

    def _note(self, tensor: Any, shown: str, frame: Any) -> bool:
        if isinstance(tensor, torch.Tensor) and not tensor.is_cuda and _is_torchs(frame):
            return False  # torch's own look at a number that it keeps on the host
        place = place_of(frame)
        if place is None:
            return False
        self.num_calls += 1
        key = (*place, shown)
        self.places[key] = self.places.get(key, 0) + 1
        return True

    def found(self, num_steps: int) -> dict[str, Any] | None:
        """Return what was found in so many steps; None: nothing was looked for."""
        if self.unavailable is not None or not num_steps:
            return None
        return {
            "steps": num_steps,
            "calls": self.num_calls,
            "seconds": self.seconds,
            "places": [
                {"file": _shown_path(file), "line": line, "call": call, "calls": count}
                for (file, line, call), count in self.places.items()
            ][:MOST_PLACES],
        }


MOST_PLACES = 8


def place_of(frame: Any) -> tuple[str, int] | None:
    """Return file and line of the innermost frame of the user's own code.

    Without one, of the innermost that is not torch's: a framework's. None: all are torch's, or
    scalebench's own.
    """
    fallback: tuple[str, int] | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OWN):
            return fallback
        if not _is_torchs(frame) and not file.startswith("<"):
            if not os.path.realpath(file).startswith(_INSTALLED):
                return file, int(frame.f_lineno)
            if fallback is None:
                fallback = file, int(frame.f_lineno)
        frame = frame.f_back
    return fallback


def _is_torchs(frame: Any) -> bool:
    return bool(frame.f_code.co_filename.startswith(_TORCH))


def _shown_path(file: str) -> str:
    """Return a path below the working directory, or the last two parts of another."""
    path = os.path.relpath(os.path.abspath(file))
    return os.path.join(*path.split(os.sep)[-2:]) if path.startswith("..") else path


def _compiles() -> bool:
    """Tell whether torch.compile has compiled something in this process."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return bool(utils is not None and utils.counters.get("frames"))
